"""What one stored record (a `tf.train.Example`) holds for each key, as bytes and arrays; mismatches are refused.

The parser of tensorflow-datasets leaves a key that is not stored out, so that its field becomes `None`, and converts
numbers that do not fit; here each key must be there, once, with values of the kind and range that are declared.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from dew.data.errors import SourceError

Stored: TypeAlias = Mapping[str, Any]
"""Key -> a `tf.train.Feature`: one of three lists of values."""

Values: TypeAlias = Sequence[Any]

_LISTS: Final = {"b": "int64_list", "i": "int64_list", "u": "int64_list", "f": "float_list", "O": "bytes_list"}
_STORED_AS: Final = {"int64_list": "integers", "float_list": "floats", "bytes_list": "bytes", None: "nothing"}
_UINT64: Final = (1 << 64) - 1


def parser() -> Callable[[bytes], Stored]:
    """A function from the bytes of a record to what is stored; it raises `google.protobuf`'s DecodeError."""
    example: Any = importlib.import_module("tensorflow_datasets.proto").tf_example_pb2.Example

    def parse(data: bytes) -> Stored:
        return example.FromString(data).features.feature

    return parse


def values_at(key: str, dtype: "np.dtype[Any]") -> Callable[[Stored], Values]:
    """A function from a stored record to the values of `key`, which must be of the kind that `dtype` is stored as.

    It raises `SourceError` where the key is missing or holds another kind.
    """
    wanted = _LISTS[dtype.kind]

    def read(stored: Stored) -> Values:
        feature = stored.get(key)
        if feature is None:
            raise SourceError(f"nothing is stored for it, under {key!r}; the record has {sorted(stored)[:20]}")
        values = getattr(feature, wanted).value
        if not values and (found := feature.WhichOneof("kind")) != wanted:
            raise SourceError(f"{_STORED_AS[wanted]} are declared and {_STORED_AS[found]} stored, under {key!r}")
        return values

    return read


def only(values: Values) -> Any:
    """The one value.

    Raises:
        SourceError: there is none, or several.
    """
    if len(values) != 1:
        raise SourceError(f"one value is declared and {len(values)} are stored")
    return values[0]


def scalar(values: Values, dtype: "np.dtype[Any]") -> Any:
    """The one value as a NumPy scalar of `dtype`."""
    value = only(values)
    if dtype.kind == "b" and value not in (0, 1):
        raise SourceError(f"{dtype} is declared, and {value} is stored")
    if dtype == np.uint64:  # stored with the bits of an int64
        value &= _UINT64
    return dtype.type(value)  # an integer out of range is an OverflowError


def as_array(values: Values, dtype: "np.dtype[Any]") -> npt.NDArray[Any]:
    """All values as an array (n,) of `dtype`.

    Raises:
        SourceError: an integer is not in its range.
    """
    if dtype.kind == "f":
        return np.array(values, dtype)
    stored = np.array(values, np.int64)
    if dtype == np.int64:
        return stored
    if dtype == np.uint64:
        return stored.view(np.uint64)
    array = stored.astype(dtype)
    if not (array == stored).all():
        raise SourceError(f"{dtype} is declared, and {stored[array != stored][0]} is stored")
    return array


def nest(flat: Any, lengths: Sequence[npt.NDArray[np.int64]], sizes: Sequence[int | None]) -> Any:
    """A flat array or list of elements as sequences within sequences.

    Args:
        flat: all elements in order.
        lengths: of the sequences of each inner level, the outermost first.
        sizes: declared lengths of the same levels; where one is declared, an array stays one.

    Raises:
        SourceError: the lengths do not add up, or are not those declared.
    """
    for counts, size in zip(reversed(lengths), reversed(sizes), strict=True):
        if counts.sum() != len(flat) or (counts < 0).any():
            raise SourceError(f"sequences of {int(counts.sum())} elements are declared, and {len(flat)} are stored")
        if size is None:
            stops = np.cumsum(counts).tolist()
            flat = [flat[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]
            continue
        if (counts != size).any():
            other = counts[counts != size][0]
            raise SourceError(f"sequences of {size} elements are declared, and one of {other} is stored")
        flat = _in_groups(flat, len(counts), size)
    return flat


def _in_groups(flat: Any, groups: int, size: int) -> Any:
    """Elements in groups of one size: of an array one array."""
    if isinstance(flat, list):
        return [flat[group * size : (group + 1) * size] for group in range(groups)]
    return flat.reshape(groups, size, *flat.shape[1:])
