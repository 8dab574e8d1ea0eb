"""`dew peek` and `dew order` on a real corpus, held against the library, and against each other."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from dew.data.dataset import DataPartition
from dew.data.load import load
from dew.data.position import skip
from dew.data.stream import RecordStream
from dew.tokens import TokenOptions

Dew: TypeAlias = Callable[..., Any]

OPTIONS = ("--batch", "8", "-o", "seq_len=64", "-o", "val=0.05")


@pytest.fixture
def stream(demo: Any) -> Iterator[RecordStream]:
    made = load(demo.source, batch=8, options=TokenOptions(seq_len=64, val=0.05)).train(DataPartition())
    assert isinstance(made, RecordStream)
    with made:
        yield made


def test_peek_as_json(dew: Dew, demo: Any, stream: RecordStream) -> None:
    facts = dew("peek", demo.source, *OPTIONS, "--step", 5, "--json").json
    for _ in range(5):
        next(stream)
    text = next(stream)["text"]
    assert facts["ids"] == stream.ids(5).tolist()
    assert facts["fields"] == {
        "text": {
            "shape": [8, 65],
            "dtype": "int32",
            "min": int(text.min()),
            "max": int(text.max()),
            "sample": text[0, :6].tolist(),
        }
    }


def test_peek_as_a_table(dew: Dew, demo: Any, stream: RecordStream) -> None:
    ran = dew("peek", demo.source, *OPTIONS)
    assert ran.code == 0
    assert ran.err == ""
    assert "text" in ran.out
    assert "(8, 65)" in ran.out
    assert f"step 0, records {' '.join(map(str, stream.ids(0)))}" in ran.out


def test_peek_at_validation_and_another_seed(dew: Dew, demo: Any, stream: RecordStream) -> None:
    val = dew("peek", demo.source, *OPTIONS, "--split", "val", "--json").json
    assert max(val["ids"]) < 200
    other = dew("peek", demo.source, *OPTIONS, "--seed", 1, "--json").json
    assert other["ids"] != stream.ids(0).tolist()


def test_step_and_partitions(dew: Dew, demo: Any, stream: RecordStream) -> None:
    answer = dew("order", demo.source, *OPTIONS, "--step", 300, "--partitions", 4, "--json").json
    ids = stream.ids(300).tolist()
    assert answer["ids"] == ids
    assert answer["places"] == [2400, 2408]
    assert answer["epochs"] == [2400 // stream.order.records] * 2
    assert [share["ids"] for share in answer["shares"]] == [ids[share::4] for share in range(4)]
    ran = dew("order", demo.source, *OPTIONS, "--step", 300, "--partitions", 4)
    assert "places 2400 to 2407" in ran.out
    assert f"{ids[1]} {ids[5]}" in ran.out


def test_forward_and_inverse_agree(dew: Dew, demo: Any, stream: RecordStream) -> None:
    step = dew("order", demo.source, *OPTIONS, "--step", 11, "--json").json
    for row in (0, 5):
        answer = dew("order", demo.source, *OPTIONS, "--record", step["ids"][row], "--partitions", 2, "--json").json
        reads = answer["reads"]
        assert [read["epoch"] for read in reads] == [0, 1, 2]
        assert {"step": 11, "row": row, "partition": row % 2, "place": 88 + row, "epoch": 0, "past": None} == reads[0]
        for read in reads:
            assert stream.ids(read["step"])[read["row"]] == step["ids"][row]


def test_record_in_the_past_and_to_come(dew: Dew, demo: Any, stream: RecordStream) -> None:
    record = int(stream.ids(11)[0])
    words = ("order", demo.source, *OPTIONS, "--record", record)
    assert [read["step"] for read in dew(*words, "--until", 12, "--json").json["reads"]] == [11]
    assert dew(*words, "--until", 11, "--json").json["reads"] == []
    reads = dew(*words, "--at", 12, "--epochs", 2, "--json").json["reads"]
    assert [read["past"] for read in reads] == [True, False]
    late = dew(*words, "--at", 8 * stream.order.records, "--json").json["reads"]
    assert [read["past"] for read in late] == [True] * 64 + [False] * 2
    ran = dew(*words, "--at", 11)
    assert ran.out.count("to come") == 3
    assert "past" not in ran.out


def test_order_of_a_saved_run(dew: Dew, demo: Any, stream: RecordStream, tmp_path: Path) -> None:
    """A run that skipped a stretch: steps after it hold what the position says, and the stretch has no steps."""
    record = int(stream.ids(11)[3])
    state = skip(stream.position.at_step(10).to_json(), 12)
    (tmp_path / "position.json").write_text(json.dumps(state))
    words = ("order", demo.source, *OPTIONS, "--position", "position.json")
    answer = dew(*words, "--record", record, "--epochs", 1, "--json").json
    assert answer["at"] == 10
    assert answer["reads"] == [{"place": 91, "epoch": 0, "step": None, "row": None, "partition": None, "past": None}]
    after = dew(*words, "--step", 10, "--json").json
    assert after["places"] == [92, 100]
    assert after["ids"] == stream.order.at(np.arange(92, 100)).tolist()
    assert "skipped" in dew(*words, "--record", record).out
    state["made_by"]["numpy"] = "0.1"
    (tmp_path / "position.json").write_text(json.dumps(state))
    ran = dew(*words, "--step", 10, "--json")
    assert ran.json == after
    assert ran.err.startswith("dew: DewWarning: the saved position was made with numpy 0.1")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--batch", "8"], ["'tokens' needs -o seq_len=...", "seq_len, val"]),
        (["--batch", "8", "-o", "seq=64"], ["no option 'seq'", "seq_len, val"]),
        (["--batch", "8", "-o", "seq_len"], ["written key=value, got -o seq_len"]),
        (["--batch", "8", "-o", "seq_len=0"], ["seq_len must be at least 1, got 0"]),
        (["--batch", "8", "-o", "seq_len=many"], ["seq_len must be an int, got 'many'"]),
        (["--batch", "8", "-o", "seq_len=64", "--split", "test"], ["no split 'test'"]),
        (["--batch", "9999", "-o", "seq_len=64"], ["fewer than one global batch of 9999"]),
    ],
)
def test_peek_refuses(dew: Dew, demo: Any, words: list[str], expected: list[str]) -> None:
    dew("peek", demo.source, *words).fails(*expected)


def test_other_refusals(dew: Dew, demo: Any, tmp_path: Path) -> None:
    dew("peek", f"tokens/{tmp_path}/nothing", *OPTIONS).fails(f"no token corpus at {tmp_path}/nothing")
    dew("peek", "corpus", *OPTIONS).fails("PREFIX/NAME", "'corpus'")
    dew("peek", "tokenz/corpus", *OPTIONS).fails(
        "no installed package provides 'tokenz/...'", "did you mean 'tokens/...'"
    )
    dew("order", demo.source, *OPTIONS, "--step", 1, "--partitions", 3).fails("8 rows does not divide over 3")
    dew("order", demo.source, *OPTIONS, "--record", 10**7).fails("record 10000000 does not exist")
    dew("order", demo.source, *OPTIONS, "--record", 1, "--epochs", 10**15).fails("at most 100000")
    (tmp_path / "position.json").write_text('{"kind": "records"')
    words = ("order", demo.source, *OPTIONS, "--step", 1, "--position", "position.json")
    dew(*words).fails("position.json does not hold a position as JSON")
    (tmp_path / "position.json").write_text('{"kind": "records"}')
    dew(*words).fails("a record position lacks")


@pytest.mark.parametrize(
    "words",
    [
        ["peek", "tokens/x"],
        ["peek", "tokens/x", "--batch", "0"],
        ["peek", "tokens/x", "--batch", "8", "--seed", "-1"],
        ["order", "tokens/x", "--batch", "8"],
        ["order", "tokens/x", "--batch", "8", "--step", "1", "--record", "1"],
        ["order", "tokens/x", "--batch", "8", "--step", "1", "--at", "1"],
        ["order", "tokens/x", "--batch", "8", "--record", "1", "--until", "5", "--epochs", "1"],
    ],
)
def test_wrong_usage(dew: Dew, words: list[str]) -> None:
    ran = dew(*words)
    assert ran.code == 2
    assert "Traceback" not in ran.err


def test_rows_that_need_a_preprocess(dew: Dew, strangers: str) -> None:
    """Ids need no content, and rows are shown as they are stored."""
    words = ("toy/x", "--batch", 4)
    step = dew("order", *words, "--step", 2, "--json", PYTHONPATH=strangers).json
    shown = dew("peek", *words, "--step", 2, "--json", PYTHONPATH=strangers).json
    assert shown["ids"] == step["ids"]
    assert shown["alone"] is None
    assert shown["fields"]["value"]["shape"] == [4, 2]
    assert shown["fields"]["value"]["sample"][:2] == [float(step["ids"][0])] * 2
    assert "[bold]row" in dew("peek", *words, PYTHONPATH=strangers).out


def test_rows_that_form_no_batch(dew: Dew, strangers: str) -> None:
    ran = dew("peek", "toy/x", "--batch", 4, "-o", "ragged=true", "--json", PYTHONPATH=strangers)
    assert ran.json["alone"] == ran.json["ids"][0]
    assert ran.json["fields"]["value"]["shape"] == [ran.json["alone"] % 3]
    ran = dew("peek", "toy/x", "--batch", 4, "-o", "ragged=true", PYTHONPATH=strangers)
    assert f"this is record {ran.out.split('this is record ')[1].split()[0]} alone" in ran.out


def test_a_stream_without_an_order(dew: Dew, strangers: str) -> None:
    words = ("toy/x", "--batch", 4, "-o", "stream=true")
    shown = dew("peek", *words, "--step", 2, "--json", PYTHONPATH=strangers).json
    assert shown["ids"] is None
    assert shown["fields"]["value"]["max"] == 2
    dew("peek", *words, "--step", 3, PYTHONPATH=strangers).fails("step 3 was asked for, but the stream ended before it")
    dew("order", *words, "--step", 0, PYTHONPATH=strangers).fails("toy/x is read as a stream without random access")


def test_options_of_a_provider_without_any(dew: Dew, strangers: str) -> None:
    dew("peek", "bare/x", "--batch", 2, "-o", "a=1", PYTHONPATH=strangers).fails("'bare' takes no options, got -o a=1")
    dew("peek", "toy/x", "--batch", 2, "-o", "a=1", PYTHONPATH=strangers).fails("rows, ragged, stream, val_split")
