"""Stored bytes -> one record, by a plan that is made once from the builder's features.

A record's fields have the dtypes that the builder declares, however they are stored: numbers as NumPy scalars and
arrays, text as `str`, strings that are not declared as text as `bytes`, images decoded, sequences as arrays where all
their elements have one declared shape and as lists where not. A field that is not stored is refused and never `None`,
unless it is declared optional.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

import attrs

from dew.data.errors import DamagedSourceError, OptionsError, OptionsTypeError, SourceError
from dew_tfds.builder import Builder, library
from dew_tfds.forms import Form, Read, form_of, is_sized, sequence_lengths
from dew_tfds.images import shown
from dew_tfds.stored import Stored, nest, parser

Words: TypeAlias = Mapping[str, Any]
"""Field -> what it is, in words, nested as the record is."""


@attrs.frozen(kw_only=True)
class RecordReader:
    """Makes records of one builder.

    Args:
        name: of the dataset, for messages.
        words: each field in words.
        labels: path of each field with class labels -> their names.
        parse, read: bytes to what is stored, and that to the record.
        decoders: path of each field with a decoder of the caller's -> how it is read.
    """

    name: str
    words: Words
    labels: Mapping[str, tuple[str, ...]]
    _parse: Callable[[bytes], Stored] = attrs.field(alias="parse")
    _read: Read = attrs.field(alias="read")
    _decoders: Mapping[str, Read] = attrs.field(alias="decoders")

    def __call__(self, data: bytes) -> dict[str, Any]:
        """The record in `data`.

        Raises:
            DamagedSourceError: a field is missing, or not what is declared.
            Exception: whatever one of the caller's decoders raised, with a note that names it.
        """
        return self._read(self._parsed(data))

    def check(self, data: bytes) -> None:
        """Reads record 0 as a test of the caller's decoders and of what is declared.

        Raises:
            OptionsError: a decoder cannot decode it, or imports TensorFlow; names the decoder.
            DamagedSourceError: as a call.
        """
        stored = self._parsed(data)
        for path, read in self._decoders.items():
            before = "tensorflow" in sys.modules
            try:
                read(stored)
            except Exception as error:
                raise OptionsError(
                    f"the decoder of {path!r} cannot decode record 0 of {self.name} without TensorFlow: "
                    f"{type(error).__name__}: {error}; leave it out, or write its decode_example_np with NumPy"
                ) from error
            if not before and "tensorflow" in sys.modules:
                raise OptionsError(
                    f"the decoder of {path!r} imports TensorFlow, which must not be loaded beside a JAX run; leave it "
                    "out, or write its decode_example_np with NumPy"
                )
        self._read(stored)

    def _parsed(self, data: bytes) -> Stored:
        try:
            return self._parse(data)
        except Exception as error:
            raise DamagedSourceError(
                f"a record of {self.name} is no tf.train.Example ({len(data)} bytes): {error}"
            ) from error


def record_reader(builder: Builder, decoders: Any) -> RecordReader:
    """The plan for the records of `builder`.

    Args:
        builder: its features.
        decoders: the caller's, by field; None for none.

    Raises:
        SourceError: a field is of no kind that can be read; names it.
        DamagedSourceError: the names of a field's classes are not as many as its classes.
        OptionsError: a decoder is for no field, or cannot be used; names it.
        OptionsTypeError: decoders are no mapping of `tfds.decode.Decoder`.
    """
    tfds = library()
    if isinstance(decoders, tfds.decode.PartialDecoding):
        raise OptionsError(
            "decoders=PartialDecoding(...) needs TensorFlow; leave fields out in preprocess, and the decoding of dear "
            "ones with decoders={'image': tfds.decode.SkipDecoding()}"
        )
    planner = _Planner(builder, tfds)
    read, words = planner.node(builder.features, builder.features.get_serialized_info(), "", decoders)
    return RecordReader(
        name=builder.metadata.full_name,
        words=words,
        labels=planner.labels,
        parse=parser(),
        read=read,
        decoders=planner.decoders,
    )


class _Planner:
    """Walks the features once."""

    def __init__(self, builder: Builder, tfds: Any) -> None:
        self._name = builder.metadata.full_name
        self._videos = builder.videos
        self._tfds = tfds
        self.labels: dict[str, tuple[str, ...]] = {}
        self.decoders: dict[str, Read] = {}

    def node(self, feature: Any, info: Any, path: str, decoder: Any, around: str = "") -> tuple[Read, Any]:
        """How a feature is read, and what it is in words.

        Args:
            feature: with parts or without.
            info: its part of `get_serialized_info()`.
            path: names of the fields that lead to it, joined by `/`.
            decoder: the caller's for it, or a mapping of them for its parts.
            around: the sequences that it stands in, in words.
        """
        features = self._tfds.features
        if isinstance(feature, features.FeaturesDict):
            return self._parts(feature, info, path, decoder, around)
        if isinstance(feature, features.Sequence):
            kind = type(feature).__name__ if path not in self._videos else "Video"
            return self.node(feature.feature, info, path, decoder, f"{around}{kind} of ")
        return self._leaf(feature, info, path, decoder, around)

    def _parts(self, feature: Any, info: Any, path: str, decoder: Any, around: str) -> tuple[Read, Words]:
        names = sorted(feature.keys())
        given = self._decoders_of_parts(decoder, names, path)
        reads: list[tuple[str, Read]] = []
        words: dict[str, Any] = {}
        for name in names:
            inner = f"{path}/{name}" if path else name
            read, words[name] = self.node(feature[name], info[name], inner, given.get(name), around)
            reads.append((name, read))
        return (lambda stored: {name: read(stored) for name, read in reads}), words

    def _decoders_of_parts(self, decoder: Any, names: list[str], path: str) -> Mapping[str, Any]:
        if decoder is None:
            return {}
        where = f"decoders of {path!r}" if path else "decoders"
        if not isinstance(decoder, Mapping):
            raise OptionsTypeError(
                f"{where} must be a mapping of field name to decoder, got {decoder!r:.80} ({type(decoder).__name__}); "
                f"the fields are {names}"
            )
        given = cast("Mapping[str, Any]", decoder)
        if unknown := [name for name in given if name not in names]:
            raise OptionsError(f"{where} of {self._name} name {unknown}, which are no fields; there are {names}")
        return given

    def _leaf(self, feature: Any, info: Any, path: str, decoder: Any, around: str) -> tuple[Read, str]:
        tensor: Any = info["value"] if is_sized(info) else info
        rank: int = tensor.sequence_rank
        sizes: tuple[int | None, ...] = tensor.shape[:rank]
        key = f"{path}/ragged_flat_values" if rank > 1 else path
        try:
            form = form_of(feature, info, key, tfds=self._tfds, video=path in self._videos)
            _check_separable(form, info, rank)
        except SourceError as error:
            raise SourceError(f"field {path!r} of {self._name} {error}") from error
        if getattr(feature, "num_classes", None) is not None:
            self.labels[path] = self._class_names(feature, path)
        if decoder is None:
            read, holds = _declared(path, _nested(form, path, sizes)), _in_words(form, sizes)
        else:
            self._check_decoder(decoder, feature, path, within_sequence=rank > (tensor.dataset_lvl > 0))
            read, holds = _decoded(path, decoder, form, of_many=rank > 0), f"by {type(decoder).__name__}"
            self.decoders[path] = read
        kind = type(feature).__name__ + (f" of {len(self.labels[path])}" if path in self.labels else "")
        words = f"{holds}, {around}{kind}"
        if tensor.optional:
            words += "; None where there is none"
            read = _optional(f"{key}/value" if is_sized(info) else key, read)
        return read, words

    def _class_names(self, feature: Any, path: str) -> tuple[str, ...]:
        """The names of a field's classes, which stand in a file of their own, and need not be as many."""
        names = tuple(feature.names)
        if len(set(names)) != feature.num_classes:
            raise DamagedSourceError(
                f"field {path!r} of {self._name} has {feature.num_classes} classes, and its labels.txt has "
                f"{len(names)} names, {len(set(names))} of them different; copy it again, or prepare the dataset again"
            )
        return names

    def _check_decoder(self, decoder: Any, feature: Any, path: str, *, within_sequence: bool) -> None:
        """Refuses what tensorflow-datasets cannot run; its own test would be the first record's AttributeError."""
        if not isinstance(decoder, self._tfds.decode.Decoder):
            raise OptionsTypeError(
                f"the decoder of {path!r} must be an instance of tfds.decode.Decoder, such as "
                f"tfds.decode.SkipDecoding(), got {decoder!r:.80}"
            )
        if within_sequence:
            raise OptionsError(
                f"the decoder {type(decoder).__name__} of {path!r} stands inside a sequence, where tensorflow-datasets "
                "runs decoders with TensorFlow alone; leave it out, and work on the decoded elements in preprocess"
            )
        decoder.setup(feature=feature)


