"""Packed documents: rows of real corpora, their plans on disk, and the data sets made of them."""

import itertools
import re
from pathlib import Path
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dew.tokens
from dew.data import DataPartition, Dataset, DewWarning, Loading, check_batch, load
from dew.data.errors import (
    OptionsError,
    OptionsTypeError,
    OverlapError,
    PositionMismatchError,
    SourceError,
    SplitError,
)
from dew.data.fields import segment_mask, target_mask
from dew.data.source import RecordSource, describe, fingerprint, identity
from dew.testing import SourceSuite, StreamSuite
from dew.tokens import PackedDocuments, PackedSource, TokenCorpus, TokenOptions, packing, shards, write_corpus
from dew.tokens.documents import open_rows

FAST = Loading(read_buffer=0)


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    return tmp_path / "user-cache" / "dew" / "plans"


def take(stream: Any, steps: int) -> list[Any]:
    return [next(stream) for _ in range(steps)]


def everything(source: PackedSource) -> dict[str, np.ndarray[Any, Any]]:
    return source.take(np.arange(len(source)))


# Rows


@given(
    data=st.data(),
    seq_len=st.integers(1, 40),
    shard_tokens=st.integers(1, 200),
    vocab_size=st.sampled_from([9, 1 << 17]),
)
def test_every_target_of_every_document_is_read_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, seq_len: int, shard_tokens: int, vocab_size: int
) -> None:
    """By content: what predicts what, from the batch alone, is what the documents say, none lost and none invented."""
    documents = data.draw(st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=70), min_size=1, max_size=30))
    path = tmp_path_factory.mktemp("packed")
    write_corpus(documents, path, vocab_size=vocab_size, shard_tokens=shard_tokens)
    source = PackedSource(TokenCorpus(path), seq_len=seq_len)
    batch = everything(source)
    check_batch(batch, "packed-lm")
    found = []
    for text, segments, mask in zip(
        batch["text"], batch["text_segment_ids"], target_mask(batch["text_segment_ids"]), strict=True
    ):
        assert (text[segments == 0] == 0).all()
        found += [(int(text[t]), int(text[t + 1])) for t in np.flatnonzero(mask)]
    expected = [pair for document in documents for pair in itertools.pairwise(document)]
    assert sorted(found) == sorted(expected)
    assert source.counts.targets == len(expected)
    assert (batch["text_segment_ids"] > 0).sum() == source.counts.filled


def test_rows_hold_what_their_spans_say(corpus_path: Path, stream: np.ndarray[Any, Any]) -> None:
    source = PackedSource(TokenCorpus(corpus_path), seq_len=48, start=0)
    batch = everything(source)
    assert {name: (column.shape, column.dtype.name) for name, column in batch.items()} == dict.fromkeys(
        ("text", "text_segment_ids", "text_positions"), ((len(source), 49), "int32")
    )
    for row, text in enumerate(batch["text"]):
        spans = source.spans(row)
        tokens = np.concatenate([stream[start:stop] for start, stop in spans])
        np.testing.assert_array_equal(text[: len(tokens)], tokens)
        assert not text[len(tokens) :].any()
        restarts = np.flatnonzero(np.diff(batch["text_segment_ids"][row], prepend=0) > 0)
        assert (batch["text_positions"][row, restarts] == 0).all()
        assert len(restarts) == len(spans)


def test_batches_need_no_copy(corpus_path: Path) -> None:
    """An array that does not own its memory would be copied by the stream."""
    source = PackedSource(TokenCorpus(corpus_path), seq_len=16)
    for column in source.take(np.array([1, 0, 1])).values():
        assert column.flags.owndata
        assert column.flags.c_contiguous
        assert column.flags.writeable
    empty = source.take(np.empty(0, np.int64))
    assert {column.shape for column in empty.values()} == {(0, 17)}


def test_rows_that_do_not_exist(corpus_path: Path) -> None:
    source = PackedSource(TokenCorpus(corpus_path), seq_len=16)
    for index in (-1, len(source)):
        with pytest.raises(IndexError, match=rf"row {index} was asked for, there are rows 0 to {len(source) - 1}"):
            source[index]
        with pytest.raises(IndexError, match=rf"row {index} was asked for"):
            source.spans(index)


