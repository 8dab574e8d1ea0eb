"""Small encoded images, and archives of them."""

import functools
import io
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from PIL import Image

Encode: TypeAlias = Callable[..., bytes]
WriteTar: TypeAlias = Callable[..., Path]


@functools.cache
def _encoded(number: int, width: int, height: int, format: str) -> bytes:
    rows, columns = np.mgrid[0:height, 0:width]
    pixels = np.stack([rows * 5 + number, columns * 3 + number * 7, rows + columns], axis=-1).astype(np.uint8)
    made = io.BytesIO()
    Image.fromarray(pixels).save(made, format)
    return made.getvalue()


@pytest.fixture(scope="session")
def encode() -> Encode:
    """`encode(number, size=(16, 12), format="JPEG")`: an image that differs with its number."""

    def encode(number: int = 0, size: tuple[int, int] = (16, 12), format: str = "JPEG") -> bytes:
        return _encoded(number, *size, format)

    return encode


@pytest.fixture(scope="session")
def write_tar() -> WriteTar:
    """`write_tar(path, [(name, bytes), ...], format=tarfile.PAX_FORMAT, mtime=0)`."""

    def write(
        path: Path, members: Iterable[tuple[str, bytes]], *, format: int = tarfile.PAX_FORMAT, mtime: float = 0
    ) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w", format=format) as archive:
            for name, data in members:
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime = len(data), mtime
                archive.addfile(entry, io.BytesIO(data))
        return path

    return write


@pytest.fixture
def user_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache directory of the test's own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder
