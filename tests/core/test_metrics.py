"""`dew.data.metrics`: what streams count, the sums over them, and how these reach Prometheus and the log."""

import gc
import itertools
import json
import logging
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dew.data import DataPartition, Loading, metrics
from dew.data.errors import OptionsError, OptionsTypeError
from dew.data.metrics import StreamMetrics
from dew.data.stream import train_stream, validation_pass

HERE = Loading(workers=0, threads=1)
_numbers = itertools.count()


class Named:
    """Records of 12 bytes, under a name that no other test uses."""

    def __init__(self, records: int = 40, broken: int = -1) -> None:
        self.name = f"Named({next(_numbers)})"
        self.records = records
        self.broken = broken

    def __repr__(self) -> str:
        return self.name

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.broken:
            raise ValueError("a broken record")
        return {"x": np.int32(index), "y": np.zeros(2, np.float32)}


def found(source: Named) -> dict[str, StreamMetrics]:
    """Kind -> the sums over streams of this source."""
    return {each.kind: each for each in metrics.snapshot() if each.source == source.name}


def read(source: Named, steps: int = 3, **options: Any) -> None:
    with train_stream(source, batch=8, loading=HERE, **options) as stream:
        for _ in range(steps):
            next(stream)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    yield
    metrics.log_every(None)


def test_a_stream_counts_what_it_hands_out() -> None:
    source = Named()
    with train_stream(source, batch=8, partition=DataPartition(1, 2), loading=HERE) as stream:
        assert found(source) == {}, "nothing was read yet"
        for _ in range(3):
            next(stream)
        one = found(source)["train"]
        assert (one.share, one.steps, one.records, one.bytes, one.errors) == ("1/2", 3, 12, 144, 0)
        assert (one.position, one.step) == (24, 3), "of the run, in every share alike"
        assert one.wait_seconds > 0
        assert (stream.counts.steps, stream.counts.records) == (3, 12)
        stream.set_state({**stream.get_state(), "records": 80})
        next(stream)
        again = found(source)["train"]
        assert (again.steps, again.position, again.step) == (4, 88, 11), "a jump is no step"


def test_reading_ahead_is_not_counted() -> None:
    source = Named()
    with train_stream(source, batch=8, loading=Loading(workers=0, read_buffer=4)) as stream:
        next(stream)
        stream.start_prefetch()
        assert found(source)["train"].steps == 1


def test_nested_and_padded_batches() -> None:
    source = Named(records=5)

    def nested(record: dict[str, Any]) -> dict[str, Any]:
        return {"pair": {"deep": {"x": record["x"]}}, "y": record["y"]}

    with validation_pass(source, batch=4, preprocess=nested, loading=HERE) as once:
        assert len(list(once)) == 2
    one = found(source)["validation"]
    assert (one.steps, one.records, one.bytes) == (2, 8, 8 * (4 + 8 + 1)), "rows that are padding and the mask count"
    assert (one.position, one.step) == (None, None)


def test_streams_of_one_source_add_up_and_stay_when_they_are_gone() -> None:
    source = Named()
    for _ in range(200):
        read(source, steps=2)
    gc.collect()
    one = found(source)["train"]
    assert (one.steps, one.records, one.position) == (400, 3200, None)
    with train_stream(source, batch=8, loading=HERE) as stream:
        next(stream)
        one = found(source)["train"]
        assert (one.steps, one.records, one.position) == (401, 3208, 8)
    assert found(source)["train"].steps == 401
    assert len(metrics._streams._there) < 100, "what is gone is kept as a sum only"


def test_errors_are_counted_once() -> None:
    source = Named(broken=11)
    with train_stream(source, batch=8, shuffle=False, loading=HERE) as stream:
        next(stream)
        for _ in range(3):
            with pytest.raises(ValueError, match="a broken record"):
                next(stream)
        one = found(source)["train"]
        assert (one.steps, one.errors, one.position) == (1, 1, 8)


def test_going_on_from_a_position_is_counted() -> None:
    source = Named()
    with train_stream(source, batch=8, loading=HERE) as stream:
        state = stream.get_state()
        for _ in range(2):
            next(stream)
            stream.set_state(state)
        one = found(source)["train"]
        assert (one.steps, one.restarts, one.position) == (2, 2, 0)