def test_shards_past_the_bound_of_maps_are_read_too(corpus_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = everything(PackedSource(TokenCorpus(corpus_path), seq_len=16))
    monkeypatch.setattr(shards, "MAX_MAPS", 0)
    found = everything(PackedSource(TokenCorpus(corpus_path), seq_len=16))
    for name, column in expected.items():
        np.testing.assert_array_equal(found[name], column)


def test_spans_that_are_in_no_shard(corpus_path: Path) -> None:
    corpus = TokenCorpus(corpus_path)
    first = corpus.manifest.shards[0].tokens
    one = np.ones(1, np.int64)
    for start, length in ((-1, 2), (first - 1, 2), (corpus.tokens, 1), (corpus.tokens - 1, 2), (3, 0)):
        with pytest.raises(IndexError, match=rf"tokens \[{start}, {start + length}\) were asked for as a part of one"):
            corpus.gather_rows(np.array([start]), np.array([length]), one, 8)
    with pytest.raises(OptionsError, match=r"row 0 has 9 tokens, a row holds 8"):
        corpus.gather_rows(np.array([0]), np.array([9]), one, 8)


def test_lengths_come_shard_by_shard(corpus_path: Path, memory_url: str, documents: Any) -> None:
    write_corpus(documents, memory_url, vocab_size=1000, shard_tokens=100)
    for path in (corpus_path, memory_url):
        corpus = TokenCorpus(path)
        parts = list(corpus.document_lengths())
        assert len(parts) == len(corpus.manifest.shards)
        np.testing.assert_array_equal(np.concatenate(parts), [len(document) for document in documents])
        start, stop = (int(corpus.offsets[number]) for number in (37, 153))
        inside = np.concatenate(list(corpus.document_lengths(start, stop)))
        np.testing.assert_array_equal(inside, [len(document) for document in documents[37:153]])
        assert sum(map(len, corpus.document_lengths(start, start))) == 0
        long = next(number for number in range(200) if len(documents[number]) > 2)
        middle = int(corpus.offsets[long]) + 1
        for cut in ({"start": middle}, {"stop": middle}):
            with pytest.raises(OptionsError, match=r"hold a document only in part; cut between documents"):
                list(corpus.document_lengths(**cut))
        with pytest.raises(IndexError, match=rf"the corpus has tokens \[0, {corpus.tokens}\)"):
            list(corpus.document_lengths(0, corpus.tokens + 1))


# Options


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"seq_len": 0}, OptionsError, r"seq_len must be at least 1, got 0"),
        ({"seq_len": 2, "val": 2.0}, OptionsError, r"val must be a fraction"),
        ({"seq_len": 2, "long": "cut"}, OptionsError, r"long must be one of split, truncate, drop, error, got 'cut'"),
        ({"seq_len": 2, "max_segments": 0}, OptionsError, r"max_segments must be at least 1, got 0"),
        ({"seq_len": 2, "plans": 3}, OptionsTypeError, r"plans must be the path of a directory or None, got 3 \(int\)"),
        ({"seq_len": 2, "plans": ""}, OptionsError, r"plans must be a directory of this machine, .* got ''"),
        (
            {"seq_len": 2, "plans": "gs://b"},
            OptionsError,
            r"plans must be a directory of this machine, .* got 'gs://b'",
        ),
    ],
)
def test_wrong_options(options: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        PackedDocuments("corpus", **options)
    with pytest.raises(kind, match=message):
        TokenOptions(pack=True, **options)


def test_options_of_packing_need_pack() -> None:
    with pytest.raises(OptionsTypeError, match=r"pack must be True or False, got 1 \(int\)"):
        TokenOptions(seq_len=2, pack=1)  # type: ignore[arg-type]
    with pytest.raises(
        OptionsError, match=r"long and max_segments say how documents are packed, and pack is False; add"
    ):
        TokenOptions(seq_len=2, long="drop", max_segments=3)
    with pytest.raises(OptionsError, match=r"plans say how"):
        TokenOptions(seq_len=2, plans="here")
    with pytest.raises(OptionsError, match=r"seed must be in"):
        PackedDocuments("corpus", seq_len=2, seed=-1)


def test_the_same_by_name_and_by_value(corpus_path: Path) -> None:
    packed = PackedDocuments(corpus_path, seq_len=16, val=0.1, long="truncate", max_segments=2, seed=3, loading=FAST)
    assert packed.path == str(corpus_path)
    with pytest.warns(DewWarning, match="long='truncate' loses"):
        by_value = packed.load(batch=8)
    with pytest.warns(DewWarning, match="long='truncate' loses"):
        by_name = load(f"tokens/{corpus_path}", batch=8, options=packed.options, seed=3, loading=FAST)
    assert by_value.records == by_name.records
    with by_value.train(DataPartition()) as left, by_name.train(DataPartition()) as right:  # type: ignore[attr-defined]
        assert left.get_state() == right.get_state()
        for ours, theirs in zip(take(left, 5), take(right, 5), strict=True):
            for name in ("text", "text_segment_ids", "text_positions"):
                np.testing.assert_array_equal(ours[name], theirs[name])
        assert left.get_state() == right.get_state()
    assert by_value.val is not None
    assert by_name.val is not None
    for ours, theirs in zip(by_value.val(DataPartition()), by_name.val(DataPartition()), strict=True):
        np.testing.assert_array_equal(ours["text"], theirs["text"])


def test_names_are_public() -> None:
    assert {"PackedDocuments", "PackedSource", "packing_report"} <= set(dew.tokens.__all__)


def test_what_is_lost_is_said(tmp_path: Path) -> None:
    write_corpus([range(30), range(10)], tmp_path, vocab_size=30)
    lost = "long='truncate' loses 42.1% of the 38 targets: of 2 documents 1 are truncated and 0 dropped at seq_len 13"
    with pytest.warns(DewWarning, match=re.escape(f"{lost}; long='split' loses none")):
        PackedSource(TokenCorpus(tmp_path), seq_len=13, long="truncate")
    with pytest.warns(DewWarning, match=r"long='drop' loses 76\.3% .* 0 are truncated and 1 dropped at seq_len 13"):
        source = PackedSource(TokenCorpus(tmp_path), seq_len=13, long="drop")
    assert source.report().lost_share == 29 / 38
    PackedSource(TokenCorpus(tmp_path), seq_len=28, long="truncate")  # a thirtieth, without a word
    with pytest.raises(SourceError, match=r"document 0 has 30 tokens, and a row of seq_len 13 has room for 14"):
        PackedDocuments(tmp_path, seq_len=13, long="error").load(batch=1)


def test_the_report_of_a_split(corpus_path: Path, documents: Any) -> None:
    report = PackedDocuments(corpus_path, seq_len=64, val=0.2).report()
    held_out = PackedDocuments(corpus_path, seq_len=64, val=0.2).report("val")
    assert report.counts.documents + held_out.counts.documents == len(documents)
    assert report.counts.tokens + held_out.counts.tokens == sum(map(len, documents))
    assert report.fill > 0.95


# Validation and splits


@pytest.mark.parametrize("count", [1, 2, 4])
def test_validation_reads_each_document_of_the_tail_once(corpus_path: Path, documents: Any, count: int) -> None:
    dataset = PackedDocuments(corpus_path, seq_len=64, val=0.2, loading=FAST).load(batch=8)
    assert dataset.val is not None
    passes = [list(dataset.val(DataPartition(index, count))) for index in range(count)]
    assert len({len(batches) for batches in passes}) == 1
    found = []
    for batch in (batch for batches in passes for batch in batches):
        for text, segments, valid in zip(batch["text"], batch["text_segment_ids"], batch["valid"], strict=True):
            assert valid or not segments.any()
            found += [text[segments == segment].tolist() for segment in range(1, segments.max() + 1)]
    training = open_rows(str(corpus_path), "train", TokenOptions(seq_len=64, val=0.2, pack=True))
    kept = [document.tolist() for document in documents[training.counts.documents :]]
    assert sorted(found) == sorted(kept)
    assert dataset.records == len(training)


def test_training_and_validation_share_no_document(corpus_path: Path) -> None:
    options = TokenOptions(seq_len=64, val=0.25, pack=True)
    train, val = (open_rows(str(corpus_path), split, options) for split in ("train", "val"))
    assert train.stop == val.start
    assert max(stop for row in range(len(train)) for _, stop in train.spans(row)) == train.stop
    assert min(start for row in range(len(val)) for start, _ in val.spans(row)) == val.start
    assert describe(val) == (
        f"PackedSource(seq_len=64, long='split', max_segments=None, tokens {val.start} to {val.stop} of {val.stop})"
    )


def test_splits_are_directories(tmp_path: Path) -> None:
    for split, ids in (("train", range(100)), ("heldout", range(100, 160)), ("copy", range(100))):
        write_corpus([ids], tmp_path / split, vocab_size=200)
    dataset = PackedDocuments(tmp_path, seq_len=9, val="heldout", loading=FAST).load(batch=4)
    assert dataset.records == 11
    assert dataset.val is not None
    assert min(int(batch["text"][batch["text_segment_ids"] > 0].min()) for batch in dataset.val(DataPartition())) == 100
    with pytest.raises(SplitError, match=r"no split 'other' in .*; there are \['copy', 'heldout', 'train'\]"):
        PackedDocuments(tmp_path, seq_len=9, val="other").load(batch=1)
    for same in ("train", "copy"):
        with pytest.raises(OverlapError, match="training and validation would read the same records"):
            PackedDocuments(tmp_path, seq_len=9, val=same).load(batch=1)
    # The same corpus packed and in windows is told apart by description, so it is on the user.
    assert load(f"tokens/{tmp_path}", split="heldout", batch=2, options=TokenOptions(seq_len=9, pack=True)).records == 7


def test_a_cut_inside_a_document(corpus_path: Path, documents: Any) -> None:
    corpus = TokenCorpus(corpus_path)
    middle = next(int(corpus.offsets[number]) + 1 for number in range(200) if len(documents[number]) > 1)
    with pytest.raises(OptionsError, match=r"hold a document only in part; cut between documents"):
        PackedSource(corpus, seq_len=16, start=middle)
    for wrong in ({"start": -1}, {"start": 0, "stop": -1}):
        with pytest.raises(OptionsError, match="must be at least 0, got -1"):
            PackedSource(corpus, seq_len=16, **wrong)
    with pytest.raises(IndexError, match=r"the corpus has tokens"):
        PackedSource(corpus, seq_len=16, stop=corpus.tokens + 1)


# Positions


def test_the_same_plan_on_any_process_count(corpus_path: Path) -> None:
    """Case C16, second half: the plan is in every position, and every share reads its rows of one plan."""
    states = []
    for count in (1, 4):
        for index in range(count):
            dataset = PackedDocuments(corpus_path, seq_len=64, loading=FAST).load(batch=4)
            with dataset.train(DataPartition(index, count)) as stream:  # type: ignore[attr-defined]
                states.append(stream.get_state())
    assert len(states) == 5
    assert all(state == states[0] for state in states)
    assert re.fullmatch("[0-9a-f]{64}", states[0]["order"]["plan"])


def state_of(packed: PackedDocuments) -> Any:
    with packed.load(batch=2).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        next(stream)
        return stream.get_state()


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"seq_len": 63}, "source"),
        ({"max_segments": 2}, "source"),
        ({"long": "error"}, "source"),
        ({"val": 0.1}, "source"),
    ],
)
def test_other_rows_are_refused(corpus_path: Path, changes: Any, part: str) -> None:
    packed = PackedDocuments(corpus_path, seq_len=64, loading=FAST)
    state = state_of(packed)
    with attrs.evolve(packed, **changes).load(batch=2).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        with pytest.raises(PositionMismatchError) as caught:
            stream.set_state(state)
        assert caught.value.part == part


