"""Windows, splits, and the data sets made of them."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dew.data import DataPartition, Dataset, Loading, OptionsTypeError, OverlapError, PositionMismatchError, load
from dew.data.errors import DamagedSourceError, OptionsError, SourceError, SourceNotFoundError, SplitError
from dew.data.source import RecordSource, describe, fingerprint
from dew.testing import SourceSuite, StreamSuite
from dew.tokens import ByteTokenizer, TokenCorpus, TokenOptions, TokenWindows, WindowSource, write_corpus
from dew.tokens.windows import open_split, tail_start

FAST = Loading(read_buffer=0)


def text(batches: Any) -> np.ndarray[Any, Any]:
    """All rows of some batches."""
    return np.concatenate([batch["text"] for batch in batches])


def take(stream: Any, steps: int) -> list[Any]:
    return [next(stream) for _ in range(steps)]


@given(tokens=st.integers(2, 300), seq_len=st.integers(1, 40), shard_tokens=st.integers(1, 100))
def test_windows_cut_the_stream(
    tmp_path_factory: pytest.TempPathFactory, tokens: int, seq_len: int, shard_tokens: int
) -> None:
    if tokens < seq_len + 1:
        return
    ids = np.arange(tokens)
    path = tmp_path_factory.mktemp("windows")
    write_corpus(np.array_split(ids, max(1, tokens // 7)), path, vocab_size=300, shard_tokens=shard_tokens)
    source = WindowSource(TokenCorpus(path), seq_len=seq_len)
    assert len(source) == (tokens - 1) // seq_len
    found = source.take(np.arange(len(source)))["text"]
    assert found.dtype == np.int32
    for window, row in enumerate(found):
        np.testing.assert_array_equal(row, ids[window * seq_len : window * seq_len + seq_len + 1])
        np.testing.assert_array_equal(source[window]["text"], row)


def test_too_little_text_for_one_window(tmp_path: Path) -> None:
    write_corpus([[1] * 10], tmp_path, vocab_size=5)
    corpus = TokenCorpus(tmp_path)
    assert len(WindowSource(corpus, seq_len=9)) == 1
    with pytest.raises(SourceError, match=r"seq_len 10 takes 11 tokens, there are 10 .*; use a seq_len of at most 9"):
        WindowSource(corpus, seq_len=10)
    with pytest.raises(SourceError, match=r"seq_len 3 takes 4 tokens, there are 3 \(tokens \[2, 5\) of 10\)"):
        WindowSource(corpus, seq_len=3, start=2, stop=5)
    with pytest.raises(OptionsError, match=r"tokens \[2, 11\) are not in a corpus of 10 tokens"):
        WindowSource(corpus, seq_len=3, start=2, stop=11)


def test_windows_that_do_not_exist(corpus_path: Path) -> None:
    source = WindowSource(TokenCorpus(corpus_path), seq_len=16, start=32, stop=200)
    assert len(source) == 10
    for index in (-1, 10):
        with pytest.raises(IndexError, match=rf"window {index} was asked for, there are windows 0 to 9"):
            source[index]
        with pytest.raises(IndexError, match=r"were asked for, there are tokens \[32, 193\)"):
            source.take(np.array([0, index]))
    assert len(list(source)) == 10  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"seq_len": 0}, OptionsError, r"seq_len must be at least 1, got 0"),
        ({"seq_len": -4}, OptionsError, r"seq_len must be at least 1, got -4"),
        ({"seq_len": 2.0}, OptionsTypeError, r"seq_len must be an int, got 2\.0 \(float\)"),
        ({"seq_len": True}, OptionsTypeError, r"seq_len must be an int, got True"),
        ({"seq_len": None}, OptionsTypeError, r"seq_len must be an int, got None"),
        (
            {"seq_len": 2, "val": 0.0},
            OptionsError,
            r"val must be a fraction of the tokens above 0 and below 1, got 0\.0",
        ),
        ({"seq_len": 2, "val": 1.0}, OptionsError, r"val must be a fraction .* got 1\.0"),
        ({"seq_len": 2, "val": float("nan")}, OptionsError, r"val must be a fraction .* got nan"),
        ({"seq_len": 2, "val": 1}, OptionsTypeError, r"val must be the name of a split, a fraction .* got 1 \(int\)"),
        ({"seq_len": 2, "val": True}, OptionsTypeError, r"val must be the name of a split, .* got True \(bool\)"),
        ({"seq_len": 2, "val": ""}, OptionsError, r"val must name a split, a directory .* got ''"),
        ({"seq_len": 2, "val": "../other"}, OptionsError, r"val must name a split, .* got '\.\./other'"),
        ({"seq_len": 2, "val": ".."}, OptionsError, r"val must name a split"),
    ],
)
def test_wrong_options(options: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        TokenOptions(**options)
    with pytest.raises(kind, match=message):
        TokenWindows("corpus", **options)


def test_wrong_seeds() -> None:
    with pytest.raises(OptionsError, match=r"seed must be in \[0, 2\*\*64\), got -1"):
        TokenWindows("corpus", seq_len=2, seed=-1)


def test_the_split_that_validation_reads() -> None:
    assert TokenOptions(seq_len=2).val_split is None
    assert TokenOptions(seq_len=2, val=0.1).val_split == "val"
    assert TokenOptions(seq_len=2, val="heldout").val_split == "heldout"


def test_the_same_by_name_and_by_value(corpus_path: Path) -> None:
    windows = TokenWindows(corpus_path, seq_len=16, val=0.1, seed=3, loading=FAST)
    assert windows.path == str(corpus_path)
    by_value = windows.load(batch=8)
    by_name = load(f"tokens/{corpus_path}", batch=8, options=windows.options, seed=3, loading=FAST)
    assert by_value.records == by_name.records
    with by_value.train(DataPartition()) as left, by_name.train(DataPartition()) as right:  # type: ignore[attr-defined]
        assert left.get_state() == right.get_state()
        np.testing.assert_array_equal(text(take(left, 5)), text(take(right, 5)))
        assert left.get_state() == right.get_state()
    assert by_value.val is not None
    assert by_name.val is not None
    for left, right in zip(by_value.val(DataPartition()), by_name.val(DataPartition()), strict=True):
        np.testing.assert_array_equal(left["text"], right["text"])
        np.testing.assert_array_equal(left["valid"], right["valid"])


def test_resume_on_two_partitions(corpus_path: Path) -> None:
    def dataset() -> Dataset:
        return TokenWindows(corpus_path, seq_len=16, seed=11, loading=FAST).load(batch=6)

    with dataset().train(DataPartition()) as whole:  # type: ignore[attr-defined]
        take(whole, 70)  # past the first epoch of about 58 steps
        state = whole.get_state()
        rest = take(whole, 20)
    streams = [dataset().train(DataPartition(index, 2)) for index in range(2)]
    for stream in streams:
        stream.set_state(state)  # type: ignore[attr-defined]
    for batch in rest:
        rows = np.empty_like(batch["text"])
        for index, stream in enumerate(streams):
            rows[index::2] = next(stream)["text"]
        np.testing.assert_array_equal(rows, batch["text"])
    for stream in streams:
        stream.close()  # type: ignore[attr-defined]


def test_worker_processes_read_the_same(corpus_path: Path) -> None:
    found = []
    for loading in (FAST, Loading(), Loading(workers=1)):
        with TokenWindows(corpus_path, seq_len=16, loading=loading).load(batch=6).train(DataPartition(1, 2)) as stream:  # type: ignore[attr-defined]
            found.append(text(take(stream, 4)))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_an_epoch_reads_each_window_once(corpus_path: Path) -> None:
    source = WindowSource(TokenCorpus(corpus_path), seq_len=16)
    dataset = TokenWindows(corpus_path, seq_len=16, loading=FAST).load(batch=1)
    assert dataset.records == len(source)
    with dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        found = text(take(stream, len(source)))
    expected = source.take(np.arange(len(source)))["text"]
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, expected.tolist()))
    assert (found != expected).any()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_validation_reads_the_tail_once(corpus_path: Path, stream: np.ndarray[Any, Any], count: int) -> None:
    dataset = TokenWindows(corpus_path, seq_len=16, val=0.1, loading=FAST).load(batch=8)
    cut = tail_start(TokenCorpus(corpus_path), 0.1)
    assert dataset.records == (cut - 1) // 16
    records = (len(stream) - cut - 1) // 16
    assert dataset.val is not None
    passes = [list(dataset.val(DataPartition(index, count))) for index in range(count)]
    assert {len(batches) for batches in passes} == {-(-records // 8)}
    found = []
    for step in zip(*passes, strict=True):
        for row in range(8 // count):
            found += [batch["text"][row] for batch in step if batch["valid"][row]]
    np.testing.assert_array_equal(found, [stream[cut + 16 * k : cut + 16 * k + 17] for k in range(records)])


def test_processes_take_the_same_number_of_steps(tmp_path: Path) -> None:
    """Case B08."""
    rng = np.random.default_rng(42)
    documents = [rng.integers(0, 50, size=length) for length in rng.integers(10, 20, 100)]
    write_corpus(documents, tmp_path, vocab_size=50, shard_tokens=64)
    tokens = sum(map(len, documents))
    dataset = TokenWindows(tmp_path, seq_len=10, val=0.2, loading=FAST).load(batch=8)
    steps = dataset.steps_per_epoch
    cut = tail_start(TokenCorpus(tmp_path), 0.2)
    assert steps == (cut - 1) // 10 // 8
    assert dataset.val is not None
    lengths = []
    seen = set()
    for index in range(4):
        with dataset.train(DataPartition(index, 4)) as share:  # type: ignore[attr-defined]
            rows = [batch["text"] for batch in take(share, steps)]
            assert [row.shape for row in rows] == [(2, 11)] * steps
            seen |= {row.tobytes() for batch in rows for row in batch}
        lengths.append(len(list(dataset.val(DataPartition(index, 4)))))
    assert len(seen) == 8 * steps
    assert lengths == [-(-((tokens - cut - 1) // 10) // 8)] * 4


@given(lengths=st.lists(st.integers(1, 30), min_size=2, max_size=40), fraction=st.floats(0.001, 0.999))
def test_the_tail_is_the_fewest_documents_that_hold_the_fraction(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], fraction: float
) -> None:
    path = tmp_path_factory.mktemp("tail")
    write_corpus([[0] * length for length in lengths], path, vocab_size=1, shard_tokens=25)
    corpus = TokenCorpus(path)
    starts = [start for start in corpus.offsets.tolist()[:-1] if corpus.tokens - start >= fraction * corpus.tokens]
    if starts[-1] == 0:
        with pytest.raises(
            SourceError, match=rf"asks for \d+ of {corpus.tokens} tokens, .* are all {len(lengths)} of it"
        ):
            tail_start(corpus, fraction)
    else:
        assert tail_start(corpus, fraction) == starts[-1]


def test_the_tail_in_numbers(tmp_path: Path) -> None:
    write_corpus([[0] * 10] * 10, tmp_path, vocab_size=1, shard_tokens=30)
    corpus = TokenCorpus(tmp_path)
    assert [tail_start(corpus, fraction) for fraction in (0.001, 0.1, 0.11, 0.2, 0.3, 0.9)] == [90, 90, 80, 80, 70, 10]
    with pytest.raises(SourceError, match=r"val=0\.95 asks for 95 of 100 tokens, .* all 10 of it: none is left"):
        tail_start(corpus, 0.95)


def test_training_and_the_tail_share_no_token(tmp_path: Path) -> None:
    write_corpus(np.array_split(np.arange(1000), 37), tmp_path, vocab_size=1000, shard_tokens=100)
    options = TokenOptions(seq_len=7, val=0.25)
    train, val = (open_split(str(tmp_path), split, options) for split in ("train", "val"))
    seen = [np.unique(source.take(np.arange(len(source)))["text"]) for source in (train, val)]
    assert seen[0].max() < seen[1].min()
    assert seen[1].size > 240
    assert describe(train) == f"WindowSource(seq_len=7, tokens 0 to {val.start} of 1000)"
    assert describe(val) == f"WindowSource(seq_len=7, tokens {val.start} to 1000 of 1000)"


def test_one_document_has_no_tail(tmp_path: Path) -> None:
    write_corpus([range(100)], tmp_path, vocab_size=100)
    with pytest.raises(
        SourceError, match=r"val=0\.01 asks for 1 of 100 tokens, .* all 1 of it: none is left to train on"
    ):
        TokenWindows(tmp_path, seq_len=4, val=0.01).load(batch=1)


def test_a_tail_that_is_too_short_for_a_window(tmp_path: Path) -> None:
    write_corpus([range(100), range(5)], tmp_path, vocab_size=100)
    with pytest.raises(SourceError, match=r"seq_len 8 takes 9 tokens, there are 5 \(tokens \[100, 105\) of 105\)"):
        TokenWindows(tmp_path, seq_len=8, val=0.01).load(batch=1)


@pytest.fixture
def splits_path(tmp_path: Path) -> Path:
    """A directory of three splits, one of them not finished, and something else."""
    path = tmp_path / "splits"
    write_corpus([range(100)], path / "train", vocab_size=200)
    write_corpus([range(100, 160)], path / "heldout", vocab_size=200)
    write_corpus([range(100, 160)], path / "broken", vocab_size=200, shard_tokens=10)
    (path / "broken" / "manifest.json").unlink()
    (path / "notes.txt").write_text("")
    return path


def test_splits_are_directories(splits_path: Path) -> None:
    dataset = TokenWindows(splits_path, seq_len=9, val="heldout", loading=FAST).load(batch=4)
    assert dataset.records == 11
    assert dataset.val is not None
    assert text(dataset.val(DataPartition())).min() == 100
    with dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        assert text(take(stream, 11)).max() == 99
    alone = load(f"tokens/{splits_path}", split="heldout", batch=2, options=TokenOptions(seq_len=9))
    assert alone.records == 6
    assert load(f"tokens/{splits_path}/heldout", batch=2, options=TokenOptions(seq_len=9)).records == 6


def test_splits_that_are_not_there(splits_path: Path) -> None:
    options = TokenOptions(seq_len=9)
    for split in ("test", "../splits/train", "", ".", "notes.txt"):
        with pytest.raises(SplitError, match=r"no split .* in .*; there are \['heldout', 'train'\]"):
            open_split(str(splits_path), split, options)
    with pytest.raises(SplitError, match=r"no split 'test' in .*/train: it holds one corpus, the split 'train'"):
        open_split(str(splits_path / "train"), "test", options)
    with pytest.raises(SplitError, match=r"no split 'other' in .*; there are"):
        TokenWindows(splits_path, seq_len=9, val="other").load(batch=1)
    with pytest.raises(DamagedSourceError, match=r"/broken is no finished token corpus: .* and 1 shards with receipts"):
        open_split(str(splits_path), "broken", options)
    with pytest.raises(SourceNotFoundError, match=r"no token corpus at .*/nowhere"):
        open_split(str(splits_path / "nowhere"), "train", options)


def test_a_fraction_needs_the_split_train(splits_path: Path) -> None:
    options = TokenOptions(seq_len=9, val=0.1)
    with pytest.raises(SplitError, match=r"no split 'heldout' with val=0\.1: a fraction is cut from the split 'train'"):
        open_split(str(splits_path), "heldout", options)
    (splits_path / "heldout").rename(splits_path / "val")
    with pytest.raises(
        OptionsError, match=r"val=0\.1 would be cut from .* has a split 'val' of its own; pass val='val'"
    ):
        open_split(str(splits_path), "train", options)


def test_validating_on_training_text_is_refused(splits_path: Path) -> None:
    with pytest.raises(OverlapError, match="training and validation would read the same records"):
        TokenWindows(splits_path, seq_len=9, val="train").load(batch=1)
    write_corpus([range(100)], splits_path / "copy", vocab_size=200)
    with pytest.raises(OverlapError, match="training and validation would read the same records"):
        TokenWindows(splits_path, seq_len=9, val="copy").load(batch=1)


def test_remote_splits(memory_url: str) -> None:
    write_corpus([range(100)], f"{memory_url}/train", vocab_size=200)
    write_corpus([range(100, 160)], f"{memory_url}/heldout", vocab_size=200)
    dataset = load(f"tokens/{memory_url}", batch=4, options=TokenOptions(seq_len=9, val="heldout"), loading=FAST)
    assert dataset.records == 11
    assert dataset.val is not None
    assert text(dataset.val(DataPartition())).min() == 100
    with dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        assert text(take(stream, 3)).max() <= 99
    with pytest.raises(SplitError, match=r"no split 'test' in memory://dew-.*; there are \['heldout', 'train'\]"):
        load(f"tokens/{memory_url}", batch=4, split="test", options=TokenOptions(seq_len=9))


def test_load_needs_options(corpus_path: Path) -> None:
    with pytest.raises(OptionsTypeError, match=r"needs options=TokenOptions\(seq_len=\.\.\.\), got none"):
        load(f"tokens/{corpus_path}", batch=4)


def test_more_rows_than_windows(tmp_path: Path) -> None:
    write_corpus([range(21)], tmp_path, vocab_size=100)
    assert TokenWindows(tmp_path, seq_len=10).load(batch=2).steps_per_epoch == 1
    with pytest.raises(SourceError, match=r"2 records.*batch of 3"):
        TokenWindows(tmp_path, seq_len=10).load(batch=3)


def state_of(windows: TokenWindows) -> Any:
    with windows.load(batch=2).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        next(stream)
        return stream.get_state()


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"documents": [range(1, 51)]}, "fingerprint"),
        ({"eos": True}, "source"),
        ({"tokenizer": ByteTokenizer(pad=True)}, "fingerprint"),
        ({"shard_tokens": 20, "documents": [range(25), range(25, 50)]}, "fingerprint"),
    ],
)
def test_a_corpus_that_was_swapped_under_a_position(tmp_path: Path, changes: Any, part: str) -> None:
    settings = {"tokenizer": ByteTokenizer(), "documents": [range(50)]}
    write_corpus(path=tmp_path / "first", **settings)
    write_corpus(path=tmp_path / "second", **(settings | changes))
    state = state_of(TokenWindows(tmp_path / "first", seq_len=7, loading=FAST))
    with TokenWindows(tmp_path / "second", seq_len=7, loading=FAST).load(batch=2).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        with pytest.raises(PositionMismatchError) as caught:
            stream.set_state(state)
        assert caught.value.part == part


def test_a_corpus_that_was_moved_goes_on(tmp_path: Path) -> None:
    write_corpus([range(50)], tmp_path / "first", vocab_size=50)
    state = state_of(TokenWindows(tmp_path / "first", seq_len=7, loading=FAST))
    (tmp_path / "first").rename(tmp_path / "second")
    with TokenWindows(tmp_path / "second", seq_len=7, loading=FAST).load(batch=2).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        stream.set_state(state)
        assert stream.get_state() == state


def test_other_windows_of_the_same_corpus_are_another_order(tmp_path: Path) -> None:
    """Also where the number of windows is the same."""
    write_corpus([range(50), range(7)], tmp_path, vocab_size=50)
    state = state_of(TokenWindows(tmp_path, seq_len=24, loading=FAST))
    with TokenWindows(tmp_path, seq_len=22, loading=FAST).load(batch=2).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        with pytest.raises(PositionMismatchError) as caught:
            stream.set_state(state)
        assert caught.value.part == "source"


class TestWindowSource(SourceSuite):
    @pytest.fixture(autouse=True)
    def _path(self, corpus_path: Path) -> None:
        self.path = corpus_path
        self.location = str(corpus_path)

    def make_source(self) -> RecordSource:
        return WindowSource(TokenCorpus(self.path), seq_len=16)

    def test_names_its_tokenizer(self) -> None:
        source = WindowSource(TokenCorpus(self.path), seq_len=16)
        assert source.identity() == {"tokenizer": None}
        assert fingerprint(source) == TokenCorpus(self.path).manifest.id

    def test_is_small_when_pickled(self) -> None:
        assert len(pickle.dumps(self.make_source())) < 1000


class TestRemoteWindowSource(SourceSuite):
    @pytest.fixture(autouse=True)
    def _url(self, memory_url: str, documents: Any) -> None:
        write_corpus(documents, memory_url, vocab_size=1000, shard_tokens=1000)
        self.url = memory_url
        self.location = memory_url

    def make_source(self) -> RecordSource:
        return WindowSource(TokenCorpus(self.url), seq_len=16)


class TestTokenStream(StreamSuite):
    @pytest.fixture(autouse=True)
    def _path(self, corpus_path: Path) -> None:
        self.path = corpus_path

    def make_dataset(self) -> Dataset:
        return load(f"tokens/{self.path}", batch=12, options=TokenOptions(seq_len=40, val=0.2), seed=5)
