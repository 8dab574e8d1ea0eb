"""The table of positions in a checkpoint: which rows may stand together, and which process may go on from which."""

import json

import numpy as np
import pytest

from dew.data import DataPartition, from_records
from dew.data.errors import PositionError, PositionMismatchError
from dew.data.stream import RecordStream
from dew.training.positions import PositionTable, row_of


def stream() -> RecordStream:
    made = from_records({"x": np.arange(48)}, batch=8).train(DataPartition())
    assert isinstance(made, RecordStream)
    return made


def shard_table(count: int) -> PositionTable:
    shares = [DataPartition(index, count) for index in range(count)]
    rows = [row_of({"offset": 10 * p}, process=p, processes=count, partition=s) for p, s in enumerate(shares)]
    return PositionTable(tuple(rows))


def test_a_shard_state_goes_on_only_on_as_many_processes() -> None:
    """A12."""
    table = PositionTable.from_text(json.dumps(shard_table(2).to_json()), "here")
    for process in range(2):
        assert table.state_for(DataPartition(process, 2), process=process, processes=2) == {"offset": 10 * process}
    for process in range(3):
        with pytest.raises(PositionMismatchError, match=r"saved by 2 processes.*cannot continue on 3: ") as caught:
            table.state_for(DataPartition(process, 3), process=process, processes=3)
        assert (caught.value.part, caught.value.saved, caught.value.current) == ("processes", 2, 3)


def test_a_shard_state_follows_its_share() -> None:
    """Devices may be dealt out in another order, and several processes may read one share."""
    table = shard_table(4)
    for process in range(4):
        moved = DataPartition(3 - process, 4)
        assert table.state_for(moved, process=process, processes=4) == {"offset": 10 * moved.index}
    readers = [DataPartition(process // 2, 2, 2, process % 2) for process in range(4)]
    shared = [row_of({"at": r.index}, process=p, processes=4, partition=r) for p, r in enumerate(readers)]
    table = PositionTable(tuple(shared))
    assert [table.state_for(r, process=p, processes=4) for p, r in enumerate(readers)] == [
        {"at": 0},
        {"at": 0},
        {"at": 1},
        {"at": 1},
    ]
    with pytest.raises(PositionMismatchError, match="share 0 of 2 and cannot continue on 4 shares"):
        table.state_for(DataPartition(0, 4), process=0, processes=4)


def test_shard_positions_of_our_own_are_kept_as_they_are() -> None:
    saved = [{"kind": "shard", "index": p, "count": 2, "state": {"file": p}} for p in range(2)]
    rows = [row_of(each, process=p, processes=2, partition=DataPartition(p, 2)) for p, each in enumerate(saved)]
    table = PositionTable(tuple(rows))
    assert [table.state_for(DataPartition(p, 2), process=p, processes=2) for p in range(2)] == saved


def test_the_rows_of_one_run_agree() -> None:
    with stream() as data:
        first = data.get_state()
        next(data)
        second = data.get_state()
    assert PositionTable((first,) * 4).to_json()["positions"] == [first]
    for process in range(7):
        assert PositionTable((first,) * 2).state_for(DataPartition(0, 1), process=process, processes=7) == first
    with pytest.raises(PositionMismatchError, match="records is 0 in process 0 and 8 in process 2"):
        PositionTable((first, first, second))
    with pytest.raises(PositionError, match=r"process 0 has a position of the kind 'records', process 1 .*'shard'"):
        PositionTable((first, *shard_table(2).rows[1:]))
    with pytest.raises(PositionError, match="row 0 of 3 says that it belongs to process 0 of 2"):
        PositionTable((*shard_table(2).rows, shard_table(3).rows[2]))


def test_a_table_costs_a_number_for_each_further_process() -> None:
    with stream() as data:
        state = data.get_state()
    sizes = [len(json.dumps(PositionTable((state,) * count).to_json())) for count in (1, 1000)]
    assert sizes[1] - sizes[0] <= 4 * 1000
