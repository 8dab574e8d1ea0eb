"""The pictures of one step: what the source's provider draws, else what the fields look like."""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from dew.cli.look import Look
from dew.data.errors import OptionsError, ProviderError
from dew.data.order import draws_at
from dew.data.provider import Picture, Provider, ShowRequest

if TYPE_CHECKING:
    import numpy as np

    from dew.data.dataset import Batch

SUFFIXES: Final[Mapping[str, str]] = {
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".jpg": "image/jpeg",
}
"""Suffix of a file -> the media type of the pictures that it may hold."""

_MEDIA_TYPE: Final = re.compile(r"image/[a-z0-9][a-z0-9.+-]*")


def pictures_of(seen: Look, provider: Provider | None, *, moving: bool = False) -> list[Picture]:
    """What there is to see of a step.

    A provider that draws decides alone. For any other source packed tokens become a map, and arrays of uint8 that are
    pictures or clips a contact sheet or a strip, where Pillow is installed.

    Raises:
        ProviderError: the provider's function cannot be imported, fails, or returns something else than pictures.
    """
    request = ShowRequest(batch=_rows(seen), ids=seen.shown_ids, source=seen.source, draws=_draws(seen), moving=moving)
    if provider is not None and provider.show is not None and seen.alone is None:
        return _shown_by(provider, provider.show, request)
    from dew.cli.sheets import sheets
    from dew.tokens.show import show

    return [*show(request), *sheets(request)]


def _draws(seen: Look) -> "Callable[[int], np.random.Generator] | None":
    """The draws that each record was read with, where records have random parts."""
    if seen.state is None or seen.places is None or seen.alone is not None or not hasattr(seen.source, "drawn"):
        return None
    seed, first = int(seen.state["order"]["seed"]), seen.places[0]
    return lambda row: draws_at(seed, first + row)


def _rows(seen: Look) -> "Batch":
    """The batch; a record that stands alone as a batch of one row."""
    import numpy as np

    if seen.alone is None:
        return dict(seen.batch)
    return {name: np.asarray(value)[None] for name, value in seen.batch.items() if not isinstance(value, Mapping)}


def _shown_by(provider: Provider, target: str, request: ShowRequest) -> list[Picture]:
    module, name = target.split(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ProviderError(
            f"{target}, which draws for the provider {provider.prefix!r}, failed to import: "
            f"{type(error).__name__}: {error}"
        ) from error
    drawn = function(request)
    if not isinstance(drawn, Sequence) or not all(isinstance(one, Picture) for one in cast("Sequence[Any]", drawn)):
        raise ProviderError(
            f"{target} of the provider {provider.prefix!r} must return a list of Picture, got {drawn!r}"
        )
    pictures = list(cast("Sequence[Picture]", drawn))
    for picture in pictures:
        if not _MEDIA_TYPE.fullmatch(picture.media_type):
            raise ProviderError(
                f"{target} of the provider {provider.prefix!r} drew {picture.name!r} as {picture.media_type!r}; "
                'a picture is of a type such as "image/png" or "image/svg+xml"'
            )
    return pictures


def write_pictures(pictures: Sequence[Picture], out: str) -> list[str]:
    """Writes the pictures that the suffix of `out` can hold, and returns the files written.

    One picture goes to `out` itself; several to files beside it that end in their names.

    Raises:
        OptionsError: there is no picture, none of that kind, or the file cannot be written.
    """
    path = Path(out)
    kind = SUFFIXES.get(path.suffix.lower())
    if not pictures:
        raise OptionsError(
            f"--out {out} was asked for, and there is nothing to draw: no field is packed tokens, and none is an array "
            "of uint8 pictures (rows, H, W, 3) or clips (rows, T, H, W, 3) with Pillow at hand (dew-core[images])"
        )
    fitting = [picture for picture in pictures if picture.media_type == kind]
    if not fitting:
        had = ", ".join(f"{picture.name} ({picture.media_type})" for picture in pictures)
        raise OptionsError(f"--out {out} was asked for, and {path.suffix or 'no suffix'} holds none of: {had}")
    written: list[str] = []
    for picture in fitting:
        target = path if len(fitting) == 1 else path.with_name(f"{path.stem}-{_slug(picture.name)}{path.suffix}")
        write_bytes(target, picture.data, option="--out")
        written.append(str(target))
    return written


def write_bytes(path: Path, data: bytes, *, option: str) -> None:
    """Writes a whole file; `option` is what asked for it.

    Raises:
        OptionsError: it cannot be written.
    """
    try:
        path.write_bytes(data)
    except OSError as error:
        raise OptionsError(f"{option} {path} cannot be written: {error}") from error


def _slug(name: str) -> str:
    """`name` as part of a file's name."""
    return "".join(letter if letter.isalnum() else "-" for letter in name).strip("-") or "picture"
