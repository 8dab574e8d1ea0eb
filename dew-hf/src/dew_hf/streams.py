"""Streams without random access as Dew's iterators: endless for training, one pass for validation.

Each process reads its own part of the stream (`datasets.distributed.split_dataset_by_node`), pass after pass, so its
position counts inside that part: a shard position. Row j of step k on share p of n has the place `k * batch + j * n +
p`, which keys its draws. The library checks nothing when its state is set; Dew's identity around it does.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NoReturn, cast

import attrs
import numpy as np

from dew.data.dataset import Batch, DataPartition
from dew.data.errors import (
    OptionsError,
    OptionsTypeError,
    PositionError,
    PositionMismatchError,
    SourceError,
    StreamClosedError,
)
from dew.data.order import DRAWS_VERSION
from dew.data.position import ShardPosition, State, position_from_json
from dew.data.provider import LoadRequest
from dew.data.step import takes_draws
from dew.data.stepstream import StepStream
from dew_hf.opening import library, split_share
from dew_hf.passes import Setup, ShardRows, StreamPass, StreamSteps
from dew_hf.sources import Stream
from dew_hf.values import holds_image

_STATE: Final = {"identity", "pass", "rows", "taken", "stream"}


def open_stream(request: LoadRequest, split: str, stream: Stream) -> Callable[[DataPartition], Iterator[Batch]]:
    """What trains on the stream, or validates on it.

    Raises:
        OptionsTypeError: `preprocess` is missing; shows the fields of a row.
        OptionsError: worker processes, or a number of records that the source contradicts.
    """
    if request.preprocess is None:
        raise OptionsTypeError(
            f"load('hf/{request.name}') needs preprocess=, a function from one row to the fields of a batch: "
            f"`preprocess(record)` or `preprocess(record, rng)`; a row of split {split!r} has\n"
            f"{_fields(stream.first_row(), stream.features)}"
        )
    takes_draws(request.preprocess)
    if request.loading.workers:
        raise OptionsError(
            f"Loading(workers={request.loading.workers}) was given, and a stream has one reader in each process; "
            "use workers=0 (images are decoded by its threads), or read without streaming"
        )
    setup = Setup(
        stream=stream,
        batch=request.batch,
        seed=request.seed,
        preprocess=request.preprocess,
        loading=attrs.evolve(request.loading, workers=0),
        shuffle_buffer=0 if request.validation else request.shuffle_buffer,
    )
    if request.validation:
        return StreamValidation(setup, remainder=request.val_remainder, valid_field=request.valid_field)
    return StreamTraining(setup)


@attrs.frozen
class StreamTraining:
    """`DataPartition -> iterator`, each from the beginning of the stream."""

    setup: Setup

    def __call__(self, partition: DataPartition) -> "PlainStream":
        """A fresh training stream of this share.

        Raises:
            PartitionError: the batch does not divide over the processes.
            SourceError: fewer rows than processes, or than one global batch.
        """
        partition.rows(self.setup.batch)
        strategy = choose_split(self.setup, partition.count)
        kind = PlainStream if self.setup.stream.no_position else ShardStream
        return kind(self.setup, partition, strategy)


@attrs.frozen(kw_only=True)
class StreamValidation:
    """`DataPartition -> iterator`, one pass each."""

    setup: Setup = attrs.field(kw_only=False)
    remainder: str
    valid_field: str

    def __call__(self, partition: DataPartition) -> StreamPass:
        """A fresh pass of this share."""
        return StreamPass(self.setup, partition, remainder=self.remainder, valid_field=self.valid_field)


def choose_split(setup: Setup, count: int) -> str:
    """How a stream is split, the same answer in every process: "shards" where every share gets rows, else "examples".

    Every process looks at the unsplit stream and at the first row of every share.

    Raises:
        SourceError: fewer rows than processes, or than one global batch.
    """
    stream, batch = setup.stream, setup.batch
    rows = stream.count_up_to(batch)
    if rows < count:
        raise SourceError(
            f"{stream.name} holds {rows} rows, and {count} processes (batch={batch}) are to share them: "
            "some would have none; use fewer processes or more rows"
        )
    if rows < batch:
        raise SourceError(
            f"{stream.name} holds {rows} rows, fewer than one global batch of {batch}: every step would repeat rows; "
            f"use batch={rows} or less"
        )
    if count == 1 or stream.make().num_shards % count:
        return "examples"
    for index in range(count):
        share = functools.partial(split_share, index=index, count=count, strategy="shards")
        chunks = stream.chunks(stream.reader(share), 1)
        try:
            if next(chunks, None) is None:
                return "examples"
        finally:
            cast("Any", chunks).close()
    return "shards"


class PlainStream(StepStream):
    """An endless training stream without a position; `no_position_reason` says why it has none."""

    def __init__(self, setup: Setup, partition: DataPartition, strategy: str) -> None:
        super().__init__(setup.loading)
        self._setup = setup
        self._partition = partition
        self._strategy = strategy
        self._steps: StreamSteps | None = None
        self._state = ShardRows.START  # at the step that the stream started from, or was set to

    @property
    def name(self) -> str:
        """What is read, as messages and metrics call it."""
        return self._setup.stream.name

    @property
    def batch(self) -> int:
        """The global batch."""
        return self._setup.batch

    @property
    def partition(self) -> DataPartition:
        """This process's share."""
        return self._partition

    @property
    def no_position_reason(self) -> str | None:
        """Why the stream has no `get_state`, for whoever wants to save it."""
        return self._setup.stream.no_position

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._setup.stream.name}, batch={self.batch}, step={self._step})"

    def __next__(self) -> Batch:
        batch = super().__next__()
        if self._steps is not None:
            self._steps.forget_before(self._step)
        return batch

    def _at(self) -> dict[str, Any]:
        """Where the next step begins."""
        return self._state if self._steps is None else self._steps.state_before(self._step)

    def _load_step(self) -> Any:
        self._steps = StreamSteps(self._setup, self._partition, self._strategy, self._step, self._at())
        return self._steps


