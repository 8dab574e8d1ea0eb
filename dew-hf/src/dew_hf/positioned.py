"""`position="records"`: one integer as the position of a streamed split, for any process count.

Parquet files are read by row groups, in a seekable shuffled order (`dew_hf.groups`). Of any other format every process
reads the whole stream, in its own order, and keeps its rows: the place in the stream is then the same number
everywhere, and going on reads up to it.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

import attrs

from dew.data.checkpointable import Checkpointable
from dew.data.dataset import Batch, DataPartition
from dew.data.errors import OptionsError, SourceError, StreamClosedError
from dew.data.order import DRAWS_VERSION
from dew.data.position import RecordPosition, Segment, State, record_position
from dew.data.provider import LoadRequest
from dew.data.schedule import FixedBatch
from dew.data.step import StepStoppedError, preprocess_name
from dew_hf.footers import ParquetFiles
from dew_hf.groups import ParquetRows
from dew_hf.opening import described, footer_cache, format_of, guarded, split_files, split_versions
from dew_hf.options import HFOptions
from dew_hf.passes import TRAINING, Finish, Row, Setup
from dew_hf.sources import Stream, named_stream
from dew_hf.streams import PlainStream, StreamTraining, choose_split, open_stream
from dew_hf.values import Rows

logger = logging.getLogger("dew.hf")

_VERSION: Final = 1
_MOST_READERS: Final = 16
_CHANGES_ROWS: Final = ("filters", "on_bad_files")


def open_positioned(builder: Any, request: LoadRequest, split: str) -> Any:
    """Row groups of parquet, or a stream that every process reads; logs which.

    Raises:
        OptionsError: arguments of the format that leave rows out, or `lanes` for a format without row groups.
    """
    options: HFOptions = request.options
    if format_of(builder) == "Parquet":
        source = open_parquet(builder, request, split)
        logger.info(
            "%s: %d rows in %d row groups, %d read side by side", source, len(source), source.groups, source.lanes
        )
        return source
    if options.lanes is not None:
        raise OptionsError(
            f"lanes={options.lanes} are row groups of parquet, and {described(request.name, split, options)} is "
            f"{format_of(builder)}; leave lanes out"
        )
    stream = named_stream(builder, request, split, reshard=False)
    if request.validation:
        return open_stream(request, split, stream)
    opened = cast("StreamTraining", open_stream(request, split, stream))
    size = _total_bytes(builder, split)
    logger.info("%s: every process reads the whole stream (%s) and keeps its rows", stream.name, size)
    return WholeTraining(opened.setup, size)


def open_parquet(builder: Any, request: LoadRequest, split: str) -> ParquetRows:
    """The rows of a split in parquet files."""
    options: HFOptions = request.options
    if given := [name for name in _CHANGES_ROWS if name in options.config_kwargs]:
        raise OptionsError(
            f'position="records" numbers all rows of the files, and config_kwargs has {given}, which leave some out; '
            "filter without it, or prepare the files"
        )
    opened = guarded(request.name, split, options, lambda: builder.as_streaming_dataset(split=split))
    columns = options.config_kwargs.get("columns")
    storage = dict(options.storage_options or {})
    urls = tuple(split_files(builder, split))
    if urls[0].startswith("hf://") and options.token is not None:
        storage["token"] = options.token
    files = ParquetFiles(
        urls=urls,
        versions=split_versions(builder, split),
        storage_options=storage,
        columns=None if columns is None else tuple(cast("list[str]", columns)),
        cache=footer_cache(options),
    )
    return guarded(
        request.name,
        split,
        options,
        lambda: ParquetRows(
            files,
            features=opened.features,
            description=described(request.name, split, options),
            background=options.background,
            lanes=options.lanes,
        ),
    )


def _total_bytes(builder: Any, split: str) -> str:
    """What every process reads, for a message."""
    paths = list(split_files(builder, split))
    if paths and all("://" not in path for path in paths):
        return f"{sum(os.path.getsize(path) for path in paths):,} bytes in {len(paths)} files"
    return f"{len(paths)} files"


@attrs.frozen
class WholeTraining:
    """`DataPartition -> iterator`; every process reads the whole stream."""

    setup: Setup
    size: str

    def __call__(self, partition: DataPartition) -> "WholeStream":
        """A fresh training stream of this share.

        Raises:
            OptionsError: more than 16 processes, unless `read_everything`.
            PartitionError, SourceError: as without `position="records"`.
        """
        partition.rows(self.setup.batch)
        stream = self.setup.stream
        if partition.count > _MOST_READERS and not stream.options.read_everything:
            raise OptionsError(
                f'position="records" of {stream.name} makes each of {partition.count} processes read the whole stream '
                f"({self.size}), which is allowed for up to {_MOST_READERS}; accept it with "
                "HFOptions(read_everything=True), leave position out, or convert the files to parquet"
            )
        choose_split(self.setup, partition.count)
        return WholeStream(self.setup, partition, "examples")


class WholeStream(Checkpointable, PlainStream):
    """An endless training stream in the source's own order, with the position of the whole run."""

    def __init__(self, setup: Setup, partition: DataPartition, strategy: str) -> None:
        super().__init__(setup, partition, strategy)
        self._start = RecordPosition(
            records=0,
            order=_identity(setup),
            segments=(Segment(step=0, place=0, schedule=FixedBatch(setup.batch)),),
            preprocess=preprocess_name(setup.preprocess),
        )
        self._run = self._start

    @property
    def position(self) -> RecordPosition:
        """Where the stream stands: the place of the next record to be delivered."""
        return self._run.at_step(self._step)

    def get_state(self) -> State:
        """The position as JSON values: of the batches delivered, the same on every process."""
        return self.position.to_json()

    def set_state(self, state: Mapping[str, Any], accept: Iterable[str] = ()) -> None:
        """Goes on from a saved position, on any process count; reads up to it at the next batch.

        Raises:
            PositionMismatchError: names the part that differs, both values, and how to go on.
            PositionError: `state` is not a position of the kind "records".
        """
        if self._closed:
            raise StreamClosedError("this stream was closed; make a new one from the dataset")
        run = record_position(state).resumed_by(self._start, accept)
        self._restart()
        self._run, self._step = run, run.step
        self._feed_step = None

    def _load_step(self) -> Any:
        return WholeSteps(self._setup, self._partition, self._run.segments[-1], self._run.span(self._step)[0])


