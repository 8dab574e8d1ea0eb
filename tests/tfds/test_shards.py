"""Shards that are missing, cut, altered, of another preparation, or very many."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from dew.data import DataPartition, Loading, TFDSOptions, load
from dew.data.errors import DamagedSourceError
from dew_tfds import shards as files
from dew_tfds.shards import ShardFiles, most_open, open_shard
from dew_tfds.source import TFDSSource, open_split
from dew_tfds.splits import Shard

Prepare = Callable[..., Path]
BLOCK = 1 << 16


def opened(path: Path, split: str = "train", **options: Any) -> TFDSSource:
    return open_split("dew_images", split, TFDSOptions(path=str(path), **options))


def shard(path: Path, number: int, split: str = "train", count: int = 4) -> Path:
    return path / f"dew_images-{split}.array_record-{number:05}-of-{count:05}"


def test_missing_shards_are_named(copied: Path) -> None:
    for number in (1, 3):
        shard(copied, number).unlink()
    message = (
        f"split 'train' of dew_images/small/1.2.0: 2 of 4 shards are missing from {copied}: "
        "['dew_images-train.array_record-00001-of-00004', 'dew_images-train.array_record-00003-of-00004']; copy them"
    )
    with pytest.raises(DamagedSourceError, match=re.escape(message)):
        opened(copied)
    assert len(opened(copied, "test")) == 20
    assert len(opened(copied, "train[:25]")) == 25, "only the shards that are read are needed"


def test_very_many_missing_shards_are_not_all_named(copied: Path) -> None:
    file = copied / "dataset_info.json"
    info = json.loads(file.read_text())
    info["splits"][0]["shardLengths"] = ["1"] * 100
    file.write_text(json.dumps(info))
    with pytest.raises(
        DamagedSourceError, match=r"100 of 100 shards are missing from .*00004-of-00100'\] and 95 more;"
    ):
        opened(copied)


@pytest.mark.parametrize("size", [0, 100, BLOCK - 1, BLOCK + 1, 2 * BLOCK - 512])
@pytest.mark.parametrize("check", ["sizes", "full"])
def test_a_cut_shard_shows_in_the_listing(copied: Path, size: int, check: str) -> None:
    os.truncate(shard(copied, 2), size)
    message = (
        f"{shard(copied, 2)} has {size} bytes, and an ArrayRecord file is a whole number of 65536: it is cut; copy"
    )
    with pytest.raises(DamagedSourceError, match=re.escape(message)):
        opened(copied, check=check)


def cut_to_a_block(path: Path) -> None:
    """What ArrayRecord opens without a word, and reads empty records from."""
    os.truncate(path, BLOCK)


def zeros(path: Path) -> None:
    """What a file system may leave of a file whose size is known and whose blocks were never written."""
    path.write_bytes(bytes(path.stat().st_size))


def other_count(path: Path) -> None:
    """The shard of another preparation."""
    shutil.copy(shard(path.parent, 0, "test"), path)


@pytest.mark.parametrize("damage", [cut_to_a_block, zeros, other_count])
def test_what_a_listing_cannot_show(copied: Path, damage: Callable[[Path], None]) -> None:
    """Full checks find it at load; else the first record that is read from the shard does, before it is used."""
    damage(shard(copied, 2))
    name = re.escape(str(shard(copied, 2)))
    message = (
        f"{name} holds 5 records and the metadata says 25: it is cut, or of another preparation"
        if damage is other_count
        else f"{name} is no whole ArrayRecord file: it is cut or was altered"
    )
    with pytest.raises(DamagedSourceError, match=message):
        opened(copied, check="full")
    source = opened(copied)
    assert [int(source[index]["id"]) for index in (0, 49, 75)] == [0, 49, 75]
    for index in (50, 60, 74):
        with pytest.raises(DamagedSourceError, match=message):
            source[index]
    source.close()


def test_a_damaged_first_shard_is_found_by_record_0(copied: Path) -> None:
    cut_to_a_block(shard(copied, 0))
    with pytest.raises(DamagedSourceError, match="is no whole ArrayRecord file"):
        opened(copied)


def test_full_checks_count_how_many_are_wrong(copied: Path) -> None:
    for number in (1, 2, 3):
        other_count(shard(copied, number))
    with pytest.raises(
        DamagedSourceError, match=r"00001-of-00004 holds 5 records .*\(and 2 more shards are not whole\)"
    ):
        opened(copied, check="full")


def test_a_flipped_bit_is_found_when_its_record_is_read(copied: Path) -> None:
    path = shard(copied, 1)
    data = bytearray(path.read_bytes())
    data[3000] ^= 1
    path.write_bytes(data)
    source = opened(copied, check="full")
    wrong: dict[int, str] = {}
    for index in range(100):
        try:
            assert source[index]["id"] == index
        except DamagedSourceError as error:
            wrong[index] = str(error)
    source.close()
    ((index, message),) = wrong.items()
    assert re.search(rf"record {index - 25} of {re.escape(str(path))} cannot be read: .*hash mismatch", message)


def test_training_stops_at_a_damaged_record_and_names_it(copied: Path) -> None:
    cut_to_a_block(shard(copied, 3))
    options = TFDSOptions(path=str(copied))
    dataset = load("tfds/dew_images", batch=80, options=options, preprocess=dict, loading=Loading(read_buffer=0))
    with dataset.train(DataPartition()) as stream, pytest.raises(DamagedSourceError) as caught:
        next(stream)
    notes = " ".join(caught.value.__notes__)
    assert re.search(r"reading record (7[5-9]|[89]\d) \(place \d+\) in step 0", notes)


def test_a_shard_that_may_not_be_read(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard(copied, 1).chmod(0)
    allowed = os.access
    # Root may read everything: for it, the mode alone decides here.
    monkeypatch.setattr(os, "access", lambda path, mode: allowed(path, mode) and bool(os.stat(path).st_mode & 0o444))
    message = f"{shard(copied, 1)} may not be read by this user; change its mode"
    with pytest.raises(DamagedSourceError, match=re.escape(message)):
        opened(copied)


def test_a_shard_that_goes_while_it_is_read(copied: Path) -> None:
    source = opened(copied)
    shard(copied, 1).unlink()
    with pytest.raises(DamagedSourceError, match=r"00001-of-00004 .*copy it again, or prepare the dataset again"):
        source[30]
    source.close()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, prepare: Prepare) -> Path:
    """200 shards of two records."""
    records = [{"id": number} for number in range(400)]
    return prepare(tmp_path_factory.mktemp("many"), "many", {"id": np.int64}, {"train": records}, shards=200)


def handles(path: Path) -> int:
    return sum(file.path.startswith(str(path)) for file in psutil.Process().open_files())


def test_only_so_many_files_are_open_and_each_reader_closes_its_own(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MOST_OPEN", 7)
    source = open_split("many", "train", TFDSOptions(path=str(many)))
    assert handles(many) == 0
    one, other = source.open(), source.open()
    order = np.random.default_rng(0).permutation(400).tolist()
    assert [int(one[index]["id"]) for index in order] == order
    assert handles(many) == 7
    assert [int(other[index]["id"]) for index in range(400)] == list(range(400))
    assert handles(many) == 14
    one.close()
    assert handles(many) == 7
    assert other[399]["id"] == 399
    assert one[0]["id"] == 0, "it opens again"
    one.close()
    other.close()
    assert handles(many) == 0


def test_threads_share_files_that_come_and_go(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MOST_OPEN", 3)
    source = open_split("many", "train", TFDSOptions(path=str(many)))
    wrong: list[Any] = []

    def read(seed: int) -> None:
        for index in np.random.default_rng(seed).integers(0, 400, 150).tolist():
            try:
                if source[index]["id"] != index:
                    wrong.append(index)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert handles(many) <= 3
    source.close()
    assert handles(many) == 0


def test_the_files_of_a_dropped_source_are_closed(many: Path) -> None:
    source = open_split("many", "train", TFDSOptions(path=str(many)))
    assert source[17]["id"] == 17
    assert handles(many) == 1
    del source
    assert handles(many) == 0


def test_a_share_of_the_limit() -> None:
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert most_open() == max(2, min(1024, limit // 3))


MANY = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from dew.data import DataPartition, Loading, TFDSOptions, load
options = TFDSOptions(path={path!r}, check="full")
dataset = load(
    "tfds/many", batch=20, split="train[:90%]", val_split="train[90%:]", options=options, preprocess=dict,
    loading=Loading(workers=0),
)
with dataset.train(DataPartition()) as one, dataset.train(DataPartition()) as other:
    for _ in range(18):
        assert (next(one)["id"] == next(other)["id"]).all()
print(sorted(int(row) for batch in dataset.val(DataPartition()) for row in batch["id"][batch["valid"]]))
"""


