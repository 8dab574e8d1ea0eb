"""Records -> one batch of columns, and refusals by name where they do not fit.

The one idea: a batch holds exactly the dtypes and shapes that its records hold. Where NumPy would convert in silence
(a None to a float, unequal rows to an object array, an int beyond int64 to a float, a bool to an int), the field, the
record and what to do are named instead. Records of equal arrays take a short path; all else is looked at one by one.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import length_hint
from typing import Any, NoReturn, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from dew.data.errors import CollateError

Array: TypeAlias = npt.NDArray[Any]
Names: TypeAlias = Callable[[int], str]
"""Row of the batch -> how a message calls that record, e.g. `"record 17 (place 203)"`."""

Owner: TypeAlias = Callable[[], str]
"""How a message calls the place of one value; called only where there is a message."""

_PYTHON_NUMBERS: dict[type, Any] = {
    bool: np.dtype(np.bool_),
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
    complex: np.dtype(np.complex128),
}
"""Python's own numbers, and the one dtype that each gets on every platform and NumPy release."""

_NUMBERS: dict[type, Any] = _PYTHON_NUMBERS | {
    kind: np.dtype(kind) for kind in set(np.sctypeDict.values()) if np.dtype(kind).kind in "biufc"
}
"""The same with NumPy's own scalars, which keep their dtype."""

_INTS = np.iinfo(np.int64)
_SHOWN = 40
"""Characters of a value that a message shows; a longer one is named by its type."""

_BYTES = "decode it to text, or make numbers of it: numpy.frombuffer(value, numpy.uint8)"
_TIME = "make an integer of it, in a unit of your choice"
_ADVICE = {
    "NoneType": "fill it with a value of the field's own dtype in `preprocess`, or leave the record out of the source",
    "bytes": _BYTES,
    "bytearray": _BYTES,
    "memoryview": _BYTES,
    "Decimal": "make a float of it, or an integer of its smallest unit",
    "datetime": _TIME,
    "date": _TIME,
    "time": _TIME,
    "timedelta": _TIME,
    "Timestamp": _TIME,
    "Timedelta": _TIME,
}
"""What to do with a Python object, by the name of its type, so that no library has to be imported to know it."""

_ANY_ADVICE = "make a NumPy array, a number or a str of it in `preprocess`, or leave the field out"
_DTYPE_ADVICE = {
    "O": "give it one dtype and one shape in `preprocess`: cut, pad or pack rows of unequal length, and fill each None",
    "S": "bytes lose their trailing zeros in such an array; decode them to str, or view them as numpy.uint8",
    "V": "make one field of each member",
    "M": _TIME + ": value.astype('datetime64[ns]').astype('int64')",
    "m": _TIME + ": value.astype('timedelta64[ns]').astype('int64')",
    "T": "give it a fixed width: value.astype(str)",
}


def collate(records: Sequence[Mapping[str, Any]], *, names: Names | None = None) -> dict[str, Any]:
    """Stack k records into columns `(k, ...)`; nested mappings become nested dicts.

    Dtypes are kept: an array's own, `int64` for a Python int, `float64` for a float, `bool` for a bool. A scalar gives
    `(k,)`. A str stays on the host as `<U` of the widest. Lists and tuples of one kind of number are arrays too, and so
    is anything with `__array__` (JAX arrays, tensors). Every array is new, C-contiguous, writable and the caller's own.

    Args:
        records: k >= 1 records with the same fields.
        names: how a message calls row i of the batch; `"record i"` by default.

    Raises:
        CollateError: fields, dtypes or shapes differ between records, or a value has no place in a batch: None, bytes,
            dates, other objects, lists of unequal rows or of mixed kinds, integers beyond int64.
    """
    if not records:
        raise CollateError("a batch needs at least one record, got an empty list")
    return _collate(records, "", names or _record)


def _record(row: int) -> str:
    return f"record {row}"


def _collate(records: Sequence[Any], prefix: str, names: Names) -> dict[str, Any]:
    """Columns of mappings; `prefix` is the dotted path of a nested mapping, with its last dot."""
    first = records[0]
    fields = _fields(first, prefix, 0, names)
    for row, record in enumerate(records):
        if type(record) is dict:
            if cast("dict[Any, Any]", record).keys() == fields:
                continue
        elif set(_fields(record, prefix, row, names)) == set(fields):
            continue
        _refuse_fields(first, record, prefix, row, names)
    return {name: _column([record[name] for record in records], prefix + name, names) for name in fields}


