"""Text conditioning: captions become arrays, once per batch, on the host.

A batch of images carries its captions as strings, and strings never reach a device. `tokenized` puts what an encoder
makes of them in their place, in the same process and at the same moment as the step is built, so that it costs no time
of the training thread. Which captions are dropped, for guidance without a classifier, is a draw of the record's own:
it follows the place in the order and nothing else. Encoder and dropout are part of the position.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self, cast

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.checkpointable import Checkpointable
from dew.data.dataset import Batch, DataPartition, Dataset, StreamFactory
from dew.data.encoders import ConditionEncoder, TokenizerEncoder
from dew.data.errors import FieldError, OptionsError, OptionsTypeError, PositionMismatchError
from dew.data.mixing import MixedValidation
from dew.data.order import draws_at
from dew.data.position import RecordPosition, State, record_position
from dew.data.schedule import Ramp, Schedule
from dew.data.step import LoadStep
from dew.data.stream import RecordStream, ValidationPass

__all__ = ["Captions", "ConditionEncoder", "TokenizedStream", "TokenizerEncoder", "tokenized"]

_SALT: Final = 0x63617074696F6E73
"""Tells the draws of caption dropout from all other draws of a record; part of version 1 of the draws."""

_PARTS: Final = ("encoder", "captions")
"""What tokenized data adds to what must match in a position."""

_ABSENT: Final = "(absent)"


def tokenized(
    dataset: Dataset,
    encoder: ConditionEncoder,
    *,
    field: str = "caption",
    into: str = "text",
    dropout: float = 0.0,
    dropped_as: str = "",
    keep: bool = False,
) -> Dataset:
    """`dataset` with what `encoder` makes of the captions of each batch, in training and validation.

    `batch[into]` is the mapping that the encoder returns, `(rows, ...)` each, and the captions themselves are taken
    out. Everything else (order, positions, ids, ramps, life cycle) stays as it is. Of a mixture, tokenize the whole,
    not its parts. For two encoders call it twice, the first time with `keep=True`.

    Args:
        dataset: its batches hold one string a row under `field`.
        encoder: makes the arrays; its vocabulary, context length and pad id are saved in the position.
        field: where the captions are.
        into: where the arrays go.
        dropout: share of the training captions that are replaced by `dropped_as`, by a draw keyed by the seed and the
            record's place. Validation keeps every caption.
        dropped_as: what a dropped caption becomes.
        keep: leaves the captions in the batch, for another encoder; they cannot be placed on a device.

    Raises:
        OptionsError, OptionsTypeError: an argument cannot be used.
    """
    if not isinstance(dataset, Dataset):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsTypeError(f"tokenized takes a Dataset, got {type(dataset).__name__}")
    if not isinstance(encoder, ConditionEncoder):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsTypeError(
            f"encoder must be a ConditionEncoder (tokenize, context_length, pad_id, vocabulary) such as "
            f"TokenizerEncoder, got {encoder!r} ({type(encoder).__name__})"
        )
    captions = Captions(encoder=encoder, field=field, into=into, dropout=dropout, dropped_as=dropped_as, keep=keep)
    val = dataset.val
    if val is not None:
        val = _validation(val, attrs.evolve(captions, dropout=0.0))
    return attrs.evolve(dataset, train=_Tokenized(dataset.train, captions), val=val)


def _check_name(_instance: object, attribute: "attrs.Attribute[str]", value: object) -> None:
    if not isinstance(value, str) or not value:
        raise OptionsTypeError(f"{attribute.name} must be the name of a field, got {value!r}")


def _check_dropout(_instance: object, _attribute: "attrs.Attribute[float]", value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionsTypeError(f"dropout must be a share from 0 to 1, got {value!r} ({type(value).__name__})")
    if not 0 <= value <= 1:
        raise OptionsError(f"dropout must be a share from 0 to 1, got {value}")


@attrs.frozen(kw_only=True)
class Captions:
    """How the captions of a batch become arrays; the arguments are those of `tokenized`."""

    encoder: ConditionEncoder
    field: str = attrs.field(validator=_check_name)
    into: str = attrs.field(validator=_check_name)
    dropout: float = attrs.field(default=0.0, validator=_check_dropout)
    dropped_as: str = attrs.field(default="", validator=attrs.validators.instance_of(str))
    keep: bool = attrs.field(default=False, validator=attrs.validators.instance_of(bool))

    def __attrs_post_init__(self) -> None:
        if self.keep and self.into == self.field:
            raise OptionsError(f"keep=True leaves the captions in {self.field!r}, so into= must name another field")

    def identity(self) -> dict[str, Any]:
        """What must match to resume: the encoder, and what is done to the captions before it."""
        encoder = self.encoder
        return {
            "encoder": {
                "vocabulary": encoder.vocabulary,
                "context_length": encoder.context_length,
                "pad_id": encoder.pad_id,
            },
            "captions": {"field": self.field, "dropout": float(self.dropout), "dropped_as": self.dropped_as},
        }

    def applied(self, batch: Batch, dropped: npt.NDArray[np.bool_] | None) -> Batch:
        """`batch` with the arrays of its captions; those of the rows in `dropped`, (rows,), are replaced.

        Raises:
            FieldError: there are no captions, or the encoder returned something else than arrays of one row a caption.
        """
        texts = self._texts(batch)
        if dropped is not None:
            texts = [self.dropped_as if gone else text for text, gone in zip(texts, dropped, strict=True)]
        made = _checked_arrays(self.encoder.tokenize(texts), len(texts), self.encoder)
        if not self.keep:
            del batch[self.field]
        if self.into in batch:
            raise FieldError(
                f"the batch has a field {self.into!r} already, where the encoder's arrays were to go; "
                "name another with into="
            )
        batch[self.into] = made
        return batch

    def dropped_at(self, seed: int, places: Iterable[int]) -> npt.NDArray[np.bool_] | None:
        """Which of the records at `places` lose their captions, (k,) bool; None where none can."""
        if not self.dropout:
            return None
        return np.array([draws_at(seed, place, _SALT).random() < self.dropout for place in places], np.bool_)

    def _texts(self, batch: Batch) -> list[str]:
        found = batch.get(self.field)
        if found is None:
            raise FieldError(
                f"the batch has no captions in {self.field!r}; it has {sorted(batch)}. Name the field with field=, or "
                'let the source keep them, as ImageOptions(captions="keep") does'
            )
        array = np.asarray(found)
        if array.dtype.kind != "U" or array.ndim != 1:
            raise FieldError(
                f"the captions in {self.field!r} must be one str a row, got {array.dtype} of shape {array.shape}; "
                "choose one caption a record in `preprocess`"
            )
        return cast("list[str]", array.tolist())


def _checked_arrays(made: object, rows: int, encoder: object) -> Batch:
    name = type(encoder).__name__
    if not isinstance(made, Mapping):
        raise FieldError(f"{name}.tokenize must return a mapping of name to array, got {type(made).__name__}")
    arrays: Batch = {}
    for key, value in cast("Mapping[Any, Any]", made).items():
        array = np.asarray(value)
        if array.dtype.kind not in "biuf" or array.shape[:1] != (rows,):
            raise FieldError(
                f"{name}.tokenize was given {rows} captions and returned {key!r} as {array.dtype} of shape "
                f"{array.shape}; each array is of numbers and has one row a caption"
            )
        arrays[str(key)] = array if array.flags.carray and array.flags.owndata else np.array(array, order="C")
    return arrays


class TokenizedStep(LoadStep):
    """A step whose captions become arrays where it is built."""

    _conditions: tuple[Captions, ...]

    @classmethod
    def of(cls, step: LoadStep, conditions: tuple[Captions, ...]) -> "TokenizedStep":
        """`step`, and after it each of `conditions`."""
        return cls._made({**step.__getstate__(), "_conditions": conditions})

    def with_threads(self, threads: int) -> "TokenizedStep":
        """The same steps, read by another number of threads, with nothing opened yet."""
        return self._made({**self.__getstate__(), "_threads": threads})

    def __call__(self, step: int) -> Batch:
        """The local rows of step `step`, each field `(rows, ...)`."""
        batch = super().__call__(step)
        try:
            for captions in self._conditions:
                dropped = captions.dropped_at(self._seed, self._rows.rows(step)[0])
                batch = captions.applied(batch, dropped)
        except BaseException as error:
            error.add_note(f"tokenizing step {step} of {self}")
            raise
        return batch

    @classmethod
    def _made(cls, state: dict[str, Any]) -> "TokenizedStep":
        made = object.__new__(cls)
        made.__setstate__(state)
        return made


class TokenizedStream(RecordStream):
    """A record stream whose captions become arrays; made by `tokenized`.

    Attributes:
        conditions: how, one for each call of `tokenized`.
    """

    def __init__(self, stream: RecordStream, conditions: tuple[Captions, ...]) -> None:
        super().__init__(stream._setup)
        self.conditions = conditions
        parts: dict[str, dict[str, Any]] = {part: {} for part in _PARTS}
        for captions in conditions:
            own = captions.identity()
            for part in _PARTS:
                parts[part][captions.into] = own[part]
        self._parts = parts
        made_by = dict(self._start.made_by)
        for captions in conditions:
            made_by |= getattr(captions.encoder, "made_by", {})
        self._run = self._start = attrs.evolve(self._start, made_by=made_by)

    @property
    def position(self) -> RecordPosition:
        """Where the stream stands; the encoder is one of the parts that must match."""
        position = super().position
        return attrs.evolve(position, order={**position.order, **self._parts})

    def set_state(self, state: Mapping[str, Any], accept: Iterable[str] = ()) -> None:
        """As `RecordStream.set_state`; another encoder or dropout than the saved one is refused too."""
        saved = record_position(state)
        accept = accept if isinstance(accept, str) else frozenset(accept)
        accepted = _checked_parts(saved.order, self._parts, accept)
        bare = {name: value for name, value in saved.order.items() if name not in _PARTS}
        rest = accept if isinstance(accept, str) else accept - set(_PARTS)
        super().set_state(attrs.evolve(saved, order=bare).to_json(), rest)
        self._run = attrs.evolve(self._run, accepted=(*self._run.accepted, *accepted))

    def with_schedule(self, schedule: Schedule | Ramp) -> "TokenizedStream":
        """A fresh stream over the same records in the same order, cut into steps by `schedule`."""
        return TokenizedStream(super().with_schedule(schedule), self.conditions)

    def _load_step(self) -> LoadStep:
        return TokenizedStep.of(super()._load_step(), self.conditions)


class TokenizedPass(ValidationPass):
    """A validation pass whose captions become arrays; made by `tokenized`."""

    def __init__(self, one: ValidationPass, captions: Captions) -> None:
        before = one.conditions if isinstance(one, TokenizedPass) else ()
        self.conditions = (*before, captions)
        super().__init__(TokenizedStep.of(one._load, self.conditions), steps=len(one), loading=one._loading)


def _checked_parts(
    saved: Mapping[str, Any], current: Mapping[str, Any], accept: Iterable[str]
) -> list[Mapping[str, Any]]:
    """The differences that `accept` names, for the position to remember; any other is refused."""
    accepted: list[Mapping[str, Any]] = []
    for part in _PARTS:
        before, now = saved.get(part, _ABSENT), current[part]
        if before == now:
            continue
        if isinstance(accept, str) or part not in accept:
            raise PositionMismatchError(
                f"the saved position has another {part}: saved {before!r}, this stream has {now!r}. Captions would "
                "become other numbers than the model was trained on. If that is what you want, restore with "
                f"accept={{{part!r}}}, which overrides this part alone",
                part=part,
                saved=before,
                current=now,
            )
        accepted.append({"part": part, "saved": before, "current": now})
    return accepted


@attrs.frozen
class _Tokenized:
    """The `train` or `val` of a tokenized dataset."""

    factory: StreamFactory
    captions: Captions

    def __call__(self, partition: DataPartition) -> Iterator[Batch]:
        stream = self.factory(partition)
        if isinstance(stream, RecordStream):
            before = stream.conditions if isinstance(stream, TokenizedStream) else ()
            return TokenizedStream(stream, (*before, self.captions))
        if isinstance(stream, ValidationPass):
            return TokenizedPass(stream, self.captions)
        if self.captions.dropout:
            raise OptionsTypeError(
                f"dropout={self.captions.dropout} is drawn from each record's place in the order, and this dataset's "
                f"training iterator, a {type(stream).__name__}, has none; use random access, or drop captions in "
                "the source"
            )
        positioned = hasattr(stream, "get_state") and hasattr(stream, "set_state")
        return (TokenizedIteratorWithState if positioned else TokenizedIterator)(stream, self.captions)


def _validation(val: StreamFactory, captions: Captions) -> StreamFactory:
    """Of a mixture, its sets by name too."""
    together = _Tokenized(val, captions)
    if not isinstance(val, MixedValidation):
        return together
    return MixedValidation(together, {label: _Tokenized(one, captions) for label, one in val.items()})


class TokenizedIterator(Iterator[Batch]):
    """An iterator of somebody else's whose captions become arrays; it owns that iterator."""

    def __init__(self, source: Iterator[Batch], captions: Captions) -> None:
        self._source: Any = source
        self._captions = captions

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        return self._captions.applied(dict(next(self._source)), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._source!r}, field={self._captions.field!r})"

    def close(self) -> None:
        """Closes the iterator, where it can be closed."""
        close: Callable[[], None] | None = getattr(self._source, "close", None)
        if close is not None:
            close()


