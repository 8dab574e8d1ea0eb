"""From a document of a corpus back to the file and row that it came from."""

import bisect
import itertools
import os
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from dew.data.errors import OptionsError
from dew.data.storage import Storage
from dew.tokens.corpus import read_manifest
from dew.tokens.manifest import FILE_DTYPES
from dew.tokens.npy import HEADER_BYTES
from dew.tokens.prepare.plan import read_plan
from dew.tokens.splits import find_split


@attrs.frozen
class Origin:
    """Where a document came from.

    Args:
        input: name of the file, below the directory that all inputs shared.
        row: from 0: the line of a file of lines, the row of a table.
    """

    input: str
    row: int


def find_origin(
    path: str | os.PathLike[str], document: int, *, split: str = "train", options: Mapping[str, Any] | None = None
) -> Origin:
    """Where document `document` of a split came from; reads two small files and sixteen bytes.

    Raises:
        IndexError: there is no such document.
        OptionsError: the corpus was not made by `dew tokenize`.
        SourceNotFoundError: nothing is stored at `path`.
    """
    storage = Storage(path, options=options or {})
    corpus = find_split(storage, split)
    manifest = read_manifest(corpus)
    if manifest.preparation is None:
        raise OptionsError(f"{corpus.location()} does not say where its documents came from; dew tokenize writes that")
    if not 0 <= document < manifest.documents:
        raise IndexError(f"document {document} was asked for, the split {split!r} has {manifest.documents}")
    ends = list(itertools.accumulate(shard.documents for shard in manifest.shards))
    number = bisect.bisect_right(ends, document)
    shard = manifest.shards[number]
    at = HEADER_BYTES + 16 * (document - ends[number] + shard.documents)
    numbers = np.frombuffer(corpus.read_range(shard.file("origin"), at, at + 16), FILE_DTYPES["origin"])
    found, row = int(numbers[0]), int(numbers[1])
    plan = read_plan(storage)
    task = plan.tasks[int(shard.name.removeprefix("shard-"))]
    first: int = manifest.preparation["first_rows"][number] if task.pieces[0].input == found else 0
    return Origin(plan.asked.inputs[found].name, first + row)