def _fields(record: Any, prefix: str, row: int, names: Names) -> Any:
    """The keys of a record, refused where it is no mapping of names."""
    if not isinstance(record, Mapping):
        if prefix:
            raise CollateError(
                f"field {prefix[:-1]!r} is a mapping in {names(0)} and {_kind(record)} in {names(row)}; "
                "give it the same form in every record"
            )
        raise CollateError(
            f"{names(row)} is {_kind(record)}, not a mapping of field names to values; "
            'name what it holds, e.g. {"x": value}, in the source or in `preprocess`'
        )
    keys = cast("Mapping[Any, Any]", record).keys()
    for key in keys:
        if not isinstance(key, str):
            where = f"field {prefix[:-1]!r} of {names(row)}" if prefix else names(row)
            raise CollateError(f"{where} has the key {key!r} ({type(key).__name__}); field names are of type str")
    if not keys and not prefix:
        raise CollateError(f"{names(row)} has no fields; a record needs at least one")
    return keys


def _refuse_fields(first: Any, record: Any, prefix: str, row: int, names: Names) -> NoReturn:
    """Name the first field that one of the two mappings lacks."""
    ours, theirs = _fields(first, prefix, 0, names), _fields(record, prefix, row, names)
    lost = [name for name in ours if name not in set(theirs)]
    name, here, there = (lost[0], 0, row) if lost else (next(name for name in theirs if name not in set(ours)), row, 0)
    others = ", ".join(theirs if lost else ours) or "none"
    raise CollateError(
        f"field {prefix + name!r} is in {names(here)} but missing from {names(there)} (its fields: {others}); "
        "fill it in every record, or leave it out of every record"
    )


def _column(values: list[Any], field: str, names: Names) -> Any:
    """One field of all records, `(k, ...)`."""
    kind = cast("type[Any]", type(values[0]))
    column = None
    if kind is np.ndarray:
        column = _stack_equal(values)
    elif kind in _NUMBERS or kind is str:
        column = _stack_scalars(values, kind)
    elif isinstance(values[0], Mapping):
        return _collate(values, f"{field}.", names)
    return _stack_checked(values, field, names) if column is None else column


def _stack_equal(values: list[Array]) -> Array | None:
    """Plain arrays of one dtype and shape, copied once; None where anything differs."""
    dtype, shape = values[0].dtype, values[0].shape
    if dtype.kind == "U" or not _has_place(dtype):
        return None
    for value in values:
        # Equality besides identity: an array that was pickled carries a dtype object of its own.
        if type(value) is not np.ndarray or value.shape != shape or value.dtype != dtype:
            return None
    column = np.empty((len(values), *shape), dtype)
    for row, value in enumerate(values):
        column[row] = value
    return column


def _stack_scalars(values: list[Any], kind: type) -> Array | None:
    """Scalars of one type; None where types differ, an int is too large, or a str would lose its end."""
    if set(map(type, values)) != {kind}:
        return None
    if kind is str:
        return None if any(value.endswith("\0") for value in values) else np.array(values)
    try:
        return np.array(values, _NUMBERS[kind])
    except OverflowError:
        return None


def _has_place(dtype: np.dtype[Any]) -> bool:
    """Whether a batch may hold the dtype: numbers of every width (bfloat16 and its kin included), bools, text."""
    return dtype.kind in "biufcU" or (dtype.kind == "V" and not issubclass(dtype.type, np.void))


def _stack_checked(values: list[Any], field: str, names: Names) -> Array:
    """Values of any kind: each becomes an array or is refused, then all must agree."""
    for row, value in enumerate(values):
        if isinstance(value, Mapping):
            raise CollateError(
                f"field {field!r} is {_kind(values[0])} in {names(0)} and a mapping in {names(row)}; "
                "give it the same form in every record"
            )
    arrays = [one_array(value, field, partial(names, row)) for row, value in enumerate(values)]
    return _stack_agreeing(arrays, field, names)


def _stack_agreeing(arrays: list[Array], field: str, names: Names) -> Array:
    """Stack arrays of one dtype and shape; text may differ in width."""
    first = arrays[0]
    text = first.dtype.kind == "U"
    for row, array in enumerate(arrays):
        if array.dtype != first.dtype and not (text and array.dtype.kind == "U"):
            raise CollateError(
                f"field {field!r} is {first.dtype} in {names(0)} and {array.dtype} in {names(row)}; "
                "give it one dtype everywhere, in the source or in `preprocess`"
            )
        if array.shape != first.shape:
            raise CollateError(
                f"field {field!r} has shape {first.shape} in {names(0)} and {array.shape} in {names(row)}; a batch "
                "needs one shape: cut (or resize) it, pad it, or pack several records into rows of one width"
            )
    dtype = np.dtype(f"U{max(map(_width, arrays))}") if text else first.dtype
    column = np.empty((len(arrays), *first.shape), dtype)
    for row, array in enumerate(arrays):
        column[row] = array
    return column


