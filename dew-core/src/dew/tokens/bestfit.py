"""Best-fit-decreasing, exactly, on the histogram of lengths: which pieces share a row.

The longest piece goes first, each into the row with the least room that still holds it. Pieces of one length are
interchangeable, so whole groups of equal rows are made at a time, and only then are pieces dealt to the places of their
length, in their own order. The cost is that of the distinct lengths plus a few passes over the pieces.
"""

import attrs
import numpy as np
import numpy.typing as npt

_DIGIT = 16  # numpy sorts 16-bit integers by radix


def best_fit_rows(
    sizes: npt.NDArray[np.int32], width: int, most: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Rows of pieces of `sizes` (n,), at least one piece, each of 1 to `width` tokens.

    Rows come in the order of their first piece, so that neighbours are not all of one kind, and the pieces of a row in
    their own order.

    Args:
        sizes: tokens of each piece.
        width: tokens that a row has room for.
        most: pieces that a row has room for, at least 1.

    Returns:
        Numbers of pieces, row after row, (n,) uint32; how many of them each row has, (rows,) int64.
    """
    histogram = np.bincount(sizes, minlength=width + 1)
    groups = _best_fit(histogram, width, most)
    return _by_first_piece(*_deal(groups, sizes, histogram))


@attrs.frozen
class _Groups:
    """Groups of rows that hold pieces of the same lengths.

    Group g has `counts[g]` rows, each with the pieces of group `parents[g]` (-1: none) and one of `lengths[g]` more,
    `sizes[g]` in all. A group whose count fell to 0 lives on as a parent.
    """

    lengths: list[int] = attrs.field(factory=list[int])
    parents: list[int] = attrs.field(factory=list[int])
    counts: list[int] = attrs.field(factory=list[int])
    sizes: list[int] = attrs.field(factory=list[int])

    def add(self, parent: int, length: int, pieces: int, rows: int) -> int:
        """A group of `rows` rows: those of `parent` with `pieces` pieces of `length` more. Returns its number."""
        size = self.sizes[parent] if parent >= 0 else 0
        for _ in range(pieces):
            size += 1
            self.lengths.append(length)
            self.parents.append(parent)
            self.counts.append(0)
            self.sizes.append(size)
            parent = len(self.counts) - 1
        self.counts[parent] = rows
        return parent


def _best_fit(histogram: npt.NDArray[np.int64], width: int, most: int) -> _Groups:
    """The groups of rows for `histogram[length]` pieces of each length.

    `stacks[room]` are the groups that have that much room left, and bit `room` of `open_rooms` says that there are any,
    so the least room that holds a piece is the lowest bit at or above its length.
    """
    groups = _Groups()
    stacks: dict[int, list[int]] = {}
    open_rooms = 0
    lengths = np.flatnonzero(histogram)[::-1]
    for length, left in zip(lengths.tolist(), histogram[lengths].tolist(), strict=True):
        while left:
            fitting = open_rooms >> length
            if fitting:
                room = length + (fitting & -fitting).bit_length() - 1
                parent = stacks[room][-1]
                rows, each = groups.counts[parent], min(room // length, most - groups.sizes[parent])
                # Rows take as many pieces as they hold; the last row takes what is left.
                rows, each = (min(rows, left // each), each) if left >= each else (1, left)
                groups.counts[parent] -= rows
                if not groups.counts[parent]:
                    stacks[room].pop()
                    if not stacks[room]:
                        open_rooms ^= 1 << room
            else:
                parent, room, each = -1, width, min(width // length, most)
                rows, each = (left // each, each) if left >= each else (1, left)
            left -= rows * each
            made = groups.add(parent, length, each, rows)
            room -= each * length
            if room and groups.sizes[made] < most:
                stacks.setdefault(room, []).append(made)
                open_rooms |= 1 << room
    return groups


def _deal(
    groups: _Groups, sizes: npt.NDArray[np.int32], histogram: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Give each row pieces of its lengths, those of one length in their own order; numbers rise in each row."""
    order = _by_length(sizes)
    next_of: list[int] = (np.cumsum(histogram) - histogram).tolist()
    dealt = np.empty(len(sizes), np.uint32)
    finished = [group for group, rows in enumerate(groups.counts) if rows]
    first = 0
    for group in finished:
        rows, size = groups.counts[group], groups.sizes[group]
        block = dealt[first : first + rows * size].reshape(rows, size)
        member, column = group, 0
        while member >= 0:
            length, start = groups.lengths[member], column
            while member >= 0 and groups.lengths[member] == length:
                member, column = groups.parents[member], column + 1
            stop = next_of[length] + rows * (column - start)
            block[:, start:column] = order[next_of[length] : stop].reshape(rows, column - start)
            next_of[length] = stop
        block.sort(axis=1)
        first += rows * size
    row_counts = [groups.counts[group] for group in finished]
    return dealt, np.repeat(np.array([groups.sizes[group] for group in finished], np.int64), row_counts)


def _by_length(sizes: npt.NDArray[np.int32]) -> npt.NDArray[np.uint32]:
    """Numbers of pieces sorted by length, those of one length in their own order."""
    order = np.argsort(sizes.astype(np.uint16), kind="stable")
    if int(sizes.max()) >= 1 << _DIGIT:
        order = order[np.argsort((sizes >> _DIGIT)[order].astype(np.uint16), kind="stable")]
    return order.astype(np.uint32)


def _by_first_piece(
    dealt: npt.NDArray[np.uint32], sizes: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """The same rows in the order of their first piece."""
    firsts = np.cumsum(sizes) - sizes
    row_of = np.full(len(dealt), -1, np.int32)
    row_of[dealt[firsts]] = np.arange(len(sizes), dtype=np.int32)
    rows = row_of[row_of >= 0]
    sizes = sizes[rows]
    picks = np.repeat(firsts[rows] - (np.cumsum(sizes) - sizes), sizes)
    picks += np.arange(len(picks))
    return dealt[picks], sizes
