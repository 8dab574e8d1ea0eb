"""How one frame table is stored: its facts as JSON, its times as steps, all of it compressed to some bytes a frame."""

import json
import zlib
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from dew.data.errors import DamagedSourceError
from dew_media.video.frames import FrameTable

_CHECK_BITS = 32


def packed(table: FrameTable) -> bytes:
    """The table in about three to six bytes a frame; the same bytes for the same table."""
    facts = json.dumps(table.facts(), sort_keys=True).encode()
    counts = np.array([len(facts), len(table.times), table.packets.shape[1]], "<i8")
    steps = [np.diff(row, prepend=0).astype("<i8") for row in (table.times, *table.packets[:2])]
    checks = table.packets[2]
    flags = (checks >> _CHECK_BITS).astype("u1")
    sums = (checks & ((1 << _CHECK_BITS) - 1)).astype("<u4")
    parts = [counts.tobytes(), facts, *(array.tobytes() for array in (*steps, flags, sums))]
    return zlib.compress(b"".join(parts))


def unpacked(data: bytes, key: str) -> FrameTable:
    """The table that was `packed`, of the file `key`.

    Raises:
        DamagedSourceError: it is no table.
    """
    try:
        plain = zlib.decompress(data)
        length, frames, packets = cast("list[int]", np.frombuffer(plain, "<i8", 3).tolist())
        place = 24 + length
        facts = cast("Mapping[str, Any]", json.loads(plain[24:place]))
        arrays: list[Any] = []
        for kind, count in (("<i8", frames), ("<i8", packets), ("<i8", packets), ("u1", packets), ("<u4", packets)):
            arrays.append(np.frombuffer(plain, kind, count, place))
            place += arrays[-1].nbytes
    except (zlib.error, ValueError) as error:
        raise DamagedSourceError(
            f"the index holds no frame table for {key!r}: {error}; make it again with `dew video index`"
        ) from error
    times, shown, seeks, flags, sums = arrays
    checks = (flags.astype(np.int64) << _CHECK_BITS) | sums
    return FrameTable.from_parts(facts, np.cumsum(times), np.stack([np.cumsum(shown), np.cumsum(seeks), checks]))
