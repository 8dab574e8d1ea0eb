"""What the streams of this process have done so far: steps, records, bytes, time waited, errors, and where they stand.

Every stream counts for itself, in plain attributes that only its own consumer changes, so counting costs a step next to
nothing and needs no lock. Whoever wants to know adds the streams up: `snapshot` for a program, `export` for Prometheus,
`log_every` for the log. Streams that are gone stay in the sums, so that these never go down.
"""

import logging
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
import numpy as np

from dew.data import checks
from dew.data.dataset import Batch, DataPartition
from dew.data.errors import DewDataError, OptionsError
from dew.data.source import describe
from dew.data.step import batch_bytes

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

_LOG = logging.getLogger("dew.data.metrics")

TRAIN: Final = "train"
VALIDATION: Final = "validation"
PREFETCH: Final = "prefetch"


@attrs.frozen(kw_only=True)
class StreamMetrics:
    """The sums over all streams of one kind over one source and share, since this process began.

    Args:
        kind: `"train"`, `"validation"`, or `"prefetch"` for what `DevicePrefetch` handed out: its waiting is what the
            training loop waited, that of the stream below it what the prefetch did.
        source: names the data, as in a position.
        share: which rows this process reads, `"0/2"` for share 0 of 2; empty where that is not known.
        steps: batches handed out.
        records: rows in them, padding included; 0 for a prefetch, which does not look into batches.
        bytes: bytes in them; 0 for a prefetch.
        wait_seconds: seconds spent in `next`.
        errors: errors that ended a stream; it can go on by `set_state`.
        restarts: how often a stream was set to a saved position; 0 for a prefetch.
        position: place of the next record, over all processes, of the stream that was begun last; None where it has
            none, or is gone.
        step: number of that stream's next step, counted over the whole run; None as above.
    """

    kind: str
    source: str
    share: str
    steps: int
    records: int
    bytes: int
    wait_seconds: float
    errors: int
    restarts: int
    position: int | None
    step: int | None


# Counting is paid for by every step, and steps of tokens take 20 microseconds: names are looked up once.
_Array: Final = np.ndarray


class Counts:
    """What one stream counts. Its consumer alone changes it; any thread may read it.

    Attributes:
        steps, records, bytes, wait_seconds, errors, restarts: as in `StreamMetrics`.
    """

    __slots__ = (
        "_began",
        "_logged",
        "bytes",
        "errors",
        "kind",
        "records",
        "restarts",
        "share",
        "source",
        "steps",
        "wait_seconds",
    )

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.source = ""
        self.share = ""
        self.steps = 0
        self.records = 0
        self.bytes = 0
        self.wait_seconds = 0.0
        self.errors = 0
        self.restarts = 0
        self._began = 0.0
        self._logged: tuple[int, float] = (0, 0.0)  # steps and seconds waited when the last line was written

    def delivered(self, batch: Batch, seconds: float) -> None:
        """One more batch, which `next` took `seconds` to hand out."""
        value: Any = None
        size = 0
        for value in batch.values():
            if type(value) is not _Array:  # a nested batch; rare, and slower
                size = batch_bytes(batch)
                break
            size += value.nbytes
        self.steps += 1
        self.bytes += size
        self.records += len(value) if type(value) is _Array else _rows(value)
        self.wait_seconds += seconds

    def begin(self, counting: Any, stream: Any) -> None:
        """From its first batch on, `counting` is one of those that are added up; later calls change nothing.

        `stream` names the data: itself, or what a prefetch reads.
        """
        if self._began:
            return
        self._began = time.perf_counter()
        name, source = getattr(stream, "name", None), getattr(stream, "source", None)
        self.source = name if isinstance(name, str) else type(stream).__name__ if source is None else describe(source)
        if isinstance(partition := getattr(stream, "partition", None), DataPartition):
            self.share = f"{partition.index}/{partition.count}"
        _streams.add(self, counting)

    def log(self, stream: Any) -> None:
        """Writes a line about the steps since the last one; of the stream that counts here, before its next step."""
        if self.steps == self._logged[0]:
            return
        position = _stands(stream)[0]
        steps, waited = self.steps - self._logged[0], self.wait_seconds - self._logged[1]
        now = time.perf_counter()
        seconds = max(now - self._began, 1e-9)
        self._began, self._logged = now, (self.steps, self.wait_seconds)
        _LOG.info(
            "%s %s%s: %d steps, %d records, %.1f MB%s; %.1f steps/s, %.1f %% of the time waiting, %d errors",
            self.kind,
            self.source,
            f" share {self.share}" if self.share else "",
            self.steps,
            self.records,
            self.bytes / 1e6,
            "" if position is None else f", position {position}",
            steps / seconds,
            100 * min(waited / seconds, 1.0),
            self.errors,
        )


def _rows(value: Any) -> int:
    """Rows of a field, or of the first of those in it."""
    while isinstance(value, dict):
        value = next(iter(cast("Batch", value).values()), None)
    return 0 if value is None else len(value)


@attrs.define(kw_only=True)
class _Sum:
    steps: int = 0
    records: int = 0
    bytes: int = 0
    wait_seconds: float = 0.0
    errors: int = 0
    restarts: int = 0

    def add(self, counts: "Counts | _Sum") -> None:
        """Adds what another one counted."""
        self.steps += counts.steps
        self.records += counts.records
        self.bytes += counts.bytes
        self.wait_seconds += counts.wait_seconds
        self.errors += counts.errors
        self.restarts += counts.restarts


