"""What training objectives want of a batch, as data; the shift of token rows into inputs and targets; their masks.

The one idea: an objective and a source agree on field names, dtypes and shapes, and on nothing else. `CONTRACTS` is
that agreement; `check_batch` holds a batch against it and names the field, what it got and what the objective wants.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import FieldError

Array: TypeAlias = npt.NDArray[Any]
Rows: TypeAlias = slice | npt.NDArray[np.bool_]


@attrs.frozen
class Field:
    """One field that an objective wants.

    Args:
        name: its key in the batch.
        axes: names of its axes; fields that share an axis name have the same length there, and "S+1" is at least 2.
        dtype: its exact dtype.
        meaning: what its values are, for messages.
        least: the smallest value that it may hold, or None for any.
    """

    name: str
    axes: tuple[str, ...]
    dtype: str
    meaning: str
    least: int | None = None

    def __str__(self) -> str:
        return f"({', '.join(self.axes)}) {self.dtype}, {self.meaning}"


_TOKENS = ("B", "S+1")
_TEXT = Field("text", _TOKENS, "int32", "token ids; inputs and targets overlap by one")
_SEGMENTS = Field("text_segment_ids", _TOKENS, "int32", "1, 2, ... for the documents of a row; 0 is padding", least=0)
_POSITIONS = Field("text_positions", _TOKENS, "int32", "places in their document, from 0", least=0)
_ROLES = Field("text_roles", _TOKENS, "int32", "role ids of the tokens; 0 is template or padding")

CONTRACTS: Mapping[str, tuple[Field, ...]] = MappingProxyType(
    {
        "image-diffusion": (Field("image", ("B", "H", "W", "C"), "uint8", "pixels in [0, 255]"),),
        "video-diffusion": (Field("video", ("B", "T", "H", "W", "C"), "uint8", "frames of pixels in [0, 255]"),),
        "lm": (_TEXT,),
        "packed-lm": (_TEXT, _SEGMENTS, _POSITIONS),
        "sft": (_TEXT, _SEGMENTS, _POSITIONS, _ROLES),
    }
)
"""Use -> the fields it wants. A batch may hold more fields than these, with the same number of rows."""

_SHIFTED = ("inputs", "targets", "target_mask", "segment_ids", "positions", "target_roles")


def check_batch(batch: Mapping[str, Any], use: str, *, video_field: str = "video") -> None:
    """Hold a batch against what `use` wants: presence, dtype, axes, equal lengths of shared axes, equal rows.

    Reads shapes and dtypes, and of segment ids and positions the smallest value; cheap enough for every step.

    Args:
        batch: field name -> array with rows first, as a stream delivers it; further fields are welcome.
        use: a key of `CONTRACTS`.
        video_field: what the field of "video-diffusion" is called.

    Raises:
        FieldError: an unknown use (the message lists them), or a field that is not what the use wants.
    """
    if use not in CONTRACTS:
        raise FieldError(
            f"no use is called {use!r}; there are {', '.join(CONTRACTS)}. "
            "Fields of an objective of your own are yours to check"
        )
    fields = CONTRACTS[use]
    if use == "video-diffusion":
        fields = tuple(attrs.evolve(field, name=video_field) for field in fields)
    _check_fields(batch, fields, use)
    for field in fields:
        _check_least(batch[field.name], field, use)
    _check_rows(batch)


def _check_fields(batch: Mapping[str, Any], fields: Iterable[Field], use: str) -> None:
    """Presence, dtype and rank of each field, and equal lengths of the axes they share."""
    if not isinstance(batch, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise FieldError(f"{use} wants a batch, a mapping of field names to arrays, got a {type(batch).__name__}")
    lengths: dict[str, tuple[int, str]] = {}
    for field in fields:
        if field.name not in batch:
            have = ", ".join(batch) or "none"
            raise FieldError(f"field {field.name!r} is missing; {use} wants it as {field}. The batch has: {have}")
        value = batch[field.name]
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if shape is None or dtype is None:
            raise FieldError(f"field {field.name!r} is a {type(value).__name__}; {use} wants an array {field}")
        if len(shape) != len(field.axes) or str(dtype) != field.dtype:
            raise FieldError(f"field {field.name!r} is {shape} {dtype}; {use} wants {field}")
        for axis, length in zip(field.axes, shape, strict=True):
            known, other = lengths.setdefault(axis, (length, field.name))
            if length != known:
                raise FieldError(
                    f"field {field.name!r} is {shape}, but axis {axis} has length {known} in {other!r}; "
                    f"{use} wants the two aligned"
                )
            if axis == "S+1" and length < 2:
                raise FieldError(
                    f"field {field.name!r} is {shape}: rows of {length} tokens hold no target; {use} wants {field}"
                )


def _check_least(value: Any, field: Field, use: str) -> None:
    if field.least is None or not value.size:
        return
    least = int(value.min())
    if least < field.least:
        row = int(np.argwhere(np.asarray(value) == least)[0, 0])
        raise FieldError(
            f"field {field.name!r} holds {least} in row {row}; "
            f"{use} wants values of at least {field.least}: {field.meaning}"
        )


def _check_rows(batch: Mapping[str, Any]) -> None:
    """Every array of a batch has the same number of rows."""
    first: tuple[str, int] | None = None
    for name, value in _leaves(batch, ""):
        shape = getattr(value, "shape", None)
        if not shape:
            raise FieldError(
                f"field {name!r} is {'a scalar' if shape == () else f'a {type(value).__name__}'}; "
                "every field of a batch is an array with one row a record"
            )
        first = first or (name, shape[0])
        if shape[0] != first[1]:
            raise FieldError(
                f"field {name!r} has {shape[0]} rows and {first[0]!r} has {first[1]}; "
                "every field of a batch needs one row a record"
            )


def _leaves(batch: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """The arrays of nested mappings with their dotted names."""
    for name, value in batch.items():
        if isinstance(value, Mapping):
            yield from _leaves(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        else:
            yield prefix + name, value


def shift(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs and targets of next-token training, made on the host, where S+1 columns are easily cut into two times S.

    `text` (B, S+1) int32 becomes `inputs` = text[:, :-1] and `targets` = text[:, 1:], both (B, S) int32, and
    `target_mask` (B, S) bool. Position t predicts token t+1, so a target counts only if both tokens belong to the same
    segment and that is not padding: `segment[t] == segment[t+1] != 0`. Without `text_segment_ids` every target counts.

    `text_segment_ids` and `text_positions` become `segment_ids` and `positions` of the inputs; `text_roles` become
    `target_roles` of the targets, (B, S) int32: the role of the token that is predicted decides whether it is scored.
    All of these are new C-contiguous arrays. Other fields (`valid`, `place`, your own) are passed on as they are.

    Raises:
        FieldError: `text` is missing, a token field has another dtype or shape, or a name that `shift` makes is taken.
    """
    token_fields = CONTRACTS["sft"]
    present = [field for field in token_fields if field is _TEXT or field.name in batch]
    _check_fields(batch, present, "shift")
    names = {field.name for field in token_fields}
    shifted = {name: value for name, value in batch.items() if name not in names}
    for name in _SHIFTED:
        if name in shifted:
            raise FieldError(f"field {name!r} is in the batch already; shift makes a field of that name: rename yours")
    text = _host(batch["text"])
    segments = _host(batch[_SEGMENTS.name]) if _SEGMENTS in present else None
    mask = np.ones((text.shape[0], text.shape[1] - 1), np.bool_) if segments is None else target_mask(segments)
    shifted |= {"inputs": _inputs(text), "targets": _targets(text), "target_mask": mask}
    if segments is not None:
        shifted["segment_ids"] = _inputs(segments)
    if _POSITIONS in present:
        shifted["positions"] = _inputs(_host(batch[_POSITIONS.name]))
    if _ROLES in present:
        shifted["target_roles"] = _targets(_host(batch[_ROLES.name]))
    return shifted


