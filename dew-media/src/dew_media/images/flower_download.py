"""Fetching the Oxford flowers from where they were published, checked against the digests of the published files."""

import hashlib
import logging
import os
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final, cast

import attrs

from dew.data.errors import DamagedSourceError, StorageError
from dew_media.images.flower_files import IMAGES, LABELS, SPLITS

logger = logging.getLogger("dew.media")

ARCHIVE: Final = "102flowers.tgz"

_PIECE: Final = 1 << 20
_TIMEOUT: Final = 60.0
_MEMBER: Final = re.compile(r"jpg/image_\d{5}\.jpg")


@attrs.frozen(kw_only=True)
class Origin:
    """Where the three files are.

    Args:
        url: the directory that holds them.
        md5: of each, as published.
        size: what they are together, for messages.
    """

    url: str
    md5: Mapping[str, str]
    size: str


OXFORD: Final = Origin(
    url="https://www.robots.ox.ac.uk/~vgg/data/flowers/102",
    md5={
        ARCHIVE: "52808999861908f626f3c1f4e79d11fa",
        LABELS: "e0620be6f572b9609742df49c70aed4d",
        SPLITS: "a5357ecc9cb78c4bef273ce3793fc85c",
    },
    size="329 MiB",
)


def download(folder: Path, origin: Origin) -> None:
    """Puts the original files into `folder`, all or nothing, and says where they come from.

    Several processes may do so at once: each fetches its own, and the first to end is kept.

    Raises:
        StorageError: they cannot be had.
        DamagedSourceError: what came is not what was published.
    """
    logger.warning("fetching the Oxford flowers (%s) from %s into %s", origin.size, origin.url, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".flowers-", dir=folder) as unfinished:
        here = Path(unfinished)
        for name in origin.md5:
            _fetch(origin, name, here / name)
        _unpack(here / ARCHIVE, here / IMAGES)
        for name in (IMAGES, SPLITS, LABELS):  # the labels last: without them the folder is not taken for whole
            if not (folder / name).exists():
                os.replace(here / name, folder / name)


def _fetch(origin: Origin, name: str, to: Path) -> None:
    from http.client import HTTPException
    from urllib.request import urlopen

    url = f"{origin.url}/{name}"
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with urlopen(url, timeout=_TIMEOUT) as answer, to.open("wb") as file:
            for piece in _pieces(cast("IO[bytes]", answer), int(answer.headers.get("Content-Length") or 0), name):
                digest.update(piece)
                file.write(piece)
    except (OSError, HTTPException) as error:
        raise StorageError(f"{url} could not be fetched: {error}; try again, or fetch it yourself") from error
    if digest.hexdigest() != origin.md5[name]:
        raise DamagedSourceError(
            f"{url} is not the file that was published: its md5 is {digest.hexdigest()}, expected {origin.md5[name]} "
            f"({to.stat().st_size} bytes came); try again, or fetch it yourself"
        )


def _pieces(answer: IO[bytes], size: int, name: str) -> Iterator[bytes]:
    """What comes, with a progress bar where there is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(name, total=size or None)
        while piece := answer.read(_PIECE):
            yield piece
            bar.advance(task, len(piece))


def _unpack(archive: Path, into: Path) -> None:
    """The images alone, each a plain file of its own name; whatever else an archive may hold stays in it."""
    into.mkdir()
    try:
        with tarfile.open(archive, "r:*") as packed:
            for member in packed:
                if member.isreg() and _MEMBER.fullmatch(member.name):
                    content = packed.extractfile(member)
                    assert content is not None
                    (into / member.name.rpartition("/")[2]).write_bytes(content.read())
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DamagedSourceError(f"{archive.name} cannot be unpacked: {error}") from error