def test_reading_the_sums_while_streams_are_read() -> None:
    """They never go down, and none is lost."""
    sources = [Named() for _ in range(3)]
    seen: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.append(sum(found(source)["train"].steps for source in sources if found(source)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    readers = [
        threading.Thread(target=lambda source=source: [read(source, steps=20) for _ in range(10)]) for source in sources
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    done.set()
    watcher.join()
    assert seen == sorted(seen)
    assert [found(source)["train"].steps for source in sources] == [200, 200, 200]


def test_a_prefetch_counts_what_the_loop_waits() -> None:
    from dew.training import DevicePrefetch

    source = Named()
    with DevicePrefetch(train_stream(source, batch=8, loading=HERE)) as prefetch:
        for _ in range(4):
            next(prefetch)
        both = found(source)
        assert (both["prefetch"].steps, both["prefetch"].share, both["prefetch"].records) == (4, "0/1", 0)
        assert both["prefetch"].wait_seconds == prefetch.waited
        assert both["train"].steps >= 4, "the stream below is ahead"
    own = DevicePrefetch(iter([1, 2]))
    assert list(own) == [1, 2]
    assert own.counts.errors == 0, "an end is no error"
    assert any((each.kind, each.source) == ("prefetch", "list_iterator") for each in metrics.snapshot())


class TestPrometheus:
    def scraped(self, registry: Any) -> dict[str, float]:
        """What an HTTP client gets: sample -> value."""
        prometheus = pytest.importorskip("prometheus_client")
        server, thread = prometheus.start_http_server(0, addr="127.0.0.1", registry=registry)
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"http://127.0.0.1:{server.server_port}/metrics", timeout=60) as answer:
                lines = answer.read().decode().splitlines()
        finally:
            server.shutdown()
            thread.join(60)
            server.server_close()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def test_over_http(self) -> None:
        prometheus = pytest.importorskip("prometheus_client")
        source, broken = Named(), Named(broken=0)
        source.name += ' "quoted"\\'
        registry = prometheus.CollectorRegistry(auto_describe=True)
        metrics.export(registry)
        with train_stream(source, batch=8, loading=HERE) as stream:
            for _ in range(3):
                next(stream)
            with pytest.raises(ValueError, match="broken"):
                read(broken, shuffle=False)
            got = self.scraped(registry)
            labels = source.name.replace("\\", "\\\\").replace('"', '\\"')
            named = f'{{kind="train",share="0/1",source="{labels}"}}'
            assert got[f"dew_data_steps_total{named}"] == 3
            assert got[f"dew_data_records_total{named}"] == 24
            assert got[f"dew_data_bytes_total{named}"] == 24 * 12
            assert got[f"dew_data_wait_seconds_total{named}"] > 0
            assert got[f"dew_data_errors_total{named}"] == 0
            assert got[f"dew_data_position{named}"] == 24
            assert got[f"dew_data_step{named}"] == 3
            assert got[f'dew_data_errors_total{{kind="train",share="0/1",source="{broken.name}"}}'] == 1
            next(stream)
            assert self.scraped(registry)[f"dew_data_steps_total{named}"] == 4
        del stream
        gc.collect()
        got = self.scraped(registry)
        assert got[f"dew_data_steps_total{named}"] == 4
        assert f"dew_data_position{named}" not in got, "nothing stands anywhere any more"

    def test_once_a_registry(self) -> None:
        prometheus = pytest.importorskip("prometheus_client")
        registry = prometheus.CollectorRegistry(auto_describe=True)
        collector = metrics.export(registry)
        with pytest.raises(OptionsError, match=r"this registry has the metrics of Dew already: .*; export them once"):
            metrics.export(registry)
        registry.unregister(collector)
        metrics.export(registry)

    def test_by_default_it_is_the_registry_that_everybody_serves(self) -> None:
        prometheus = pytest.importorskip("prometheus_client")
        collector: Any = metrics.export()
        try:
            read(source := Named())
            labels = {"kind": "train", "share": "0/1", "source": source.name}
            assert prometheus.REGISTRY.get_sample_value("dew_data_steps_total", labels) == 3
        finally:
            prometheus.REGISTRY.unregister(collector)

    def test_a_prefetch_has_no_rows_or_bytes(self) -> None:
        from dew.training import DevicePrefetch

        source = Named()
        with DevicePrefetch(train_stream(source, batch=8, loading=HERE)) as prefetch:
            next(prefetch)
        families = {family.name: family for family in metrics.PrometheusCollector().collect()}
        kinds = {
            name: {sample.labels["kind"] for sample in family.samples if sample.labels["source"] == source.name}
            for name, family in families.items()
        }
        assert kinds["dew_data_steps"] == kinds["dew_data_wait_seconds"] == {"train", "prefetch"}
        assert kinds["dew_data_records"] == kinds["dew_data_bytes"] == kinds["dew_data_position"] == {"train"}

    def test_without_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        with pytest.raises(
            ImportError, match=r'prometheus_client, which is missing: pip install "dew-core\[metrics\]"'
        ):
            metrics.export()


class TestLog:
    def test_a_line_each_few_steps(self, caplog: pytest.LogCaptureFixture) -> None:
        source = Named()
        metrics.log_every(2)
        with caplog.at_level(logging.INFO, "dew.data.metrics"), train_stream(source, batch=8, loading=HERE) as stream:
            for _ in range(7):
                next(stream)
        said = [record.getMessage() for record in caplog.records if record.name == "dew.data.metrics"]
        assert [line.partition(";")[0] for line in said] == [
            f"train {source.name} share 0/1: {steps} steps, {8 * steps} records, 0.0 MB, position {8 * steps}"
            for steps in (2, 4, 6)
        ]
        assert all("steps/s" in line and "% of the time waiting, 0 errors" in line for line in said)

    def test_by_default_and_afterwards_there_is_none(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "dew.data.metrics"):
            read(Named())
            metrics.log_every(1)
            metrics.log_every(None)
            read(Named())
        assert [record for record in caplog.records if record.name == "dew.data.metrics"] == []

    def test_what_it_refuses(self) -> None:
        with pytest.raises(OptionsError, match="steps must be at least 1, got 0"):
            metrics.log_every(0)
        with pytest.raises(OptionsTypeError, match="steps must be an int, got '10'"):
            metrics.log_every("10")  # type: ignore[arg-type]


LIGHT = """
import json, sys
import numpy as np
from dew.data import DataPartition, Loading, from_records, metrics
with from_records({"x": np.arange(8)}, batch=4, loading=Loading(workers=0)).train(DataPartition()) as stream:
    next(stream)
    (one,) = metrics.snapshot()
print(json.dumps([one.source, one.steps, "prometheus_client" in sys.modules, "http.server" in sys.modules]))
"""


def test_counting_needs_no_package_and_no_server() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", LIGHT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["Columns({x: ndarray(shape=(8,), dtype=int64)})", 1, False, False]
