"""Captions become arrays once per batch, on the host; which are dropped follows the record's place alone."""

import json
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from dew.data import (
    DataPartition,
    Dataset,
    DewWarning,
    FieldError,
    Loading,
    Mixture,
    OptionsError,
    OptionsTypeError,
    PositionMismatchError,
    Ramp,
    SourceNotFoundError,
    from_records,
    ramped,
    validation_sets,
)
from dew.data.build import dataset_of, in_memory
from dew.data.conditioning import TokenizedStream, TokenizerEncoder, tokenized
from dew.data.encoders import ConditionEncoder
from dew.data.errors import DamagedSourceError, StreamClosedError
from dew.data.position import ShardPosition
from dew.testing import StreamSuite, assert_nothing_left, whole_step

RECORDS = 40


@attrs.frozen
class Letters:
    """One id a letter: a = 1, and 0 fills up. Pickles, so that worker processes can have it."""

    context_length: int = 6
    pad_id: int | None = 0
    vocabulary: str = "letters"

    def tokenize(self, captions: Sequence[str], /) -> dict[str, Any]:
        ids = np.zeros((len(captions), self.context_length), np.int32)
        for row, caption in enumerate(captions):
            letters = [ord(letter) - 96 for letter in caption[: self.context_length]]
            ids[row, : len(letters)] = letters
        return {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int32)}


def captions(records: int = RECORDS) -> list[str]:
    return [f"{chr(97 + number % 26)}{chr(97 + number // 26)}x" for number in range(records)]


def pictures(batch: int = 8, **loading: Any) -> Dataset:
    rows = {"id": np.arange(RECORDS, dtype=np.int32), "caption": np.array(captions())}
    val = {"id": np.arange(11, dtype=np.int32), "caption": np.array(captions(11))}
    return from_records(rows, batch=batch, seed=3, val=val, loading=Loading(**loading))


def batches(dataset: Dataset, steps: int, partition: DataPartition | None = None) -> list[Any]:
    with dataset.train(partition or DataPartition()) as stream:  # type: ignore[attr-defined]
        return [next(stream) for _ in range(steps)]


class TestTokenizedStream(StreamSuite):
    """Positions, tiling, resume and life cycle stay what they are."""

    def make_dataset(self) -> Dataset:
        return tokenized(pictures(12), Letters(), dropout=0.3, keep=True)


def test_captions_become_the_encoders_arrays_and_leave_the_batch() -> None:
    batch = batches(tokenized(pictures(), Letters()), 1)[0]
    assert sorted(batch) == ["id", "text"]
    expected = Letters().tokenize([captions()[number] for number in batch["id"]])
    for name, array in expected.items():
        np.testing.assert_array_equal(batch["text"][name], array)
        assert batch["text"][name].dtype == np.int32
        assert batch["text"][name].flags.owndata


def test_validation_is_tokenized_whole_without_dropout() -> None:
    dataset = tokenized(pictures(), Letters(), dropout=1.0)
    assert dataset.val is not None
    found = list(dataset.val(DataPartition()))
    ids = np.concatenate([batch["text"]["input_ids"] for batch in found])
    valid = np.concatenate([batch["valid"] for batch in found])
    np.testing.assert_array_equal(ids[valid], Letters().tokenize(captions(11))["input_ids"])


def test_into_may_be_the_captions_own_field_and_keep_leaves_them() -> None:
    assert sorted(batches(tokenized(pictures(), Letters(), into="caption"), 1)[0]) == ["caption", "id"]
    both = tokenized(tokenized(pictures(), Letters(), into="one", keep=True), Letters(context_length=4), into="two")
    batch = batches(both, 1)[0]
    assert sorted(batch) == ["id", "one", "two"]
    assert batch["one"]["input_ids"].shape == (8, 6)
    assert batch["two"]["input_ids"].shape == (8, 4)
    assert both.val is not None
    assert {"one", "two"} <= set(next(both.val(DataPartition())))


