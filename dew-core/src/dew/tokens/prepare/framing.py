"""Begin and end ids, put as integers around whole documents, many at a time."""

from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.integer[Any]]


def framed(
    ids: Ids, lengths: npt.NDArray[np.int64], bos: int | None, eos: int | None
) -> tuple[Ids, npt.NDArray[np.int64]]:
    """Documents with `bos` before and `eos` after each that does not have it there already.

    Args:
        ids: (n,), those of all documents.
        lengths: (k,), each at least 1.
        bos, eos: an id, or None to put none.

    Returns:
        The new `ids` and `lengths`.
    """
    if (bos is None and eos is None) or not len(lengths):
        return ids, lengths
    ends = np.cumsum(lengths)
    first = np.zeros(len(lengths), np.bool_) if bos is None else ids[ends - lengths] != bos
    last = np.zeros(len(lengths), np.bool_) if eos is None else ids[ends - 1] != eos
    longer = lengths + first + last
    stops = np.cumsum(longer)
    kept = np.ones(int(stops[-1]), np.bool_)
    kept[(stops - longer)[first]] = False
    kept[(stops - 1)[last]] = False
    out = np.empty(len(kept), ids.dtype)
    out[kept] = ids
    if bos is not None:
        out[(stops - longer)[first]] = bos
    if eos is not None:
        out[(stops - 1)[last]] = eos
    return out, longer