def test_the_plan_of_another_version_is_refused(corpus_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = PackedDocuments(corpus_path, seq_len=64, loading=FAST)
    state = state_of(packed)
    monkeypatch.setattr(packing, "PLAN_VERSION", 2)
    with packed.load(batch=2).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        with pytest.raises(
            PositionMismatchError, match=r"another plan: saved '[0-9a-f]{64}', .*accept={'plan'}"
        ) as caught:
            stream.set_state(state)
        assert caught.value.part == "plan"


def test_a_moved_corpus_goes_on(tmp_path: Path) -> None:
    write_corpus([range(50), range(20)], tmp_path / "first", vocab_size=50)
    state = state_of(PackedDocuments(tmp_path / "first", seq_len=7, loading=FAST))
    (tmp_path / "first").rename(tmp_path / "second")
    with PackedDocuments(tmp_path / "second", seq_len=7, loading=FAST).load(batch=2).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        stream.set_state(state)
        assert stream.get_state() == state


def test_worker_processes_read_the_same(corpus_path: Path, tmp_path: Path) -> None:
    found = []
    for loading, plans_in in ((FAST, None), (Loading(workers=1), None), (Loading(workers=1), tmp_path / "plans")):
        packed = PackedDocuments(corpus_path, seq_len=64, plans=plans_in, loading=loading)
        with packed.load(batch=6).train(DataPartition(1, 2)) as stream:  # type: ignore[attr-defined]
            found.append(np.stack([batch[name] for batch in take(stream, 4) for name in sorted(batch)]))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


# A model sees each document alone


def model(parameters: dict[str, Any], text: Any, positions: Any, mask: Any) -> Any:
    """One attention layer with learned positions: logits (B, S, vocabulary)."""
    hidden = parameters["tokens"][text] + parameters["positions"][positions]
    query, key, value = (hidden @ parameters[name] for name in ("query", "key", "value"))
    scores = jnp.where(mask, query @ jnp.swapaxes(key, -1, -2) / 4.0, -jnp.inf)
    return (hidden + jax.nn.softmax(scores) @ value) @ parameters["tokens"].T


def losses(parameters: dict[str, Any], batch: dict[str, Any]) -> Any:
    """Loss of each target, 0 where there is none, (B, S)."""
    segments = batch["text_segment_ids"][:, :-1]
    logits = model(parameters, batch["text"][:, :-1], batch["text_positions"][:, :-1], segment_mask(segments))
    of_targets = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["text"][:, 1:, None], -1)[..., 0]
    return jnp.where(target_mask(batch["text_segment_ids"]), -of_targets, 0.0)