def test_many_shards_under_a_low_limit_of_open_files(many: Path) -> None:
    script = MANY.format(path=str(many))
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{list(range(360, 400))}\n"), done.stderr


LINKED = """
import resource, time
import numpy as np
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from dew.data import DataPartition, Loading, TFDSOptions, load
options = TFDSOptions(path={path!r}, check="full")
dataset = load("tfds/linked", batch=500, options=options, preprocess=dict, loading=Loading(workers=0))
with dataset.train(DataPartition()) as steps:
    total = sum(int(next(steps)["id"].sum()) for _ in range(20))
print(dataset.records, total)
"""


def test_five_thousand_shards_under_the_usual_limit(tmp_path: Path, write: Prepare) -> None:
    """All of them the same file, which takes no room."""
    path = write(tmp_path, "linked", {"id": np.int64}, [{"id": [7]}])
    first = path / "linked-train.array_record-00000-of-00001"
    for number in range(5000):
        os.link(first, path / f"linked-train.array_record-{number:05}-of-05000")
    file = path / "dataset_info.json"
    info = json.loads(file.read_text())
    info["splits"][0]["shardLengths"] = ["1"] * 5000
    file.write_text(json.dumps(info))
    script = LINKED.format(path=str(path))
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"5000 {7 * 10_000}\n"), done.stderr


LIMITED = """
import os, resource
from dew.data.errors import DamagedSourceError
from dew_tfds.shards import open_shard
from dew_tfds.splits import Shard
shard = Shard({name!r}, 2)
open_shard({path!r}, shard).close()
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
held = []
try:
    while True:
        held.append(open(os.devnull))
except OSError:
    pass
try:
    open_shard({path!r}, shard)
except DamagedSourceError as error:
    held.clear()
    print("ulimit -n" in str(error))
"""


def test_too_many_open_files_says_so(many: Path) -> None:
    script = LIMITED.format(path=str(many), name="many-train.array_record-00000-of-00200")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_positions_that_do_not_exist(many: Path) -> None:
    first = Shard("many-train.array_record-00000-of-00200", 2)
    reader = ShardFiles(str(many), [first])
    assert reader.read(0, 1)
    with pytest.raises(DamagedSourceError, match=r"record 2 of .* cannot be read"):
        reader.read(0, 2)
    reader.close()
    with pytest.raises(DamagedSourceError, match="holds 2 records and the metadata says 3"):
        open_shard(str(many), Shard(first.name, 3))
