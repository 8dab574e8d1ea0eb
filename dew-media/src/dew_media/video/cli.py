"""`dew video index`: what is done once, before videos are trained on."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dew.data.errors import DewDataError, StorageError
from dew.data.storage import Storage
from dew_media.files.collection import MediaFiles
from dew_media.files.exclude import BadRecord
from dew_media.files.progress import files_bar
from dew_media.files.tar_places import user_folder
from dew_media.video.index import Head, default_place, place_of
from dew_media.video.opening import stored_videos
from dew_media.video.options import VideoOptions
from dew_media.video.scan import FileJournal, scan

_SHOWN = 20


@click.group()
def video() -> None:
    """Folders and tar shards of videos."""


@video.command(short_help="Read the timestamps of every video once, and list those that cannot be read.")
@click.argument("path")
@click.option("--split", default="train", show_default=True, help="The split to index.")
@click.option("--layout", type=click.Choice(("folder", "tar")), help="How videos are stored [found].")
@click.option("--part", help="In tars, what follows the first dot of the main file [a video's suffix].")
@click.option("--tar-index", metavar="DIRECTORY", help="Where the index of tar shards is [beside them].")
@click.option("--decode", is_flag=True, help="Decode every frame too: finds all damage, and takes much longer.")
@click.option("--into", metavar="DIRECTORY", help="Put the index there; by default it goes beside the videos.")
@click.option("--threads", type=click.IntRange(min=1), help="Videos read side by side [one a core].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")
def index(
    path: str,
    split: str,
    layout: Any,
    part: str | None,
    tar_index: str | None,
    decode: bool,
    into: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Read all packets of every video at PATH, and write when each frame is shown.

    Also finds files that are empty, cut, without pictures, or that cannot be decoded; a run refuses them, or leaves
    them out with VideoOptions(unreadable="drop"). An interrupted scan goes on where it stopped. Exit code 1 where a
    file cannot be read.
    """
    files = stored_videos(path, split, VideoOptions(part=part, tar_index=tar_index), layout=layout)
    out = default_place(path, split, into)
    storage, name = place_of(out)
    with _journal(storage, name, files, decode) as journal:
        with files_bar("index", quiet=as_json) as tell:
            made = scan(files, decode=decode, threads=threads, journal=journal, on_progress=tell)
        made.write(storage, name)
        journal.remove()
    about = _about(made.head, out)
    if as_json:
        click.echo(json.dumps(about, allow_nan=False))
    else:
        _show(about, made.head.bad, files.description())
    if made.head.bad:
        click.get_current_context().exit(1)


@contextmanager
def _journal(storage: Storage, name: str, files: MediaFiles, decode: bool) -> Generator[FileJournal]:
    """What is done so far: beside a local index, in the user's cache for a remote one.

    Raises:
        StorageError: it cannot be written there, so that the index could not either.
    """
    path = storage.path(f"{name}.unfinished")
    if path is None:
        path = user_folder() / f"video-{files.stored()[:32]}.unfinished"
    try:
        with FileJournal(path, files.stored(), decode=decode) as journal:
            yield journal
    except OSError as error:
        if isinstance(error, DewDataError):
            raise
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}; --into DIRECTORY puts the index elsewhere, and "
            "the option index=DIRECTORY tells a run where"
        ) from error


def _about(head: Head, out: str) -> dict[str, Any]:
    facts = head.facts
    seconds = facts["ticks"] * (facts["base"][:, 0] / facts["base"][:, 1])
    bad = [{"key": record.key, "reason": record.reason, "message": record.message} for record in head.bad]
    return {
        "index": out,
        "files": len(head.keys),
        "frames": int(facts["frames"].sum()),
        "seconds": round(float(seconds.sum()), 3),
        "digest": head.digest(),
        "reasons": head.reasons(),
        "bad": bad,
    }


def _show(about: dict[str, Any], bad: tuple[BadRecord, ...], description: str) -> None:
    screen = Console(highlight=False, markup=False)
    found = f"{about['files']:,} videos, {about['frames']:,} frames, {about['seconds'] / 3600:.2f} h ({description})"
    screen.print(f"{found}; {len(bad):,} cannot be read", soft_wrap=True)
    if bad:
        _show_bad(screen, about["reasons"], bad)
    screen.print(f"index: {about['index']}", soft_wrap=True)


def _show_bad(screen: Console, reasons: dict[str, int], bad: tuple[BadRecord, ...]) -> None:
    made = Table("reason", "files", box=box.SIMPLE_HEAD, pad_edge=False)
    for reason, count in reasons.items():
        made.add_row(Text(reason), Text(f"{count:,}"))
    screen.print(made)
    for record in bad[:_SHOWN]:
        screen.print(record.message, soft_wrap=True)
    if len(bad) > _SHOWN:
        screen.print(f"and {len(bad) - _SHOWN:,} more, all of them in the index (--json lists them)", soft_wrap=True)