def test_dropout_follows_the_place_at_any_process_and_worker_count() -> None:
    dataset = tokenized(pictures(), Letters(), dropout=0.5)
    alone = batches(dataset, 10)
    empty = np.concatenate([batch["text"]["attention_mask"].sum(1) == 0 for batch in alone])
    assert 20 < empty.sum() < 60
    shares = [batches(dataset, 10, DataPartition(index, 4)) for index in range(4)]
    for step, batch in enumerate(alone):
        whole = whole_step([share[step] for share in shares])
        np.testing.assert_array_equal(whole["text"]["input_ids"], batch["text"]["input_ids"])
    worked = batches(tokenized(pictures(workers=1), Letters(), dropout=0.5), 2)
    for step, batch in enumerate(worked):
        np.testing.assert_array_equal(batch["text"]["input_ids"], alone[step]["text"]["input_ids"])


def test_two_encoders_drop_the_same_captions_and_a_ramp_changes_none() -> None:
    plain = tokenized(pictures(), Letters(), into="one", keep=True, dropout=0.5)
    both = tokenized(plain, Letters(), into="two", dropout=0.5)
    dropped: list[Any] = []
    for batch in batches(both, 5):
        np.testing.assert_array_equal(batch["one"]["input_ids"], batch["two"]["input_ids"])
        dropped.append(batch["one"]["input_ids"])
    growing = Ramp(start=4, increment=4, samples=16)
    for dataset in (ramped(plain, growing), tokenized(ramped(pictures(), growing), Letters(), into="one", dropout=0.5)):
        found = [batch["one"]["input_ids"] for batch in batches(dataset, 6)]
        assert len({len(ids) for ids in found}) == 2
        rows = np.concatenate(found)
        np.testing.assert_array_equal(rows, np.concatenate(dropped)[: len(rows)])


def test_dropped_captions_become_what_is_asked() -> None:
    ids = batches(tokenized(pictures(), Letters(), dropout=1, dropped_as="zz"), 1)[0]["text"]["input_ids"]
    np.testing.assert_array_equal(ids[:, :3], np.full((8, 3), [26, 26, 0]))


def test_another_encoder_is_refused_with_both_sides() -> None:
    with tokenized(pictures(), Letters(), dropout=0.1).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        next(stream)
        state = json.loads(json.dumps(stream.get_state()))
    assert state["order"]["encoder"] == {"text": {"vocabulary": "letters", "context_length": 6, "pad_id": 0}}
    cases = {
        "encoder": (Letters(context_length=5), 0.1, r"'context_length': 6.*'context_length': 5.*accept=\{'encoder'\}"),
        "captions": (Letters(), 0.2, r"'dropout': 0.1.*'dropout': 0.2"),
    }
    for part, (encoder, dropout, match) in cases.items():
        with tokenized(pictures(), encoder, dropout=dropout).train(DataPartition()) as other:  # type: ignore[attr-defined]
            with pytest.raises(PositionMismatchError, match=match) as caught:
                other.set_state(state)
            assert caught.value.part == part
            other.set_state(state, accept={part})
            assert other.position.step == 1
            assert [entry["part"] for entry in other.get_state()["accepted"]] == [part]
            other.set_state(other.get_state())
    with (
        pictures().train(DataPartition()) as bare,  # type: ignore[attr-defined]
        pytest.raises(PositionMismatchError, match=r"another encoder: saved .*this stream has '\(absent\)'"),
    ):
        bare.set_state(state)
    with tokenized(pictures(), Letters()).train(DataPartition()) as fresh:  # type: ignore[attr-defined]
        with pytest.raises(PositionMismatchError, match="absent"):
            fresh.set_state(pictures().train(DataPartition()).get_state())  # type: ignore[attr-defined]
        with pytest.raises(PositionMismatchError, match="seed"):
            fresh.set_state({**fresh.get_state(), "order": {**fresh.get_state()["order"], "seed": 9}})


def test_a_stream_goes_on_where_it_was() -> None:
    dataset = tokenized(pictures(), Letters(), dropout=0.5)
    expected = batches(dataset, 4)
    with dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        assert isinstance(stream, TokenizedStream)
        np.testing.assert_array_equal(stream.ids(2), expected[2]["id"])
        next(stream)
        state = stream.get_state()
    with dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        stream.set_state(state)
        np.testing.assert_array_equal(next(stream)["text"]["input_ids"], expected[1]["text"]["input_ids"])
    with pytest.raises(StreamClosedError, match="closed"):
        next(stream)


