"""`dew tfds info`: what a prepared dataset holds, and what Dew would refuse of it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dew.data.errors import DewDataError
from dew_tfds.builder import open_builder, refusals
from dew_tfds.prepared import Metadata, Wanted, find
from dew_tfds.records import record_reader
from dew_tfds.shards import count_problems, list_sizes, size_problems
from dew_tfds.source import TFDSSource
from dew_tfds.splits import Shard, stretches


@click.group()
def tfds() -> None:
    """Datasets prepared by tensorflow-datasets."""


@tfds.command(short_help="What a prepared dataset holds, and what Dew would refuse of it.")
@click.argument("path")
@click.option("--config", help="The builder config, where PATH holds several.")
@click.option("--version", help="The version, where PATH holds several [the newest].")
@click.option("--check", is_flag=True, help="Open every shard and count its records; exit code 1 if one is wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")
def info(path: str, config: str | None, version: str | None, check: bool, as_json: bool) -> None:
    """What is prepared at PATH, a version's directory or its builder's: fields, splits, and what Dew would refuse."""
    metadata = find(path, Wanted(config=config, version=version))
    about = _about(metadata)
    fields, problems = _looked_at(metadata, check)
    about |= {"fields": fields, "refused": problems, "checked": check}
    if as_json:
        click.echo(json.dumps(about, allow_nan=False))
    else:
        _show(Console(highlight=False, markup=False), about)
    if check and problems:
        click.get_current_context().exit(1)


def _about(metadata: Metadata) -> dict[str, Any]:
    return {
        "path": metadata.directory,
        "name": metadata.builder,
        "config": metadata.config,
        "version": metadata.version,
        "formats": metadata.formats,
        "splits": [_split(split) for split in metadata.info.get("splits", [])],
    }


def _split(split: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes are written as text in the metadata."""
    lengths = [int(length) for length in split.get("shardLengths", [])]
    return {
        "name": split.get("name", ""),
        "records": sum(lengths),
        "shards": len(lengths),
        "bytes": int(split.get("numBytes", 0)),
    }


def _looked_at(metadata: Metadata, check: bool) -> tuple[dict[str, Any], list[str]]:
    """The fields in words, and what is wrong, a sentence each."""
    fields: dict[str, Any] = {}
    problems = list(refusals(metadata))
    try:
        metadata.check_format()
        if not problems:
            builder = open_builder(metadata)
            fields = dict(record_reader(builder, None).words)
            problems += _shard_problems(metadata, {name: stretches(builder, name) for name in builder.splits}, check)
            if check and not problems:
                for name in builder.splits:
                    TFDSSource(builder, name)
    except DewDataError as error:
        problems.append(str(error))
    return fields, problems


def _shard_problems(metadata: Metadata, splits: Mapping[str, Any], check: bool) -> Iterator[str]:
    sizes = list_sizes(metadata.directory)
    for name, found in splits.items():
        shards: list[Shard] = [stretch.shard for stretch in found]
        wrong = size_problems(metadata.directory, shards, sizes)
        if check and not wrong:
            wrong = count_problems(metadata.directory, shards)
        yield from (f"split {name!r}: {problem}" for problem in wrong)


def _show(screen: Console, about: Mapping[str, Any]) -> None:
    name = "/".join(filter(None, (about["name"], about["config"], about["version"])))
    screen.print(f"{name}, prepared as {' and '.join(about['formats'])}", soft_wrap=True)
    screen.print(f"in {about['path']}\n", soft_wrap=True)
    fields = _table("field", "a record holds")
    for field, words in _flat(about["fields"]):
        fields.add_row(Text(field), Text(words))
    splits = _table("split", "records", "shards", "bytes of records", right=3)
    for split in about["splits"]:
        splits.add_row(*(Text(f"{split[key]:,}" if key != "name" else split[key]) for key in _COLUMNS))
    if about["fields"]:
        screen.print(fields)
    screen.print(splits)
    for problem in about["refused"]:
        screen.print(f"refused: {problem}", soft_wrap=True)
    if not about["refused"]:
        counted = ", every shard counted" if about["checked"] else "; --check counts the records of every shard"
        screen.print(f"nothing is refused{counted}", soft_wrap=True)


_COLUMNS = ("name", "records", "shards", "bytes")


def _table(*columns: str, right: int = 0) -> Table:
    """An empty table; its last `right` columns hold numbers."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        justify = "right" if number >= len(columns) - right else "left"
        made.add_column(column, justify=justify, overflow="fold")
    return made


def _flat(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, words in fields.items():
        if isinstance(words, Mapping):
            yield from _flat(cast("Mapping[str, Any]", words), f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", words