def _width(text: Array) -> int:
    """Characters that one element of a `<U` array takes."""
    return text.dtype.itemsize // np.dtype("U1").itemsize


def one_array(value: Any, field: str, owner: Owner) -> Array:
    """One value as an array that a batch may hold; not copied where it is one."""
    if isinstance(value, list | tuple):
        return _array_from_list(cast("Sequence[Any]", value), field, owner)
    if isinstance(value, str):
        text = str.__str__(value)  # of an enum of strings, its value and not its name
        return _array_from_text(text, [text], field, owner)
    if hasattr(cast("type[Any]", type(value)), "__array__"):
        return _array_from_array(value, field, owner)
    for kind, dtype in _PYTHON_NUMBERS.items():
        if isinstance(value, kind):
            return _array_from_scalars(value, [value], dtype, field, owner)
    if isinstance(value, Mapping):
        advice = "turn a list of mappings into a mapping of lists in `preprocess`"
    else:
        advice = _ADVICE.get(type(value).__name__, _ANY_ADVICE)
    raise CollateError(f"field {field!r} is {_kind(value)} in {owner()}; {advice}")


def _array_from_array(value: Any, field: str, owner: Owner) -> Array:
    """An array, or what turns itself into one: a JAX array, a tensor, a pandas column."""
    if isinstance(value, np.ma.MaskedArray):
        raise CollateError(
            f"field {field!r} is a masked array in {owner()}, and its mask would be lost; "
            "fill it, value.filled(...), and keep the mask in a field of its own"
        )
    try:
        array = np.asarray(value)
    except Exception as error:
        raise CollateError(
            f"field {field!r} is a {_type_name(value)} in {owner()} that does not become a NumPy array "
            f"({type(error).__name__}: {error}); {_ANY_ADVICE}"
        ) from error
    return _checked_dtype(array, field, owner)


def _checked_dtype(array: Array, field: str, owner: Owner) -> Array:
    """The array itself, refused where no batch may hold its dtype."""
    if _has_place(array.dtype):
        return array
    held = ""
    if array.dtype.kind == "O" and array.size:
        held = f", the first element is {_kind(array.flat[0])}"
    advice = _DTYPE_ADVICE.get(array.dtype.kind, _ANY_ADVICE)
    raise CollateError(f"field {field!r} is an array of dtype {array.dtype} in {owner()}{held}; {advice}")


def _array_from_scalars(value: Any, leaves: list[Any], dtype: Any, field: str, owner: Owner) -> Array:
    """Numbers of one type (`leaves` flat, `value` in its nesting) as an array of its dtype."""
    try:
        return np.array(value, dtype)
    except OverflowError as error:
        beyond = next(leaf for leaf in leaves if not _INTS.min <= leaf <= _INTS.max)
        raise CollateError(
            f"field {field!r} holds {beyond} in {owner()}, which int64 cannot hold (it ends at {_INTS.max}); "
            "keep it as a str, split it in two, or make a numpy.uint64 of each if all fit"
        ) from error


def _array_from_text(value: Any, leaves: list[str], field: str, owner: Owner) -> Array:
    """Strings as `<U`, refused where NumPy would cut their end off."""
    for leaf in leaves:
        if leaf.endswith("\0"):
            raise CollateError(
                f"field {field!r} ends in a NUL character in {owner()} ({leaf[-20:]!r}), which NumPy would cut off; "
                "strip it in `preprocess`, or make numbers of the text"
            )
    return np.array(value, str)


def _array_from_list(value: Sequence[Any], field: str, owner: Owner) -> Array:
    """A list (of lists) of one kind of value; ragged, mixed and empty ones are refused."""
    shape, leaves = _flatten(value, field, owner)
    kinds = set(map(type, leaves))
    if len(kinds) == 1:
        kind = kinds.pop()
        if kind in _NUMBERS:
            return _array_from_scalars(value, leaves, _NUMBERS[kind], field, owner)
        if kind is str:
            return _array_from_text(value, leaves, field, owner)
    names = partial(_element, shape, owner)
    arrays = [one_array(leaf, field, partial(names, row)) for row, leaf in enumerate(leaves)]
    stacked = _stack_agreeing(arrays, field, names)
    return stacked.reshape(shape + stacked.shape[1:])