@pytest.fixture
def parameters() -> dict[str, Any]:
    shapes = {"tokens": (1000, 16), "positions": (80, 16), "query": (16, 16), "key": (16, 16), "value": (16, 16)}
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return {name: jax.random.normal(key, shape) for key, (name, shape) in zip(keys, shapes.items(), strict=True)}


def test_the_loss_of_a_document_is_the_same_alone_and_packed(
    corpus_path: Path, stream: np.ndarray[Any, Any], parameters: dict[str, Any]
) -> None:
    """Alone: plain causal attention over the document, which knows nothing of segments or of what follows."""

    @jax.jit
    def alone(text: Any) -> Any:
        logits = model(parameters, text[:-1], jnp.arange(64), np.tri(64, dtype=bool))
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), text[1:, None], -1)[..., 0]

    source = PackedSource(TokenCorpus(corpus_path), seq_len=64)
    batch = source.take(np.arange(20))
    packed = np.asarray(jax.jit(losses)(parameters, batch))
    several = 0
    for row in range(20):
        spans = source.spans(row)
        several += len(spans) > 1
        total = 0
        for segment, (start, stop) in enumerate(spans, 1):
            text = np.zeros(65, np.int32)
            text[: stop - start] = stream[start:stop]
            expected = np.asarray(alone(text))[: stop - start - 1]
            at = np.flatnonzero(batch["text_segment_ids"][row] == segment)[:-1]
            np.testing.assert_allclose(packed[row, at], expected, rtol=2e-5, atol=2e-5)
            total += len(at)
        assert np.count_nonzero(packed[row]) == total
    assert several >= 10