class ShardStream(PlainStream):
    """An endless training stream that the same share of the same process count can continue, on the record."""

    def get_state(self) -> State:
        """A shard position as JSON values: of the batches delivered."""
        state = {"identity": self._identity(), **self._at()}
        return ShardPosition(self._partition.index, self._partition.count, state).to_json()

    def set_state(self, state: Mapping[str, Any], accept: Iterable[str] = ()) -> None:
        """Goes on from a saved position; before or after reading, and after an error.

        Args:
            state: what `get_state()` of the same share returned.
            accept: parts of the identity that may differ, each by name, such as `{"library"}`.

        Raises:
            PositionMismatchError: another share, process count, source, file list, batch or seed.
            PositionError: `state` is not a position of such a stream.
        """
        if self._closed:
            raise StreamClosedError("this stream was closed; make a new one from the dataset")
        position = position_from_json(state)
        if not isinstance(position, ShardPosition):
            raise PositionError(
                f"{self._setup.stream.name} is read as a stream and cannot continue from a position of the kind "
                "'records'; it was saved by a stream with random access"
            )
        position.check_share(self._partition.index, self._partition.count)
        saved = _checked(position.state)
        self._check_identity(saved.pop("identity"), frozenset(accept))
        self._restart()
        self._steps, self._state = None, saved
        self._step = saved["rows"] // self._partition.rows(self.batch)
        self._feed_step = None

    def _identity(self) -> dict[str, Any]:
        return {
            **self._setup.stream.identity,
            "split": self._strategy,
            "batch": self.batch,
            "seed": self._setup.seed,
            "draws": DRAWS_VERSION,
            "library": f"datasets {library().__version__}",
        }

    def _check_identity(self, saved: Mapping[str, Any], accept: frozenset[str]) -> None:
        current = self._identity()
        if unknown := sorted(accept - set(current)):
            raise OptionsError(f"accept={unknown} names no part of this position; its parts are {sorted(current)}")
        for part in dict.fromkeys((*saved, *current)):
            if part not in accept and saved.get(part) != current.get(part):
                _refuse_part(part, saved.get(part), current.get(part))


def _checked(state: Any) -> dict[str, Any]:
    fields = dict(cast("Mapping[str, Any]", state if isinstance(state, Mapping) else {}))
    if set(fields) != _STATE or not isinstance(fields["identity"], Mapping):
        raise PositionError(
            f"the state of a shard of a Hugging Face stream has the fields {sorted(_STATE)}, got {sorted(fields)}; "
            "it was saved by another stream"
        )
    for name in ("pass", "rows", "taken"):
        if not isinstance(fields[name], int) or fields[name] < 0:
            raise PositionError(f"{name} in the state of a stream is a number of at least 0, got {fields[name]!r}")
    return fields


def _refuse_part(part: str, saved: object, current: object) -> NoReturn:
    if part == "commit" and saved is not None:
        revision = f"HFOptions(revision={saved!r}) reads what it was saved on; "
    else:
        revision = ""
    raise PositionMismatchError(
        f"the saved position has another {part}: saved {saved!r}, this stream has {current!r}. Its state counts inside "
        f"one part of exactly that stream; {revision}if that is what you want, restore with accept={{{part!r}}}, which "
        "overrides this part alone",
        part=part,
        saved=saved,
        current=current,
    )


def _fields(row: Mapping[str, Any], features: Any) -> str:
    """One line a field."""
    lines: list[str] = []
    for name, value in row.items():
        if isinstance(value, np.ndarray | np.generic):
            array = np.asarray(cast("Any", value))
            said = f"{array.dtype} {array.shape}"
        else:
            said = f"{type(value).__name__} {value!r}"[:60]
        image = features is not None and holds_image(features.get(name))
        lines.append(f"  {name}: {said}{' (an image)' if image else ''}")
    return "\n".join(lines)