def test_a_mixture_is_tokenized_as_a_whole_with_its_validation_by_name() -> None:
    val = {"id": np.arange(50, 57, dtype=np.int32), "caption": np.array(captions(7))}
    rows = {"id": np.arange(20, dtype=np.int32), "caption": np.array(captions(20))}
    mixed = Mixture({"a": (rows, 1), "b": (pictures(), 1)}, val={"a": val}).load(batch=8)
    dataset = tokenized(mixed, Letters())
    assert batches(dataset, 1)[0]["text"]["input_ids"].shape == (8, 6)
    sets = validation_sets(dataset)
    assert sorted(sets) == ["a", "b"]
    assert next(sets["a"](DataPartition()))["text"]["input_ids"].shape == (8, 6)
    with dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        next(stream)
        stream.set_state(stream.get_state())


def test_a_tokenized_part_of_a_mixture_is_refused() -> None:
    parts = {"a": (tokenized(pictures(), Letters()), 1), "b": (pictures(), 1)}
    with pytest.raises(OptionsError, match=r"part 'a' is tokenized.*apply tokenized\(\) to the mixture"):
        Mixture(parts).load(batch=8)


def test_arrays_reach_the_devices_and_captions_do_not() -> None:
    import jax

    from dew.training import DevicePrefetch, build_mesh, shard_batch

    mesh = build_mesh()
    dataset = tokenized(pictures(), Letters(), dropout=0.5)
    expected = batches(dataset, 2)
    with DevicePrefetch(dataset.train(DataPartition()), lambda batch: shard_batch(mesh, batch)) as placed:
        first = next(placed)
        assert isinstance(first["text"]["input_ids"], jax.Array)
        np.testing.assert_array_equal(first["text"]["input_ids"], expected[0]["text"]["input_ids"])
        state = placed.get_state()
        placed.set_state(state)
        np.testing.assert_array_equal(next(placed)["text"]["input_ids"], expected[1]["text"]["input_ids"])
    with (
        DevicePrefetch(pictures().train(DataPartition()), lambda batch: shard_batch(mesh, batch)) as placed,
        pytest.raises(FieldError, match="caption"),
    ):
        next(placed)


class Numbers(Iterator[dict[str, Any]]):
    """A stream of somebody else's, with a state of its own; `kind` says which form it has."""

    def __init__(self, kind: str = "") -> None:
        self.at = 0
        self.kind = kind
        self.accepted: Any = None
        self.closed = False

    def __next__(self) -> dict[str, Any]:
        self.at += 1
        return {"caption": np.array([chr(96 + self.at)] * 2)}

    def get_state(self) -> Any:
        if self.kind == "shard":
            return ShardPosition(0, 1, {"at": self.at}).to_json()
        if self.kind == "records":
            stream = pictures().train(DataPartition())
            return {**stream.get_state(), "records": 8 * self.at}  # type: ignore[attr-defined]
        return {"at": self.at}

    def set_state(self, state: Any, accept: Any = ()) -> None:
        self.accepted = accept
        if self.kind == "shard":
            state = state["state"]
        self.at = state["records"] // 8 if self.kind == "records" else state["at"]

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("kind", ["", "shard", "records"])
def test_a_stream_of_another_kind_keeps_its_state(kind: str) -> None:
    inner = Numbers(kind)
    dataset = tokenized(Dataset(train=lambda _: inner, batch=2), Letters())
    with dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        assert next(stream)["text"]["input_ids"][0, 0] == 1
        state = json.loads(json.dumps(stream.get_state()))
        next(stream)
        stream.set_state(state)
        assert next(stream)["text"]["input_ids"][0, 0] == 2
        stream.set_state(state, accept={"fingerprint"})
        assert inner.accepted == {"fingerprint"}
        other = tokenized(Dataset(train=lambda _: inner, batch=2), Letters(vocabulary="other")).train(DataPartition())
        with pytest.raises(PositionMismatchError, match=r"'letters'.*'other'"):
            other.set_state(state)  # type: ignore[attr-defined]
        other.set_state(state, accept={"encoder"})  # type: ignore[attr-defined]
        assert inner.at == 1
        with pytest.raises(PositionMismatchError, match="absent"):
            stream.set_state(inner.get_state())
    assert inner.closed