def segment_mask(segment_ids: Any) -> Any:
    """Which tokens a token of a packed row may attend to: itself and those before it in its own segment.

    A reference for attention that is given segment ids: what it lets through must be this. Padding, segment 0, sees
    padding alone: nothing real depends on it, and no row of a softmax is empty, which would make gradients NaN.

    Args:
        segment_ids: (..., S) integers, a NumPy or a JAX array (also a traced one), as `shift` makes `segment_ids`.

    Returns:
        (..., S, S) bool, an array of the same kind: `[..., i, j]` says whether token i sees token j.
    """
    length = segment_ids.shape[-1]
    return (segment_ids[..., :, None] == segment_ids[..., None, :]) & np.tri(length, dtype=np.bool_)


def target_mask(segment_ids: Any) -> Any:
    """Which targets of packed rows count: position t predicts token t + 1 of its own segment, which is not padding.

    So the last token of a document never predicts the first one of the next.

    Args:
        segment_ids: (..., S+1) integers, a NumPy or a JAX array (also a traced one), as a batch holds them.

    Returns:
        (..., S) bool, an array of the same kind.
    """
    inputs, targets = segment_ids[..., :-1], segment_ids[..., 1:]
    return (inputs == targets) & (targets != 0)


def _host(value: Any) -> Array:
    return np.asarray(value)


def _inputs(tokens: Array) -> Array:
    return np.array(tokens[:, :-1], order="C")


def _targets(tokens: Array) -> Array:
    return np.array(tokens[:, 1:], order="C")


def zero_padding(batch: Mapping[str, Any], rows: Rows) -> None:
    """Take rows that only fill up a batch out of every objective, in place: their segments and roles become 0.

    Integer fields whose names end in `_segment_ids` or `_roles` are set to 0 there, at any depth; nothing else changes.

    Args:
        batch: arrays with rows first, owned by the caller.
        rows: the padding rows: a slice, or a (B,) bool mask that is True for them.
    """
    for name, value in _leaves(batch, ""):
        if name.endswith(("_segment_ids", "_roles")) and np.issubdtype(value.dtype, np.integer):
            value[rows] = 0