def test_no_gradient_crosses_from_one_document_to_another(corpus_path: Path, parameters: dict[str, Any]) -> None:
    """The loss of one document does not feel the embeddings of the others, and padding makes no gradient NaN."""
    source = PackedSource(TokenCorpus(corpus_path), seq_len=64)
    row = next(
        index
        for index in range(len(source))
        if len(source.spans(index)) > 1 and source[index]["text_segment_ids"][-1] == 0
    )
    batch = {name: jnp.asarray(column) for name, column in source.take(np.array([row])).items()}
    segments = np.asarray(batch["text_segment_ids"])[0, :-1]

    def loss(inputs: Any, segment: int) -> Any:
        """Of one segment, as a function of the embeddings of all places."""
        apart = {**parameters, "tokens": jnp.concatenate([inputs, parameters["tokens"]])}
        logits = model(apart, jnp.arange(64)[None], batch["text_positions"][:, :-1], segment_mask(segments[None]))
        found = jnp.take_along_axis(jax.nn.log_softmax(logits[..., 64:]), batch["text"][:, 1:, None], -1)[0, :, 0]
        return jnp.where(target_mask(batch["text_segment_ids"])[0] & (segments == segment), -found, 0.0).sum()

    inputs = parameters["tokens"][batch["text"][0, :-1]]
    gradient_of = jax.jit(jax.grad(loss))
    for segment in range(1, int(segments.max()) + 1):
        gradient = np.abs(np.asarray(gradient_of(inputs, segment))).sum(-1)
        assert np.isfinite(gradient).all()
        assert (gradient[segments != segment] == 0).all()
        assert gradient[segments == segment].any()