def test_a_stream_without_a_state_gets_none_and_cannot_drop() -> None:
    rows = [{"caption": np.array(["ab", "c"])}] * 2
    dataset = Dataset(train=lambda _: iter(rows), val=lambda _: iter(rows), batch=2)
    stream = tokenized(dataset, Letters()).train(DataPartition())
    assert not hasattr(stream, "get_state")
    np.testing.assert_array_equal(next(stream)["text"]["input_ids"][:, 0], [1, 3])
    assert rows[0].keys() == {"caption"}
    stream.close()  # type: ignore[attr-defined]
    with pytest.raises(OptionsTypeError, match=r"dropout=0.1 is drawn from .* a list_iterator, has none"):
        tokenized(dataset, Letters(), dropout=0.1).train(DataPartition())


@attrs.frozen
class Wrong(Letters):
    """Returns what it was made with."""

    result: Any = None

    def tokenize(self, captions: Sequence[str], /) -> Any:
        return self.result


REFUSED = [
    ({"field": "prompt"}, FieldError, r"no captions in 'prompt'; it has \['caption', 'id'\].*captions=\"keep\""),
    ({"field": "id"}, FieldError, r"captions in 'id' must be one str a row, got int32 of shape \(8,\)"),
    ({"into": "id"}, FieldError, "has a field 'id' already"),
    ({"encoder": Wrong(result=[1])}, FieldError, "Wrong.tokenize must return a mapping .* got list"),
    ({"encoder": Wrong(result={"x": np.ones(3)})}, FieldError, r"given 8 captions and returned 'x' as float64 of .*3"),
    ({"encoder": Wrong(result={"x": ["a"] * 8})}, FieldError, "returned 'x' as <U1"),
]


@pytest.mark.parametrize(("wrong", "error", "match"), REFUSED)
def test_what_does_not_fit_is_refused_by_name(wrong: Any, error: type[Exception], match: str) -> None:
    dataset = tokenized(pictures(), **{"encoder": Letters(), **wrong})
    with dataset.train(DataPartition()) as stream, pytest.raises(error, match=match) as caught:  # type: ignore[attr-defined]
        next(stream)
    assert any("step 0" in note for note in caught.value.__notes__)


ARGUMENTS = [
    ({"dropout": 1.5}, OptionsError, "share from 0 to 1, got 1.5"),
    ({"dropout": True}, OptionsTypeError, "share from 0 to 1, got True"),
    ({"field": ""}, OptionsTypeError, "field must be the name of a field, got ''"),
    ({"keep": True, "into": "caption"}, OptionsError, "keep=True leaves the captions in 'caption'"),
    ({"encoder": "clip"}, OptionsTypeError, "encoder must be a ConditionEncoder .* got 'clip'"),
    ({"dataset": 3}, OptionsTypeError, "takes a Dataset, got int"),
]


@pytest.mark.parametrize(("wrong", "error", "match"), ARGUMENTS)
def test_arguments_that_cannot_be_are_refused(wrong: Any, error: type[Exception], match: str) -> None:
    given = {"dataset": pictures(), "encoder": Letters(), **wrong}
    with pytest.raises(error, match=match):
        tokenized(given.pop("dataset"), **given)


def test_captions_of_several_fields_stand_in_records_too() -> None:
    rows = [{"id": number, "caption": text} for number, text in enumerate(captions(9))]
    dataset = tokenized(dataset_of(in_memory(rows), batch=3), Letters())
    with assert_nothing_left(), dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        batch = next(stream)
    assert batch["text"]["input_ids"].shape == (3, 6)


WORDS = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "a": 4, "red": 5, "flower": 6, "blue": 7}