class WholeSteps:
    """Builds steps out of the unsplit stream, read from its beginning up to the first place."""

    builds_whole_steps = False

    def __init__(self, setup: Setup, partition: DataPartition, segment: Segment, first: int) -> None:
        self._setup = setup
        self._partition = partition
        self._segment = segment
        self._rows = EndlessRows(setup.stream, setup.batch, first)
        self._finish = Finish(setup, TRAINING)

    def __str__(self) -> str:
        return self._setup.stream.name

    def with_threads(self, threads: int) -> "WholeSteps":
        """These steps, their rows finished by `threads` threads."""
        self._finish.threads = threads
        return self

    def __call__(self, step: int) -> Batch:
        """The local rows of step `step`."""
        self._finish.check()
        start, stop = self._segment.span(step)
        share = self._partition
        try:
            rows = self._rows.take(stop - start)[share.index :: share.count]
            return self._finish(rows, range(start + share.index, stop, share.count))
        except StepStoppedError:
            raise
        except BaseException as error:
            error.add_note(f"in step {step} of {self}")
            raise

    def stop(self) -> None:
        """Makes the step that is being built end at its next record."""
        self._finish.stop()

    def close(self) -> None:
        """Closes files and threads."""
        self._finish.close()
        self._rows.close()


class EndlessRows:
    """The rows of an unsplit stream, pass after pass, from a place on; a pass is read to learn how long it is."""

    def __init__(self, stream: Stream, size: int, place: int) -> None:
        self._stream = stream
        self._size = size
        self._skip = place
        self._in_pass = 0
        self._chunks: Iterator[Rows] | None = None
        self._held: list[Row] = []

    def take(self, count: int) -> list[Row]:
        """The next `count` rows."""
        while len(self._held) < count:
            self._read_on()
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    def close(self) -> None:
        """Closes the files."""
        chunks, self._chunks = self._chunks, None
        if chunks is not None:
            cast("Any", chunks).close()

    def _read_on(self) -> None:
        if self._chunks is None:
            self._chunks = self._stream.chunks(self._stream.reader(), self._size)
        chunk = next(self._chunks, None)
        if chunk is None:
            self.close()
            if not self._in_pass:
                raise SourceError(f"a pass over {self._stream.name} had no row; its files may have changed")
            self._skip %= self._in_pass  # above 0, all rows of this pass were passed over; whole passes need no reading
            self._in_pass = 0
            return
        dropped = min(self._skip, len(chunk))
        self._skip -= dropped
        self._in_pass += len(chunk)
        self._held += [(chunk, row) for row in range(dropped, len(chunk))]


def _identity(setup: Setup) -> dict[str, Any]:
    own = setup.stream.identity
    return {
        "version": _VERSION,
        "kind": "stream",
        "source": own["source"],
        "commit": own["commit"],
        "fingerprint": own["files"],
        "format": own["format"],
        "seed": setup.seed,
        "draws": DRAWS_VERSION,
    }