_Labels = tuple[str, str, str]


class _Streams:
    """Every stream that was read in this process: those that are there, and the sums of those that are gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._there: list[tuple[Counts, weakref.ref[Any]]] = []
        self._gone: dict[_Labels, _Sum] = {}
        self._fold_at = 64

    def add(self, counts: Counts, stream: Any) -> None:
        """One more stream."""
        with self._lock:
            self._there.append((counts, weakref.ref(stream)))
            if len(self._there) > self._fold_at:
                self._fold()
                self._fold_at = 64 + 2 * len(self._there)  # so that many short streams cost little each

    def sums(self) -> Iterator[StreamMetrics]:
        """One of each kind, source and share, in the order of their names."""
        with self._lock:
            self._fold()
            sums = {labels: attrs.evolve(gone) for labels, gone in self._gone.items()}
            newest: dict[_Labels, Any] = {}
            for counts, alive in self._there:
                sums.setdefault(_labels(counts), _Sum()).add(counts)
                newest[_labels(counts)] = alive
        for labels, total in sorted(sums.items()):
            alive = newest.get(labels)
            position, step = _stands(None if alive is None else alive())
            kind, source, share = labels
            yield StreamMetrics(
                kind=kind, source=source, share=share, position=position, step=step, **attrs.asdict(total)
            )

    def _fold(self) -> None:
        """Moves the counts of streams that are gone into their sums."""
        there: list[tuple[Counts, weakref.ref[Any]]] = []
        for counts, alive in self._there:
            if alive() is not None:
                there.append((counts, alive))
            else:
                self._gone.setdefault(_labels(counts), _Sum()).add(counts)
        self._there = there


_streams = _Streams()


def _labels(counts: Counts) -> _Labels:
    return counts.kind, counts.source, counts.share


def _stands(stream: Any) -> tuple[int | None, int | None]:
    """The position of a stream, and its step; the stream may be moving meanwhile, in another thread."""
    try:
        position = getattr(stream, "position", None)
    except DewDataError:
        return None, None
    records, step = getattr(position, "records", None), getattr(position, "step", None)
    return (records, step) if isinstance(records, int) and isinstance(step, int) else (None, None)


def snapshot() -> list[StreamMetrics]:
    """What the streams of this process have done so far, those that are closed or gone included."""
    return list(_streams.sums())


every: int = 0
"""Steps of a stream between two lines in the log, as `log_every` set it; 0 for none."""


def log_every(steps: int | None) -> None:
    """Has every stream of this process write a line to the logger `dew.data.metrics`, level INFO, each `steps` steps.

    It is written when the step after these is asked for, so that the rate holds what was done with them.

    Args:
        steps: of that stream; None writes no more lines, as in the beginning.

    Raises:
        OptionsError, OptionsTypeError: `steps` is no positive int.
    """
    global every
    every = 0 if steps is None else checks.check_count("steps", steps)


class PrometheusCollector:
    """The counters as Prometheus takes them; they are added up when it asks, so that nothing runs meanwhile."""

    def collect(self) -> Iterable[Any]:
        """One family a counter, labelled by `kind`, `source` and `share`."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        names = ["kind", "source", "share"]
        counters = {name: CounterMetricFamily(f"dew_data_{name}", text, labels=names) for name, text in _COUNTERS}
        gauges = {name: GaugeMetricFamily(f"dew_data_{name}", text, labels=names) for name, text in _GAUGES}
        for each in snapshot():
            labels = [each.kind, each.source, each.share]
            for name, family in counters.items():
                if each.kind != PREFETCH or name not in ("records", "bytes", "restarts"):
                    family.add_metric(labels, getattr(each, name))
            for name, family in gauges.items():
                if (value := getattr(each, name)) is not None:
                    family.add_metric(labels, value)
        return [*counters.values(), *gauges.values()]


_COUNTERS: Final = (
    ("steps", "Batches handed out by streams"),
    ("records", "Rows in these batches"),
    ("bytes", "Bytes in these batches"),
    ("wait_seconds", "Seconds that the consumer waited for batches"),
    ("errors", "Errors that ended a stream"),
    ("restarts", "Times that a stream was set to a saved position"),
)
_GAUGES: Final = (
    ("position", "Place of the next record, over all processes"),
    ("step", "Number of the next step, over the whole run"),
)


def export(registry: "CollectorRegistry | None" = None) -> PrometheusCollector:
    """Registers the counters with `prometheus_client`, once a registry; no server is started.

    Args:
        registry: by default that which `prometheus_client.start_http_server` serves.

    Returns:
        What was registered, for `registry.unregister`.

    Raises:
        ImportError: `prometheus_client` is not installed.
        OptionsError: the registry has them already.
    """
    try:
        import prometheus_client
    except ImportError as error:
        raise ImportError(
            'metrics are exported by prometheus_client, which is missing: pip install "dew-core[metrics]"'
        ) from error
    collector: Any = PrometheusCollector()
    try:
        (prometheus_client.REGISTRY if registry is None else registry).register(collector)
    except ValueError as error:
        raise OptionsError(f"this registry has the metrics of Dew already: {error}; export them once") from error
    return collector