def definition(folder: Path, config: Any = None, **parts: Any) -> Path:
    """A `tokenizer.json` of words, which puts `<s>` before a caption and `</s>` behind it."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [("<s>", 1), ("</s>", 2)]
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=special)
    made.add_special_tokens([AddedToken(name, special=True) for name in ("<pad>", "<s>", "</s>")])
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps({**json.loads(made.to_str()), **parts}))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder / "tokenizer.json"


def test_a_tokenizer_json_cuts_and_fills_up(tmp_path: Path) -> None:
    encoder = TokenizerEncoder(definition(tmp_path), context_length=6, pad_id=0)
    assert isinstance(encoder, ConditionEncoder)
    made = encoder.tokenize(["a red flower", "", "red red red red red red", "blue cat"])
    np.testing.assert_array_equal(
        made["input_ids"],
        [[1, 4, 5, 6, 2, 0], [1, 2, 0, 0, 0, 0], [1, 5, 5, 5, 5, 2], [1, 7, 3, 2, 0, 0]],
    )
    np.testing.assert_array_equal(made["attention_mask"].sum(1), [5, 2, 6, 4])
    assert made["input_ids"].dtype == made["attention_mask"].dtype == np.int32
    assert encoder.tokenize([])["input_ids"].shape == (0, 6)
    assert (encoder.context_length, encoder.pad_id) == (6, 0)
    assert "tokenizers" in encoder.made_by


def test_it_agrees_with_transformers(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    path = definition(tmp_path, {"model_max_length": 5, "pad_token": "</s>"})
    reference = PreTrainedTokenizerFast(tokenizer_file=str(path), pad_token="</s>", model_max_length=5)
    texts = ["a red flower", "", "a red red red flower", "blue"]
    expected = reference(texts, padding="max_length", truncation=True, return_tensors="np")
    found = TokenizerEncoder(tmp_path).tokenize(texts)
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name])


def test_length_and_pad_id_come_from_the_files(tmp_path: Path) -> None:
    stated = {"padding": {"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": None, "pad_id": 2}}
    stated["padding"] |= {"pad_type_id": 0, "pad_token": "</s>"}
    config = {"model_max_length": 4, "pad_token": {"content": "<pad>"}, "truncation_side": "left"}
    by_config = TokenizerEncoder(definition(tmp_path / "config", config).parent)
    assert (by_config.context_length, by_config.pad_id) == (4, 0)
    np.testing.assert_array_equal(by_config.tokenize(["a red flower"])["input_ids"], [[1, 5, 6, 2]])
    by_definition = TokenizerEncoder(definition(tmp_path / "own", config, **stated))
    np.testing.assert_array_equal(by_definition.tokenize(["a"])["input_ids"], [[2, 1, 4, 2]])
    assert by_definition.vocabulary == by_config.vocabulary


def test_an_encoder_pickles_by_path_and_notices_a_change(tmp_path: Path) -> None:
    encoder = TokenizerEncoder(definition(tmp_path), context_length=6, pad_id=0)
    data = pickle.dumps(encoder)
    assert len(data) < 1000
    np.testing.assert_array_equal(pickle.loads(data).tokenize(["red"])["input_ids"], [[1, 5, 2, 0, 0, 0]])
    path = definition(tmp_path)
    path.write_text(path.read_text().replace('"flower"', '"tree"'))
    with pytest.raises(DamagedSourceError, match="altered since it was opened"):
        pickle.loads(data)


def test_another_release_of_the_library_warns(tmp_path: Path) -> None:
    encoder = TokenizerEncoder(definition(tmp_path), context_length=6, pad_id=0)
    with tokenized(pictures(), encoder).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        next(stream)
        state = stream.get_state()
        with pytest.warns(DewWarning, match=r"made with tokenizers 0\.1"):
            stream.set_state({**state, "made_by": {**state["made_by"], "tokenizers": "0.1"}})


def test_a_tokenizer_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    path = definition(tmp_path)
    with pytest.raises(SourceNotFoundError, match=r"no tokenizer.json at .*nowhere"):
        TokenizerEncoder(tmp_path / "nowhere")
    with pytest.raises(OptionsError, match="how many tokens a caption has; pass context_length="):
        TokenizerEncoder(path)
    with pytest.raises(OptionsError, match="filled up with; pass pad_id="):
        TokenizerEncoder(path, context_length=5)
    with pytest.raises(OptionsError, match="pad_id=99 is no token"):
        TokenizerEncoder(path, context_length=5, pad_id=99)
    with pytest.raises(OptionsError, match=r"context of 1 cannot hold|larger context_length"):
        TokenizerEncoder(path, context_length=1, pad_id=0).tokenize(["a"])
    drawing = json.loads(path.read_text())
    drawing["model"]["dropout"] = 0.1
    path.write_text(json.dumps(drawing))
    with pytest.raises(OptionsError, match=r"at random \(dropout 0.1\)"):
        TokenizerEncoder(path, context_length=5, pad_id=0)
    for text, match in (("{", "is no tokenizer.json"), ('{"model": {}}', "that the package tokenizers reads")):
        path.write_text(text)
        with pytest.raises(DamagedSourceError, match=match):
            TokenizerEncoder(path, context_length=5, pad_id=0)
    definition(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(DamagedSourceError, match=r"tokenizer_config.json is not JSON"):
        TokenizerEncoder(path, context_length=5, pad_id=0)
