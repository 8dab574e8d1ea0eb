"""How one feature is stored, and what becomes of it: a `Form` for each kind of feature that tensorflow-datasets has.

A form reads one element (`one`), or all elements of the sequences that the feature stands in (`many`), decoded; and the
same as they are stored (`raw_one`, `raw_many`), which is what a caller's own decoders are given.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import SourceError
from dew_tfds.images import decode_image, fits, shown
from dew_tfds.stored import Stored, Values, as_array, only, scalar, values_at

Read: TypeAlias = Callable[[Stored], Any]
Shape: TypeAlias = tuple[int | None, ...]

_LARGEST: Final = 1 << 31
_BYTES: Final = np.dtype(object)
_INT32: Final = np.dtype(np.int32)


@attrs.frozen(kw_only=True)
class Form:
    """One kind of feature.

    Args:
        dtype: of one element in a record, or `"str"` or `"bytes"`.
        shape: of one element; empty for scalars and strings.
        regular: whether elements of a sequence make one array.
        separable: whether elements of a sequence can be told apart.
        one, raw_one: of a feature outside of sequences.
        many, raw_many: of a feature inside, flat.
    """

    dtype: str
    shape: Shape = ()
    regular: bool
    separable: bool = True
    one: Read
    many: Read
    raw_one: Read
    raw_many: Read


def form_of(feature: Any, info: Any, key: str, *, tfds: Any, video: bool) -> Form:
    """The form of a feature without parts.

    Args:
        feature: a `tfds.features.FeatureConnector`.
        info: its entry of `get_serialized_info()`.
        key: what it is stored under.
        tfds: the package tensorflow_datasets.
        video: whether it is the frames of a video, which have one size even where none is declared.

    Raises:
        SourceError: no kind that is known.
    """
    shape: Shape = tuple(feature.shape)
    dtype = np.dtype(feature.np_dtype)
    if isinstance(feature, tfds.features.Image):
        return _of_bytes(
            key,
            lambda data: decode_image(data, shape, dtype),
            _gather(shape, dtype, alike=video),
            dtype=str(dtype),
            shape=shape,
            regular=video or None not in shape,
        )
    if not isinstance(feature, tfds.features.Tensor):
        raise SourceError(f"is of the kind {type(feature).__name__}, which Dew cannot read")
    if is_sized(info):
        return _sized(key, shape, dtype, _is_compressed(feature))
    if dtype == _BYTES:
        if shape:
            return _strings(key, shape)
        is_text = isinstance(feature, tfds.features.Text)
        return _of_bytes(key, _text if is_text else bytes, list, dtype="str" if is_text else "bytes")
    if np.dtype(info.np_dtype) == _BYTES:
        compressed = _is_compressed(feature)
        return _of_bytes(
            key,
            lambda data: _unpacked(data, shape, dtype, compressed),
            _gather(shape, dtype),
            dtype=str(dtype),
            shape=shape,
            regular=None not in shape,
        )
    return _numbers(key, shape, dtype)


def is_sized(info: Any) -> bool:
    """Whether a tensor's shape is stored beside its values, because several of its sizes are unknown."""
    return isinstance(info, Mapping)


def _numbers(key: str, shape: Shape, dtype: "np.dtype[Any]") -> Form:
    values = values_at(key, dtype)
    sizes = tuple(-1 if size is None else size for size in shape)

    def one(stored: Stored) -> Any:
        return as_array(values(stored), dtype).reshape(sizes) if sizes else scalar(values(stored), dtype)

    def raw_one(stored: Stored) -> Any:
        return one(stored) if sizes else one(stored).item()

    def many(stored: Stored) -> Any:
        return as_array(values(stored), dtype).reshape(-1, *sizes)

    return Form(
        dtype=str(dtype),
        shape=shape,
        regular=True,
        separable=None not in shape,
        one=one,
        many=many,
        raw_one=raw_one,
        raw_many=many,
    )


def _strings(key: str, shape: Shape) -> Form:
    """Arrays of strings, as arrays of bytes objects."""
    values = values_at(key, _BYTES)
    sizes = tuple(-1 if size is None else size for size in shape)

    def one(stored: Stored) -> Any:
        return _objects(values(stored)).reshape(sizes)

    def many(stored: Stored) -> Any:
        return _objects(values(stored)).reshape(-1, *sizes)

    return Form(
        dtype="bytes",
        shape=shape,
        regular=True,
        separable=None not in shape,
        one=one,
        many=many,
        raw_one=one,
        raw_many=many,
    )