def _flatten(value: Sequence[Any], field: str, owner: Owner) -> tuple[tuple[int, ...], list[Any]]:
    """The shape of nested lists, and what they hold in C order."""
    shape = (len(value),)
    leaves = list(value)
    while leaves and all(isinstance(leaf, list | tuple) for leaf in leaves):
        lengths = set(map(len, leaves))
        if len(lengths) > 1:
            raise CollateError(
                f"field {field!r} is a ragged list in {owner()}: rows of length {min(lengths)} and {max(lengths)} "
                f"at depth {len(shape)}; cut or pad them to one length, or pack them flat beside a field of lengths"
            )
        shape += (lengths.pop(),)
        leaves = list(chain.from_iterable(leaves))
    if not leaves:
        raise CollateError(
            f"field {field!r} is an empty list in {owner()} (shape {shape}), which has no dtype; "
            f"state one: numpy.zeros({shape}, 'float32')"
        )
    return shape, leaves


def _element(shape: tuple[int, ...], owner: Owner, row: int) -> str:
    """How a message calls leaf `row` of a list of `shape`."""
    index = ", ".join(str(part) for part in np.unravel_index(row, shape))
    return f"element [{index}] of {owner()}"


def _type_name(value: Any) -> str:
    kind = cast("type[object]", type(value))
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _kind(value: Any) -> str:
    """What a message says a value is: its type, and the value where that is short."""
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        array = cast("Array", value)
        return f"an array of shape {array.shape} and dtype {array.dtype}"
    if isinstance(value, Mapping):
        return f"a mapping ({_type_name(value)})"
    if length_hint(value) <= _SHOWN:
        text = repr(value)
        if len(text) <= _SHOWN and " at 0x" not in text:
            return f"{text} ({_type_name(value)})"
    return f"a value of type {_type_name(value)}"


def checked_columns(columns: Mapping[str, Any], rows: int, source: str) -> dict[str, Any]:
    """What `source.take` returned, as a batch: arrays `(rows, ...)`, C-contiguous, writable and owned by the receiver.

    An array that is all of this is passed on as it is; a view, a read-only, a memory-mapped or a foreign one is copied.
    (An array that the source itself keeps cannot be told from a new one: `take` must return new ones.)

    Args:
        columns: field name -> array, or a nested mapping of these.
        rows: how many records were asked for.
        source: how a message calls the source.

    Raises:
        CollateError: a column is no array, has another number of rows, or a dtype that no batch may hold.
    """
    if not isinstance(columns, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CollateError(f"take() of {source} returned {_kind(columns)}; it must return a mapping of names to arrays")
    if not columns:
        raise CollateError(f"take() of {source} returned no fields; it must return a mapping of names to arrays")
    return _checked_columns(columns, rows, source, "")


def _checked_columns(columns: Mapping[str, Any], rows: int, source: str, prefix: str) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for name, column in columns.items():
        # The usual case costs one chain of attribute reads: a plain array of numbers that owns its memory.
        if type(column) is np.ndarray and type(name) is str:
            flags, shape, dtype = column.flags, column.shape, column.dtype
            if flags.carray and flags.owndata and shape and shape[0] == rows and dtype.kind in "biufcU":
                checked[name] = column
                continue
        checked[name] = _owned_column(name, column, rows, source, prefix)
    return checked


def _owned_column(name: Any, column: Any, rows: int, source: str, prefix: str) -> Any:
    """One column that is not an owned array of numbers at once: nested, copied, or refused."""
    owner = f"take() of {source}"
    if not isinstance(name, str):
        raise CollateError(f"{owner} returned the key {name!r} ({type(name).__name__}); field names are of type str")
    field = prefix + name
    if isinstance(column, Mapping):
        return _checked_columns(cast("Mapping[str, Any]", column), rows, source, f"{field}.")
    if not hasattr(cast("type[Any]", type(column)), "__array__"):
        raise CollateError(f"field {field!r} is {_kind(column)} in {owner}; each field is one array of {rows} rows")
    array = _array_from_array(column, field, lambda: owner)
    if array.shape[:1] != (rows,):
        raise CollateError(
            f"field {field!r} has shape {array.shape} in {owner}, but {rows} records were asked for; "
            f"its first axis must be {rows}"
        )
    if array is column and array.flags.carray and array.flags.owndata:
        return array
    return np.array(array, order="C")
