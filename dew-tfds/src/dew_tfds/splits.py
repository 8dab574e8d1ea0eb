"""Split expressions -> the stretches of shards that they read.

tensorflow-datasets reads the expression (`train[:80%]`, `train+test`, `train[2shard:]`, `all`), so that it means here
what it means there. `even_splits` writes as text what `tfds.even_splits` makes as objects, since a split is named by
text in a saved position.
"""

import importlib
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final

import attrs

from dew.data import checks
from dew.data.errors import DamagedSourceError, OptionsError, SourceError, SplitError
from dew_tfds.builder import Builder, library

_EVEN: Final = re.compile(r"even\((?P<split>.+), *(?P<index>\d+)/(?P<count>\d+)(?P<drop>, *drop)?\)", re.ASCII)


@attrs.frozen
class Shard:
    """One file of a split.

    Args:
        name: of the file.
        records: how many the metadata says it holds.
    """

    name: str
    records: int


@attrs.frozen
class Stretch:
    """Records `[start, stop)` of one shard."""

    shard: Shard
    start: int
    stop: int

    @property
    def records(self) -> int:
        """How many they are."""
        return self.stop - self.start


def even_splits(split: str, count: int, *, drop_remainder: bool = False) -> list[str]:
    """`count` splits of equal size (within one record) that together are `split`, to be given to `dew.data.load`.

    Args:
        split: any split expression.
        count: how many.
        drop_remainder: leaves out the records that make some splits larger than others.
    """
    checks.check_count("count", count)
    drop = ", drop" if drop_remainder else ""
    return [f"even({split}, {index}/{count}{drop})" for index in range(count)]


def stretches(builder: Builder, split: str) -> list[Stretch]:
    """What `split` reads, in order.

    Raises:
        SplitError: it names a split that is not there; lists those that are.
        OptionsError: it is no split expression, or reaches beyond its split.
        SourceError: it holds no records.
        DamagedSourceError: the metadata names a file that is not in its own directory.
    """
    name = builder.metadata.full_name
    _check_names(builder, split)
    try:
        parsed = _parsed(split)
        _check_slices(builder, parsed)
        found = [_stretch(builder, instruction) for instruction in builder.splits[parsed].file_instructions]
    except DamagedSourceError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise OptionsError(
            f"split {split!r} of {name} cannot be read: {reason[-1] if reason else type(error).__name__}; it has "
            f"{in_words(builder)}, and takes expressions such as train[:80%], train[10:20], train[1shard], train+test"
        ) from error
    if not found:
        raise SourceError(f"split {split!r} of {name} holds no records; it has {in_words(builder)}")
    return found


def in_words(builder: Builder) -> str:
    """The dataset's splits and their sizes."""
    sizes = [f"{name!r} ({info.num_examples} records)" for name, info in builder.splits.items()]
    return ", ".join(sizes) or "no splits"


def shared(ours: Iterable[Stretch], theirs: Iterable[Stretch]) -> int:
    """How many records both read, each counted once."""
    other = _merged(theirs)
    return sum(
        max(0, min(stop, their_stop) - max(start, their_start))
        for name, spans in _merged(ours).items()
        for start, stop in spans
        for their_start, their_stop in other.get(name, ())
    )


def _merged(stretches: Iterable[Stretch]) -> Mapping[str, list[tuple[int, int]]]:
    """Shard -> disjoint spans of its records, in order."""
    merged: dict[str, list[tuple[int, int]]] = {}
    for stretch in sorted(stretches, key=lambda stretch: (stretch.shard.name, stretch.start)):
        spans = merged.setdefault(stretch.shard.name, [])
        if spans and stretch.start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], stretch.stop))
        else:
            spans.append((stretch.start, stretch.stop))
    return merged


def _check_names(builder: Builder, split: str) -> None:
    expression = split
    while (even := _EVEN.fullmatch(expression)) is not None:
        expression = even["split"]
    known = set(builder.splits)
    names = [term.partition("[")[0].strip() for term in expression.split("+")]
    if unknown := [name for name in names if re.fullmatch(r"[\w-]+", name) and name not in known | {"all"}]:
        raise SplitError(f"no split {unknown[0]!r} in {builder.metadata.full_name}; it has {in_words(builder)}")


def _parsed(split: str) -> Any:
    """What tensorflow-datasets takes for the expression."""
    even = _EVEN.fullmatch(split)
    if even is None:
        return split
    index, count = int(even["index"]), int(even["count"])
    if index >= count:
        raise OptionsError(f"part {index} of {count} does not exist: use 0 to {count - 1}")
    parts = library().even_splits(_parsed(even["split"]), count, drop_remainder=even["drop"] is not None)
    return parts[index]


def _check_slices(builder: Builder, parsed: Any) -> None:
    """Refuses slices that end before they begin; of those tensorflow-datasets reads one record, or less than none."""
    splits: Any = importlib.import_module("tensorflow_datasets.core.splits")
    for part in splits.AbstractSplit.from_spec(parsed).to_absolute(builder.splits):
        if part.to is not None and part.to < (part.from_ or 0):
            raise OptionsError(f"a slice ends before it begins, at {part.to} of {part.splitname!r}")


def _stretch(builder: Builder, instruction: Any) -> Stretch:
    path = PurePath(instruction.filename)
    if path.parent != PurePath(builder.metadata.directory) or path.name in ("", ".."):
        raise DamagedSourceError(
            f"the metadata of {builder.metadata.full_name} names the file {str(path)!r}, which is not in "
            f"{builder.metadata.directory}; prepare it or copy it again"
        )
    shard = Shard(path.name, instruction.examples_in_shard)
    return Stretch(shard, instruction.skip, instruction.skip + instruction.take)
