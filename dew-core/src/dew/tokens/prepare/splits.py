"""Which split a document belongs to, by its text alone.

The hash of a text does not depend on the other documents, so adding some never moves one across, and copies of one text
are always on the same side.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

_PERSON: Final = b"dew-val-1"  # another number would move documents across


def in_validation(texts: Sequence[str], fraction: float) -> npt.NDArray[np.bool_]:
    """(k,) bool: whether each text belongs to validation, about `fraction` of many."""
    bound = int(fraction * 2**64)
    digests = (hashlib.blake2b(text.encode(), digest_size=8, person=_PERSON).digest() for text in texts)
    return np.array([int.from_bytes(digest, "little") < bound for digest in digests], np.bool_)
