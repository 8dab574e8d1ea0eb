"""Comparing records and batches: fields, dtypes, shapes and values, and the first difference in words."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.dataset import Batch
from dew.testing.counterexample import Counterexample

Layout: TypeAlias = dict[str, str]
"""Dotted name of a field -> its dtype, and where it is asked for its shape, in words."""

_LONGEST_VALUE = 60


@attrs.frozen
class Difference:
    """The first difference of two records or batches, in words, and the row that it is in."""

    text: str
    row: int | None = None


def difference(left: Mapping[str, Any], right: Mapping[str, Any], prefix: str = "") -> Difference | None:
    """The first field that is not the same in both; None where all are. NaN equals NaN."""
    if list(left) != list(right):
        return Difference(f"the fields are {_names(left, prefix)} and {_names(right, prefix)}")
    for name, value in left.items():
        other = right[name]
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            found = difference(cast("Mapping[str, Any]", value), cast("Mapping[str, Any]", other), f"{prefix}{name}.")
        else:
            found = _unequal(f"field {prefix + name!r}", value, other)
        if found is not None:
            return found
    return None


def assert_same(left: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    """Two records, or two batches, with the same fields, dtypes and values; NaN equals NaN.

    Raises:
        Counterexample: names the first field that differs.
    """
    if (found := difference(left, right)) is not None:
        raise Counterexample(found.text)


def layout(record: Mapping[str, Any], *, shapes: bool = False, rows: bool = False) -> Layout:
    """Field -> dtype (text of any width is "text"), with its shape where `shapes`; of a row where `rows`."""
    found: Layout = {}
    for name, value in leaves(record):
        array = as_array(value)
        kind = "text" if array.dtype.kind == "U" else str(array.dtype)
        shape = array.shape[1:] if rows else array.shape
        found[name] = f"{kind} {shape}" if shapes else kind
    return found


def leaves(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of every field, those of nested mappings too."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from leaves(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def arrays_of(fields: Mapping[str, Any]) -> list[npt.NDArray[Any]]:
    """All NumPy arrays of a record or batch, nested ones too."""
    return [value for _, value in leaves(fields) if isinstance(value, np.ndarray)]


def copied(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A record or batch of its own: what happens to the original later does not reach it."""
    return {
        name: copied(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else copy.deepcopy(value)
        for name, value in fields.items()
    }


def as_array(value: Any) -> npt.NDArray[Any]:
    """`numpy.asarray`; what has no one shape, such as a list of lists of unequal length, as one object."""
    try:
        return np.asarray(value)
    except ValueError:
        whole = np.empty((), object)
        whole[()] = value
        return whole


def row_of(columns: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Row `row` of every column."""
    return {
        name: row_of(cast("Mapping[str, Any]", value), row) if isinstance(value, Mapping) else value[row]
        for name, value in columns.items()
    }


def rows_in(batch: Mapping[str, Any]) -> int:
    """Rows of the first field.

    Raises:
        Counterexample: the batch has no fields, or one without rows.
    """
    first = next(leaves(batch), None)
    if first is None:
        raise Counterexample("a batch has no fields")
    if not np.ndim(first[1]):
        raise Counterexample(f"field {first[0]!r} of a batch has no rows: {_short(first[1])}")
    return len(first[1])


def whole_step(shares: Sequence[Mapping[str, Any]]) -> Batch:
    """The global batch of a step from the batches of all its shares: row i of share p is row p + i * count.

    Raises:
        Counterexample: the shares have different fields, or different numbers of rows.
    """
    first = shares[0]
    whole: Batch = {}
    for share in shares[1:]:
        if list(share) != list(first):
            raise Counterexample(f"shares of one step have the fields {list(first)} and {list(share)}")
    for name, value in first.items():
        if isinstance(value, Mapping):
            whole[name] = whole_step([cast("Mapping[str, Any]", share[name]) for share in shares])
            continue
        parts = [np.asarray(share[name]) for share in shares]
        if len({part.shape for part in parts}) > 1:
            raise Counterexample(
                f"shares of one step have field {name!r} in the shapes {[part.shape for part in parts]}"
            )
        if not parts[0].ndim:
            raise Counterexample(f"field {name!r} of a batch has no rows: {_short(first[name])}")
        rows, *inner = parts[0].shape  # stated, since a field of no values has any number of rows
        whole[name] = np.stack(parts, axis=1).reshape(rows * len(parts), *inner)
    return whole


def _names(fields: Mapping[str, Any], prefix: str) -> str:
    return str([prefix + name for name in fields])


def _unequal(name: str, left: Any, right: Any) -> Difference | None:
    here, there = as_array(left), as_array(right)
    text = "U" in (here.dtype.kind, there.dtype.kind)
    if here.dtype != there.dtype and not (text and here.dtype.kind == there.dtype.kind):
        return Difference(f"{name} is {here.dtype} and {there.dtype}")
    if here.shape != there.shape:
        return Difference(f"{name} has the shapes {here.shape} and {there.shape}")
    if here.dtype.hasobject:
        same = _same_objects(left, right)
        return None if same else Difference(f"{name} is {_short(left)} and {_short(right)}")
    if _same(here, there):
        return None
    if here.ndim:
        for row in range(len(here)):
            if not _same(here[row], there[row]):
                return Difference(f"{name} is {_both(here[row], there[row])} in row {row}", row)
    return Difference(f"{name} is {_both(here, there)}")


def _both(here: Any, there: Any) -> str:
    """Two values that differ; where they look alike when they are cut, the first entries or letters that differ."""
    left, right = _short(here), _short(there)
    if left != right or here.dtype.kind == "V":
        return f"{left} and {right}"
    if not np.ndim(here):
        ours, theirs = str(here), str(there)
        pairs = enumerate(zip(ours, theirs, strict=False))
        letter = next((at for at, (left, right) in pairs if left != right), min(len(ours), len(theirs)))
        return f"{_short(ours[letter:])} and {_short(theirs[letter:])} from letter {letter}"
    place = next(place for place in np.ndindex(here.shape) if not _same(here[place], there[place]))
    where = ", ".join(map(str, place))
    return f"{_short(here[place])} and {_short(there[place])} at [{where}]"


def _same(here: npt.NDArray[Any], there: npt.NDArray[Any]) -> bool:
    if here.dtype.kind in "fc":
        return np.array_equal(here, there, equal_nan=True)
    if here.dtype.kind == "V":  # dtypes of other libraries, such as bfloat16
        return np.asarray(here).tobytes() == np.asarray(there).tobytes()
    return np.array_equal(here, there)


def _same_objects(left: Any, right: Any) -> bool:
    """Values that are no arrays of numbers: ragged lists, None, bytes."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return difference(cast("Mapping[str, Any]", left), cast("Mapping[str, Any]", right)) is None
    ours, theirs = _entries(left), _entries(right)
    if ours is not None and theirs is not None:
        same = (_unequal("", one, other) is None for one, other in zip(ours, theirs, strict=False))
        return len(ours) == len(theirs) and all(same)
    return bool(left == right) or (left != left and right != right)


def _entries(value: Any) -> list[Any] | None:
    if isinstance(value, np.ndarray):
        return list(cast("Any", value)) if value.ndim else None
    return list(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else None


def _short(value: Any) -> str:
    plain: Any = cast("Any", value).item() if isinstance(value, np.generic) else value
    shown = np.array2string(cast("Any", plain), threshold=8) if isinstance(plain, np.ndarray) else repr(plain)
    text = " ".join(shown.split())
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "..."
