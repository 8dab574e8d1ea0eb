"""`dew hf info`: what a dataset holds, and which kinds of position can be had of it."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, cast

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dew_hf.opening import (
    footer_cache,
    format_of,
    library,
    open_builder,
    short_name,
    split_files,
    split_versions,
)
from dew_hf.options import HFOptions

_FORMATS: Final = {
    ".parquet": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "text",
    ".arrow": "arrow",
    ".tar": "webdataset",
}


@click.group()
def hf() -> None:
    """Hugging Face datasets."""


@hf.command(short_help="What a dataset holds, and which positions it can have.")
@click.argument("names", nargs=-1, required=True, metavar="NAME_OR_FILES...")
@click.option("--config", help="Configuration of the dataset.")
@click.option("--revision", help="Branch, tag or commit of the dataset.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")
def info(names: tuple[str, ...], config: str | None, revision: str | None, as_json: bool) -> None:
    """Features, splits, rows and files of a dataset, and the kinds of position to be had and why.

    NAME_OR_FILES is a dataset's name or directory, or files of one format. Nothing is downloaded but what describes
    them: of parquet files, their footers.
    """
    name, options = _asked(names, config, revision)
    about = describe_dataset(name, options)
    if as_json:
        click.echo(json.dumps(about, allow_nan=False))
        return
    _show(about)


def describe_dataset(name: str, options: HFOptions) -> dict[str, Any]:
    """What `dew hf info` prints, as JSON values.

    Raises:
        SourceNotFoundError, OptionsError: as `dew.data.load`.
    """
    builder = open_builder(name, "train", options)
    kind = format_of(builder)
    files = cast("dict[str, Any]", builder.config.data_files or {})
    about: dict[str, Any] = {"name": short_name(name), "format": kind, "features": None, "splits": {}}
    for split in files or (builder.info.splits or {}):
        opened = builder.as_streaming_dataset(split=split)
        if about["features"] is None and opened.features is not None:
            about["features"] = {column: str(feature) for column, feature in opened.features.items()}
        paths = [str(path) for path in files.get(split, ())]
        about["splits"][str(split)] = {"rows": _rows(builder, kind, split, options), "files": len(paths)}
    about["positions"] = _positions(kind, isinstance(builder, library().ArrowBasedBuilder))
    return about


def _asked(names: tuple[str, ...], config: str | None, revision: str | None) -> tuple[str, HFOptions]:
    if len(names) == 1 and Path(names[0]).suffix not in _FORMATS:
        return names[0], HFOptions(config=config, revision=revision)
    kinds = {_FORMATS.get(Path(name).suffix) for name in names}
    kind = next(iter(kinds))
    if len(kinds) > 1 or kind is None:
        raise click.UsageError(
            f"files of one format ({', '.join(sorted(_FORMATS))}) or one name, got {', '.join(names)}"
        )
    return kind, HFOptions(config=config, revision=revision, data_files=list(names))


def _rows(builder: Any, kind: str, split: str, options: HFOptions) -> int | None:
    stated = cast("dict[str, Any]", builder.info.splits or {}).get(split)
    if stated is not None and stated.num_examples:
        return stated.num_examples
    if kind != "Parquet":
        return None
    from dew_hf.footers import ParquetFiles, open_footers

    files = ParquetFiles(
        urls=tuple(split_files(builder, split)),
        versions=split_versions(builder, split),
        storage_options=dict(options.storage_options or {}),
        cache=footer_cache(options),
    )
    return int(open_footers(files).rows.sum())


def _positions(kind: str, arrow: bool) -> list[dict[str, str]]:
    table = {
        "how": "load(...)",
        "position": "records",
        "why": "rows are prepared as an Arrow table with random access: full shuffle, any process count",
    }
    stream = {
        "how": "streaming=True",
        "position": "shard",
        "why": f"{'tables' if arrow else 'rows'} of each process's part are counted: the same process count only",
    }
    buffered = {
        "how": "streaming=True, shuffle_buffer=N",
        "position": "none",
        "why": "what the buffer holds cannot be saved",
    }
    whole = (
        "row groups are numbered by the files' footers: shuffled by groups, any process count"
        if kind == "Parquet"
        else "every process reads the whole stream, in its own order: any process count, at that cost"
    )
    global_stream = {"how": 'streaming=True, HFOptions(position="records")', "position": "records", "why": whole}
    return [table, stream, buffered, global_stream]


def _show(about: dict[str, Any]) -> None:
    screen = Console(highlight=False, markup=False)
    screen.print(f"{about['name']}: {about['format']}", soft_wrap=True)
    columns = cast("dict[str, str]", about["features"] or {})
    screen.print(_table(("column", "type"), columns.items()))
    splits = cast("dict[str, dict[str, Any]]", about["splits"])
    counted = [
        (split, "unknown" if counts["rows"] is None else f"{counts['rows']:,}", str(counts["files"]))
        for split, counts in splits.items()
    ]
    screen.print(_table(("split", "rows", "files"), counted))
    screen.print(_table(("how", "position", "why"), [tuple(one.values()) for one in about["positions"]]))


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        made.add_column(name, overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))
    return made