class TokenizedIteratorWithState(Checkpointable, TokenizedIterator):
    """The same for an iterator that has a state; the encoder is saved with it."""

    def get_state(self) -> State:
        """The iterator's own state, and the encoder."""
        state = self._source.get_state()
        parts = self._identity()
        kind = cast("Mapping[str, Any]", state).get("kind") if isinstance(state, Mapping) else None
        if kind == "records":
            return {**state, "order": {**state["order"], **parts}}
        if kind == "shard":
            return {**state, "state": {"tokenized": parts, "state": state["state"]}}
        return {"tokenized": parts, "state": state}

    def set_state(self, state: State, accept: Iterable[str] = ()) -> None:
        """Goes on from there.

        Raises:
            PositionMismatchError: it was saved with another encoder, unless `accept` names the part.
        """
        accept = accept if isinstance(accept, str) else frozenset(accept)
        inner, saved = self._taken_apart(state)
        accepted = _checked_parts(saved, self._identity(), accept)
        if accepted and isinstance(inner, Mapping) and "accepted" in inner:
            saved_as = cast("Mapping[str, Any]", inner)
            inner = {**saved_as, "accepted": [*saved_as["accepted"], *accepted]}
        rest = accept if isinstance(accept, str) else accept - set(_PARTS)
        if rest:
            self._source.set_state(inner, rest)
        else:
            self._source.set_state(inner)

    def _identity(self) -> dict[str, Any]:
        own = self._captions.identity()
        return {part: {self._captions.into: own[part]} for part in _PARTS}

    def _taken_apart(self, state: State) -> tuple[Any, Mapping[str, Any]]:
        """The state of the iterator itself, and the parts that were saved with it."""
        kind = state.get("kind")
        if kind == "records":
            order = dict(state["order"])
            parts = {part: order.pop(part) for part in _PARTS if part in order}
            return {**state, "order": order}, parts
        holder = state["state"] if kind == "shard" else state
        if not isinstance(holder, Mapping) or "tokenized" not in holder:
            return state, {}
        held = cast("Mapping[str, Any]", holder)
        return ({**state, "state": held["state"]} if kind == "shard" else held["state"]), held["tokenized"]