def _of_bytes(
    key: str,
    decode: Callable[[bytes], Any],
    gather: Callable[[list[Any]], Any],
    *,
    dtype: str,
    shape: Shape = (),
    regular: bool = False,
) -> Form:
    """A feature each of whose elements is stored as one bytes object."""
    values = values_at(key, _BYTES)
    return Form(
        dtype=dtype,
        shape=shape,
        regular=regular,
        one=lambda stored: decode(only(values(stored))),
        many=lambda stored: gather([decode(data) for data in values(stored)]),
        raw_one=lambda stored: only(values(stored)),
        raw_many=lambda stored: list(values(stored)),
    )


def _sized(key: str, shape: Shape, dtype: "np.dtype[Any]", compressed: bool) -> Form:
    """A tensor with several unknown sizes, whose shape is stored beside it."""
    values, shapes = values_at(f"{key}/value", _BYTES), values_at(f"{key}/shape", _INT32)

    def unpacked(data: bytes, found: npt.NDArray[Any]) -> Any:
        sizes: tuple[int, ...] = tuple(found.tolist())
        if not fits(sizes, shape) or min(sizes) < 0:
            raise SourceError(f"the shape {shown(shape)} is declared and {shown(sizes)} stored")
        return _unpacked(data, sizes, dtype, compressed)

    def raw_one(stored: Stored) -> dict[str, Any]:
        return {"shape": as_array(shapes(stored), _INT32), "value": only(values(stored))}

    def raw_many(stored: Stored) -> list[dict[str, Any]]:
        all_shapes = as_array(shapes(stored), _INT32).reshape(-1, len(shape))
        return [{"shape": one, "value": data} for one, data in zip(all_shapes, values(stored), strict=True)]

    def one(stored: Stored) -> Any:
        found = raw_one(stored)
        return unpacked(found["value"], found["shape"])

    def many(stored: Stored) -> list[Any]:
        return [unpacked(found["value"], found["shape"]) for found in raw_many(stored)]

    return Form(
        dtype=str(dtype),
        shape=shape,
        regular=False,
        one=one,
        many=many,
        raw_one=raw_one,
        raw_many=raw_many,
    )


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SourceError(
            f"text is declared, and bytes that are not UTF-8 are stored ({error}); read them as bytes with "
            "tfds.decode.SkipDecoding() in decoders"
        ) from error


def _gather(shape: Shape, dtype: "np.dtype[Any]", *, alike: bool = False) -> Callable[[list[Any]], Any]:
    """Elements of a sequence as one array, where their shape is declared or they are known to be alike."""
    if None in shape and not alike:
        return list
    sizes = tuple(0 if size is None else size for size in shape)
    return lambda elements: np.stack(elements) if elements else np.zeros((0, *sizes), dtype)


def _objects(values: Values) -> npt.NDArray[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _is_compressed(feature: Any) -> bool:
    return str(getattr(feature.to_json_content(), "encoding", "none")).lower() == "zlib"


def _unpacked(data: bytes, shape: Shape, dtype: "np.dtype[Any]", compressed: bool) -> npt.NDArray[Any]:
    """A tensor from its bytes; no more is decompressed than its shape takes."""
    known = None not in shape
    size = math.prod(size or 0 for size in shape) * dtype.itemsize if known else _LARGEST
    if size > _LARGEST:
        raise SourceError(f"a tensor of {size} bytes is stored, more than {_LARGEST}")
    if compressed:
        unpack = zlib.decompressobj()
        data = unpack.decompress(data, size + 1)
        if len(data) <= size and not unpack.eof:
            raise SourceError(f"the compressed bytes end early, after {len(data)}")
    if len(data) > size or (known and len(data) != size):
        raise SourceError(f"a tensor of {dtype} {shown(shape)} takes {size} bytes, and {len(data)} or more are stored")
    return np.frombuffer(data, dtype).reshape([-1 if size is None else size for size in shape]).copy()


def sequence_lengths(key: str, levels: int) -> Sequence[Callable[[Stored], npt.NDArray[np.int64]]]:
    """For each inner level of sequences within sequences, the outermost first: their lengths."""
    int64 = np.dtype(np.int64)

    def reader(level: int) -> Callable[[Stored], npt.NDArray[np.int64]]:
        values = values_at(f"{key}/ragged_row_lengths_{level}", int64)
        return lambda stored: as_array(values(stored), int64)

    return [reader(level) for level in range(levels)]