# The suites


class TestPackedSource(SourceSuite):
    @pytest.fixture(autouse=True)
    def _path(self, corpus_path: Path) -> None:
        self.path = corpus_path
        self.location = str(corpus_path)

    def make_source(self) -> RecordSource:
        return PackedSource(TokenCorpus(self.path), seq_len=48)

    def test_names_its_tokenizer_and_plan(self) -> None:
        source = self.make_source()
        assert set(identity(source)) == {"tokenizer", "plan"}
        assert fingerprint(source) == TokenCorpus(self.path).manifest.id


class TestStoredPackedSource(SourceSuite):
    @pytest.fixture(autouse=True)
    def _path(self, corpus_path: Path, tmp_path: Path) -> None:
        self.path, self.plans = corpus_path, tmp_path / "plans"
        self.location = str(tmp_path)

    def make_source(self) -> RecordSource:
        corpus = TokenCorpus(self.path)
        start = int(corpus.offsets[30])
        return PackedSource(corpus, seq_len=30, start=start, max_segments=3, plans=self.plans)


class TestRemotePackedSource(SourceSuite):
    @pytest.fixture(autouse=True)
    def _url(self, memory_url: str, documents: Any) -> None:
        write_corpus(documents, memory_url, vocab_size=1000, shard_tokens=1000)
        self.url = memory_url
        self.location = memory_url

    def make_source(self) -> RecordSource:
        return PackedSource(TokenCorpus(self.url), seq_len=48)


class TestPackedStream(StreamSuite):
    @pytest.fixture(autouse=True)
    def _path(self, corpus_path: Path) -> None:
        self.path = corpus_path

    def make_dataset(self) -> Dataset:
        return load(f"tokens/{self.path}", batch=12, options=TokenOptions(seq_len=64, val=0.2, pack=True), seed=5)


class TestStoredPackedStream(StreamSuite):
    @pytest.fixture(autouse=True)
    def _path(self, corpus_path: Path, tmp_path: Path) -> None:
        self.path, self.plans = corpus_path, tmp_path / "plans"

    def make_dataset(self) -> Dataset:
        return PackedDocuments(self.path, seq_len=40, val=0.1, max_segments=2, plans=self.plans, seed=5).load(batch=12)
