"""`dew images index` and `dew images verify`: what is done once, before images are trained on."""

import json
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dew.data.errors import SourceNotFoundError, StorageError
from dew.data.storage import Storage
from dew_media.files.exclude import Manifest
from dew_media.files.open import open_files, tar_places
from dew_media.files.problems import SHARDS, Problems
from dew_media.files.progress import files_bar, index_bar
from dew_media.files.tar_index import TarIndex, problems_of
from dew_media.files.tar_places import write_index
from dew_media.images.verify import verify_images

_SHOWN = 20

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")


@click.group()
def images() -> None:
    """Folders, tar shards and parquet files of images."""


@images.command(short_help="Index tar shards, so that they can be read at random.")
@click.argument("path")
@click.option("--into", metavar="DIRECTORY", help="Put the index there; by default it goes beside the shards.")
@json_option
def index(path: str, into: str | None, as_json: bool) -> None:
    """Walk the tar shards at PATH, a directory or one shard, and write where every member lies.

    The same for shards of videos. Exit code 1 where a shard is damaged, or holds members that cannot be used.
    """
    done: list[dict[str, Any]] = []
    for spec in tar_places(path):
        with index_bar(quiet=as_json) as tell:
            made, where = write_index(spec, into, tell)
        done.append(_about(made, where))
    if as_json:
        click.echo(json.dumps(done, allow_nan=False))
    else:
        for about in done:
            _show_index(about)
    if any(about["problems"] for about in done):
        click.get_current_context().exit(1)


def _about(made: TarIndex, where: str) -> dict[str, Any]:
    problems = Problems()
    for kind, names in problems_of(made.shards):
        problems.add(kind, names)
    return {
        "index": where,
        "shards": len(made.shards),
        "samples": len(made.keys),
        "members": sum(shard.members for shard in made.shards),
        "bytes": sum(shard.size for shard in made.shards),
        "suffixes": list(made.suffixes),
        "problems": problems.counts(),
        "texts": problems.texts(),
        "without_end": [shard.name for shard in made.shards if not shard.ended],
    }


def _show_index(about: dict[str, Any]) -> None:
    click.echo(
        f"{about['index']}: {about['samples']:,} samples in {SHARDS.counted(about['shards'])}, "
        f"{about['members']:,} members ({', '.join(about['suffixes'][:8])}), {about['bytes']:,} bytes"
    )
    if lacking := about["without_end"]:
        click.echo(f"without the mark that ends an archive, so perhaps cut: {', '.join(lacking[:5])} ({len(lacking)})")
    for text in about["texts"]:
        click.echo(text)
    if about["problems"]:
        click.echo("these are refused when the shards are opened; missing='drop' leaves them out")


@images.command(short_help="Decode every image once, and list those that cannot be.")
@click.argument("path")
@click.option("--split", default="train", show_default=True, help="The split to look at.")
@click.option("--layout", type=click.Choice(("folder", "tar", "parquet")), help="How images are stored [found].")
@click.option(
    "--missing", type=click.Choice(("error", "drop")), default="error", show_default=True, help="As in a run."
)
@click.option("--part", help="In tars, what follows the first dot of the main file [an image's suffix].")
@click.option("--column", help="In parquet, the column of encoded bytes [the only one].")
@click.option("--captions", type=click.Choice(("metadata", "sidecars", "none")), help="Where they come from [found].")
@click.option("--labels", type=click.Choice(("metadata", "folders", "none")), help="Where they come from [found].")
@click.option("--caption-field", metavar="NAME", help="The column or field of captions [text or caption].")
@click.option("--index", metavar="DIRECTORY", help="Where the index of tar shards is [beside them].")
@click.option("--out", metavar="FILE", help="The manifest [dew-bad-SPLIT.jsonl in PATH, or else here].")
@click.option("--threads", type=click.IntRange(min=1), help="Images decoded side by side [one a core].")
@json_option
def verify(
    path: str,
    split: str,
    layout: Any,
    missing: Any,
    part: str | None,
    column: str | None,
    captions: Any,
    labels: Any,
    caption_field: str | None,
    index: str | None,
    out: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Decode every image at PATH, with its caption and label, and write a manifest of those that cannot be used.

    A run leaves them out with ImageOptions(exclude=FILE). Exit code 1 where there are any.
    """
    with index_bar(quiet=as_json) as tell:
        files = open_files(
            path,
            split=split,
            layout=layout,
            missing=missing,
            part=part,
            column=column,
            captions=captions,
            labels=labels,
            caption_field=caption_field,
            index=index,
            on_progress=tell,
        )
    with files_bar("verify", quiet=as_json) as tell:
        manifest = verify_images(files, threads=threads, on_progress=tell)
    out = _stored(manifest, out or _default_out(path, split), split)
    if as_json:
        about = {"split": split, "collection": files.description(), "files": manifest.files, "manifest": out}
        bad = [{"key": record.key, "reason": record.reason, "message": record.message} for record in manifest.bad]
        click.echo(json.dumps({**about, "reasons": manifest.reasons(), "bad": bad}, allow_nan=False))
    else:
        _show(manifest, files.description(), out)
    if manifest.bad:
        click.get_current_context().exit(1)


def _stored(manifest: Manifest, out: str, split: str) -> str:
    """Writes the manifest; where `out` cannot be written, in the working directory: decoding it all took long."""
    try:
        manifest.write(out)
    except (StorageError, SourceNotFoundError) as error:
        here = f"dew-bad-{split}.jsonl"
        if out == here:
            raise
        manifest.write(here)
        click.echo(f"dew: {error}; it is in the working directory instead", err=True)
        return here
    return out


def _default_out(path: str, split: str) -> str:
    storage, name = Storage(path), f"dew-bad-{split}.jsonl"
    bare = path.rstrip("/")
    if storage.local and not storage.is_dir(""):
        return f"{bare}.bad.jsonl"
    return f"{bare}/{name}"


def _show(manifest: Manifest, description: str, out: str) -> None:
    screen = Console(highlight=False, markup=False)
    screen.print(f"{manifest.files:,} files, {len(manifest.bad):,} bad ({description})", soft_wrap=True)
    if manifest.bad:
        reasons = Table("reason", "files", box=box.SIMPLE_HEAD, pad_edge=False)
        for reason, count in manifest.reasons().items():
            reasons.add_row(Text(reason), Text(f"{count:,}"))
        screen.print(reasons)
    for record in manifest.bad[:_SHOWN]:
        screen.print(record.message, soft_wrap=True)
    if len(manifest.bad) > _SHOWN:
        screen.print(f"and {len(manifest.bad) - _SHOWN:,} more, all of them in the manifest", soft_wrap=True)
    use = f"; leave them out with exclude={out!r}" if manifest.bad else ""
    screen.print(f"manifest: {out}{use}", soft_wrap=True)
