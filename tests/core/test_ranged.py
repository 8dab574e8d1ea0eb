"""A part of a stored file as a file object reads like a file of those bytes."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dew.data.ranged import RangedFile

WHOLE = bytes(range(256)) * 3
MOVES = st.lists(
    st.tuples(st.sampled_from([io.SEEK_SET, io.SEEK_CUR, io.SEEK_END]), st.integers(-400, 800), st.integers(-1, 400)),
    max_size=8,
)


@given(st.integers(0, 300), st.integers(0, 400), MOVES)
def test_it_reads_like_a_file_of_these_bytes(start: int, size: int, moves: list[tuple[int, int, int]]) -> None:
    asked: list[tuple[int, int]] = []

    def read_range(first: int, last: int) -> bytes:
        asked.append((first, last))
        return WHOLE[first:last]

    for made in (
        RangedFile(read_range, size, start=start),
        io.BufferedReader(RangedFile(read_range, size, start=start), 64),
    ):
        model = io.BytesIO(WHOLE[start : start + size])
        for whence, offset, count in moves:
            place = {io.SEEK_SET: 0, io.SEEK_CUR: model.tell(), io.SEEK_END: size}[whence] + offset
            if place < 0:
                continue
            assert made.seek(offset, whence) == place
            model.seek(place)
            assert made.read(count) == model.read(count)
            assert made.tell() == model.tell()
    assert all(start <= first <= last <= start + size for first, last in asked)


def test_before_the_beginning_is_refused() -> None:
    with pytest.raises(ValueError, match="seek to -1, before the beginning"):
        RangedFile(lambda first, last: b"", 10).seek(-1)