def _check_separable(form: Form, info: Any, rank: int) -> None:
    """Refuses sequences whose elements could not be told apart."""
    if rank and not form.separable:
        raise SourceError(
            "is a sequence of tensors of unknown size, which are stored without their sizes; prepare it with "
            "encoding='bytes'"
        )
    if rank > 1 and is_sized(info):
        raise SourceError("is a tensor of unknown shape within sequences of sequences, which Dew cannot read")


def _nested(form: Form, path: str, sizes: tuple[int | None, ...]) -> Read:
    """A feature outside of sequences, in one, or in several within each other."""
    if not sizes:
        return form.one
    lengths = sequence_lengths(path, len(sizes) - 1)
    outer, inner = sizes[0], sizes[1:]

    def read(stored: Stored) -> Any:
        found = form.many(stored)
        if lengths:
            found = nest(found, [one(stored) for one in lengths], inner)
        if outer is not None and len(found) != outer:
            raise SourceError(f"a sequence of {outer} elements is declared, and one of {len(found)} stored")
        return found

    return read


def _declared(path: str, read: Read) -> Read:
    """Names the field in whatever goes wrong."""

    def field(stored: Stored) -> Any:
        try:
            return read(stored)
        except Exception as error:
            raise DamagedSourceError(f"field {path!r}: {error}") from error

    return field


def _decoded(path: str, decoder: Any, form: Form, *, of_many: bool) -> Read:
    """What the caller's decoder makes of the stored value, or of each in a nested dataset."""

    def field(stored: Stored) -> Any:
        try:
            if of_many:
                return [decoder.decode_example_np(raw) for raw in form.raw_many(stored)]
            return decoder.decode_example_np(form.raw_one(stored))
        except Exception as error:
            error.add_note(f"in the decoder of {path!r}, {type(decoder).__name__}")
            raise

    return field


def _optional(key: str, read: Read) -> Read:
    return lambda stored: read(stored) if key in stored else None


def _in_words(form: Form, sizes: tuple[int | None, ...]) -> str:
    """What a record holds for a feature within sequences of these sizes; the innermost of them may be one array."""
    arrays = form.regular and bool(sizes)
    shape = (sizes[-1], *form.shape) if arrays else form.shape
    lists = "list of " * (len(sizes) - arrays)
    return lists + (f"{form.dtype} {shown(shape)}" if shape else form.dtype)
