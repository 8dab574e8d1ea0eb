"""Packing plans on disk: found again, mapped, never believed unverified, and made again where they are not there."""

import hashlib
import json
import logging
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dew.data import DewWarning, load
from dew.data.errors import DamagedSourceError, SourceError, StorageError
from dew.tokens import PackedDocuments, PackedSource, TokenCorpus, TokenOptions, packing, plans, write_corpus
from dew.tokens.manifest import FileRecord, Framing, Shard, TokenizerInfo, make_manifest, manifest_json
from dew.tokens.npy import header
from dew.tokens.plans import StoredPlan


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    return tmp_path / "user-cache" / "dew" / "plans"


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of 50 documents a window, so that a small corpus has several and its plan is kept."""
    monkeypatch.setattr(packing, "WINDOW", 50)
    monkeypatch.setattr(plans, "WINDOW", 50)


def everything(source: PackedSource) -> dict[str, np.ndarray[Any, Any]]:
    return source.take(np.arange(len(source)))


def stored_in(folder: Path) -> list[str]:
    return sorted(name.rpartition(".npy")[0].rpartition(".")[2] or "json" for name in os.listdir(folder))


def test_small_plans_of_local_corpora_are_not_kept(corpus_path: Path, user_cache: Path) -> None:
    PackedSource(TokenCorpus(corpus_path), seq_len=16)
    assert not (corpus_path / ".dew-plans").exists()
    assert not user_cache.exists()


@pytest.fixture
def copy_path(tmp_path: Path, documents: Any) -> Path:
    """A corpus to keep plans beside."""
    write_corpus(documents, tmp_path / "copy", vocab_size=1000, shard_tokens=1000)
    return tmp_path / "copy"


@pytest.mark.parametrize("shard_tokens", [100, 3000, 1 << 20])
def test_plans_are_kept_beside_the_corpus(
    tmp_path: Path,
    documents: Any,
    user_cache: Path,
    small_windows: None,
    monkeypatch: pytest.MonkeyPatch,
    shard_tokens: int,
) -> None:
    """Also where a shard holds more than a window of documents."""
    copy_path = tmp_path / "copy"
    write_corpus(documents, copy_path, vocab_size=1000, shard_tokens=shard_tokens)
    made = PackedSource(TokenCorpus(copy_path), seq_len=16)
    assert stored_in(copy_path / ".dew-plans") == ["json", "lengths", "rows", "starts"]
    assert not user_cache.exists()
    in_memory = packing.plan_rows(np.concatenate(list(made.corpus.document_lengths())), made.rules)
    assert made.identity()["plan"] == in_memory.id
    assert made.counts == in_memory.counts
    assert made.report() == packing.packing_report(in_memory)
    times = {path: path.stat().st_mtime_ns for path in (copy_path / ".dew-plans").iterdir()}
    # Found again: nothing is planned, nothing is written, no length is read.
    monkeypatch.setattr(TokenCorpus, "document_lengths", None)
    found = PackedSource(TokenCorpus(copy_path), seq_len=16)
    assert times == {path: path.stat().st_mtime_ns for path in (copy_path / ".dew-plans").iterdir()}
    assert found.identity() == made.identity()
    for name, column in everything(made).items():
        np.testing.assert_array_equal(everything(found)[name], column)


def test_plans_are_kept_where_asked(corpus_path: Path, tmp_path: Path) -> None:
    PackedDocuments(corpus_path, seq_len=16, val=0.1, plans=tmp_path / "one").load(batch=1)
    options = TokenOptions(seq_len=16, pack=True, plans=str(tmp_path / "two"))
    load(f"tokens/{corpus_path}", batch=1, options=options)
    assert (len(os.listdir(tmp_path / "one")), len(os.listdir(tmp_path / "two"))) == (8, 4)


def test_kept_plans_are_plain_arrays(copy_path: Path, small_windows: None) -> None:
    source = PackedSource(TokenCorpus(copy_path), seq_len=16)
    arrays = {
        path.name.split(".")[1]: np.load(path, mmap_mode="r") for path in (copy_path / ".dew-plans").glob("*.npy")
    }
    assert {name: (array.dtype.str, array.ndim) for name, array in arrays.items()} == {
        "rows": ("<i8", 1),
        "starts": ("<i8", 1),
        "lengths": ("<i4", 1),
    }
    first, last = arrays["rows"][3:5].tolist()
    stops = (arrays["starts"] + arrays["lengths"])[first:last]
    assert list(zip(arrays["starts"][first:last].tolist(), stops.tolist(), strict=True)) == source.spans(3)


def test_each_plan_has_its_own_name(copy_path: Path, small_windows: None) -> None:
    folder = copy_path / ".dew-plans"
    last = int(TokenCorpus(copy_path).offsets[-2])
    rules: list[dict[str, Any]] = [{"seq_len": 64}, {"seq_len": 65}, {"seq_len": 64, "max_segments": 3}]
    ids = set()
    for number, changes in enumerate([*rules, {"seq_len": 64, "long": "drop"}, {"seq_len": 64, "stop": last}], 1):
        ids.add(PackedSource(TokenCorpus(copy_path), **changes).identity()["plan"])
        assert len(os.listdir(folder)) == 4 * number
    assert len(ids) == 5


def test_plans_are_mapped_and_never_pickled(corpus_path: Path, tmp_path: Path) -> None:
    source = PackedSource(TokenCorpus(corpus_path), seq_len=16, plans=tmp_path / "plans")
    data = pickle.dumps(source)
    assert len(data) < 3000
    other = pickle.loads(data)
    assert other.identity() == source.identity()
    for reader in (source, other, source.open()):
        plan = reader._reading()
        for array in (plan.rows, plan.starts, plan.lengths):
            assert not array.flags.writeable
            assert not array.flags.owndata
        reader.close()
        assert reader._plan is None
        assert reader[0]["text"].tolist() == source[0]["text"].tolist()


def test_a_plan_that_was_deleted_is_made_again(
    corpus_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = PackedSource(TokenCorpus(corpus_path), seq_len=16, plans=tmp_path / "plans")
    expected, data = everything(source), pickle.dumps(source)
    for path in (tmp_path / "plans").iterdir():
        path.unlink()
    caplog.set_level(logging.INFO, "dew.tokens")
    other = pickle.loads(data)
    for name, column in everything(other).items():
        np.testing.assert_array_equal(column, expected[name])
    assert "the packing plan is made again" in caplog.text


def test_a_corpus_that_changed_under_its_plan(copy_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps(PackedSource(TokenCorpus(copy_path), seq_len=16))
    monkeypatch.setattr(packing, "PLAN_VERSION", 2)
    with pytest.raises(
        DamagedSourceError, match=r"gave the packing plan [0-9a-f]{64} when they were opened, now they give"
    ):
        pickle.loads(data)[0]


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "a changed start": ("starts.npy", _flip, r"starts\.npy has the sha256 [0-9a-f]{64}, the plan states"),
    "a changed length": ("lengths.npy", _flip, r"lengths\.npy has the sha256"),
    "a changed row": ("rows.npy", _flip, r"rows\.npy has the sha256"),
    "a cut file": (
        "starts.npy",
        lambda path: os.truncate(path, 200),
        r"should hold \d+ elements of <i8: 200 bytes, by",
    ),
    "an empty file": ("rows.npy", lambda path: os.truncate(path, 0), r"rows\.npy should hold .*: no \.npy header"),
    "a missing file": ("lengths.npy", lambda path: path.unlink(), r"lengths\.npy should hold .*No such file"),
    "no JSON": ("json", lambda path: path.write_text("{"), r"is not JSON"),
    "of another plan": ("json", lambda path: path.write_text("{}"), r"is of another plan: it has {'format': None"),
    "changed counts": (
        "json",
        lambda path: path.write_text(path.read_text().replace('"single": ', '"single": 1')),
        r"was altered: it states the id",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_plan_is_said_and_made_again(corpus_path: Path, tmp_path: Path, damage: str) -> None:
    name, spoil, message = DAMAGES[damage]
    expected = PackedSource(TokenCorpus(corpus_path), seq_len=16, plans=tmp_path / "plans")
    before = {path.name: path.read_bytes() for path in (tmp_path / "plans").iterdir()}
    (path,) = (tmp_path / "plans").glob(f"*.{name}")
    spoil(path)
    with pytest.warns(DewWarning, match=f"{message}.*; the packing plan is made again"):
        found = PackedSource(TokenCorpus(corpus_path), seq_len=16, plans=tmp_path / "plans")
    assert found.identity() == expected.identity()
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "plans").iterdir()}


def forged(folder: Path, name: str, changed: Callable[[Any], Any]) -> None:
    """Change one array of the plan in `folder`, and state digests that fit."""
    (path,) = folder.glob("*.json")
    stated = json.loads(path.read_text())
    (of_array,) = folder.glob(f"*.{name}.npy")
    np.save(of_array, changed(np.load(of_array)))
    stated["arrays"][name] = hashlib.sha256(np.load(of_array).tobytes()).hexdigest()
    counts = packing.PackingCounts(**stated["counts"])
    rules = packing.PackingRules(**{key: stated["rules"][key] for key in ("seq_len", "long", "max_segments")})
    stated["id"] = packing.plan_id(rules, counts, stated["arrays"])
    path.write_text(json.dumps(stated))


def put(place: int, value: int) -> Callable[[Any], Any]:
    """A change of one element."""

    def change(array: Any) -> Any:
        array[place] = value
        return array

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("rows", put(0, -5)),
        ("rows", put(-1, 1 << 40)),
        ("rows", put(3, 1 << 40)),
        ("starts", put(2, -1)),
        ("starts", put(2, 1 << 40)),
        ("starts", put(2, (1 << 63) - 1)),
        ("lengths", put(2, 0)),
        ("lengths", put(2, 18)),
    ],
)
def test_a_forged_plan_is_not_believed(
    corpus_path: Path, tmp_path: Path, name: str, change: Callable[[Any], Any]
) -> None:
    """Whoever hands on a corpus may hand on plans: what they hold is looked at, whatever their digests say."""
    expected = PackedSource(TokenCorpus(corpus_path), seq_len=16, plans=tmp_path / "plans")
    forged(tmp_path / "plans", name, change)
    with pytest.warns(DewWarning, match="hold no plan of these documents; the packing plan is made again"):
        found = PackedSource(TokenCorpus(corpus_path), seq_len=16, plans=tmp_path / "plans")
    assert found.identity() == expected.identity()
    assert found[0]["text"].tolist() == expected[0]["text"].tolist()


def test_a_corpus_of_more_than_one_window(tmp_path: Path) -> None:
    """With nothing said: the plan of over 2^20 documents is kept, and read from its files."""
    count = packing.WINDOW + 10
    ends = np.concatenate([[0], np.cumsum(np.arange(count) % 3 + 1)]).astype("<u8")
    arrays = {"tokens": (np.arange(ends[-1]) % 1000).astype("<u2"), "docs": ends}
    files = {}
    for kind, array in arrays.items():
        data = header(array.dtype.str, len(array)) + array.tobytes()
        (tmp_path / f"shard-00000.{kind}.npy").write_bytes(data)
        files[kind] = FileRecord(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    tokens = int(ends[-1])
    shard = Shard(name="shard-00000", tokens=tokens, documents=count, empty_documents=0, max_id=999, files=files)
    tokenizer = TokenizerInfo(vocab_size=1000)
    manifest = make_manifest(dtype="<u2", framing=Framing(), tokenizer=tokenizer, shards=(shard,))
    (tmp_path / "manifest.json").write_bytes(manifest_json(manifest))
    source = PackedSource(TokenCorpus(tmp_path), seq_len=31)
    assert stored_in(tmp_path / ".dew-plans") == ["json", "lengths", "rows", "starts"]
    again = PackedSource(TokenCorpus(tmp_path), seq_len=31)
    assert isinstance(again._stored, StoredPlan)
    assert again.identity() == source.identity()
    last = again.spans(len(again) - 1)
    assert max(stop for _, stop in last) == tokens
    row = again[len(again) - 1]["text"]
    assert row[0] == last[0][0] % 1000
    assert again.report().fill > 0.999


def test_remote_plans_are_kept_for_the_user(memory_url: str, documents: Any, user_cache: Path) -> None:
    write_corpus(documents, memory_url, vocab_size=1000, shard_tokens=100)
    source = PackedSource(TokenCorpus(memory_url), seq_len=16)
    assert stored_in(user_cache) == ["json", "lengths", "rows", "starts"]
    assert isinstance(source._stored, StoredPlan)
    stated = json.loads(next(user_cache.glob("*.json")).read_text())
    assert stated["corpus"] == source.fingerprint()
    assert stated["id"] == source.identity()["plan"]


def test_the_home_directory_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert plans.user_folder() == tmp_path / ".cache" / "dew" / "plans"


def test_where_nothing_can_be_written(
    copy_path: Path, user_cache: Path, small_windows: None, caplog: pytest.LogCaptureFixture
) -> None:
    """A file stands where each directory would be: root may write anywhere else."""
    caplog.set_level(logging.INFO, "dew.tokens")
    (copy_path / ".dew-plans").write_text("")
    PackedSource(TokenCorpus(copy_path), seq_len=16)
    assert stored_in(user_cache) == ["json", "lengths", "rows", "starts"]
    for path in user_cache.iterdir():
        path.unlink()
    user_cache.rmdir()
    user_cache.write_text("")
    source = PackedSource(TokenCorpus(copy_path), seq_len=16)
    assert source._stored is None
    assert len(source) > 0
    assert caplog.text.count("no packing plan can be kept in") == 3
    with pytest.raises(StorageError, match=r"plans='.*plans' cannot hold the packing plan: "):
        PackedSource(TokenCorpus(copy_path), seq_len=16, plans=user_cache)


def test_an_unpackable_corpus_leaves_no_plan(copy_path: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="long"):
        PackedSource(TokenCorpus(copy_path), seq_len=8, long="error", plans=tmp_path / "plans")
    (copy_path / "shard-00001.docs.npy").unlink()
    with pytest.raises(DamagedSourceError, match=r"shard-00001\.docs\.npy is missing"):
        PackedSource(TokenCorpus(copy_path), seq_len=8, plans=tmp_path / "plans")
    (copy_path / "shard-00001.docs.npy").symlink_to("shard-00001.docs.npy")
    with pytest.raises(StorageError, match=r"^/.*shard-00001\.docs\.npy could not be measured"):
        PackedSource(TokenCorpus(copy_path), seq_len=8, plans=tmp_path / "plans")
    write_corpus([range(30)], tmp_path / "long", vocab_size=30)
    with pytest.raises(SourceError, match=r"nothing to pack: of 1 documents, 1 are longer than the 9 tokens of a row"):
        PackedSource(TokenCorpus(tmp_path / "long"), seq_len=8, long="drop", plans=tmp_path / "plans")
    assert os.listdir(tmp_path / "plans") == []


def test_many_at_once_make_one_plan(corpus_path: Path, tmp_path: Path) -> None:
    """No lock: whoever comes last replaces the same bytes."""
    found: list[Any] = []

    def opened() -> None:
        source = PackedSource(TokenCorpus(corpus_path), seq_len=16, plans=tmp_path / "plans")
        found.append((source.identity()["plan"], source[len(source) - 1]["text"].tolist()))

    threads = [threading.Thread(target=opened) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(entry == found[0] for entry in found)
    assert stored_in(tmp_path / "plans") == ["json", "lengths", "rows", "starts"]
