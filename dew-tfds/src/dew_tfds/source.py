"""The record source of one split of a prepared dataset, and the checks that it passes before a step is trained."""

import hashlib
import json
import operator
import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, cast

from dew.data.errors import DamagedSourceError
from dew_tfds.builder import Builder, open_builder
from dew_tfds.options import TFDSOptions
from dew_tfds.prepared import Wanted, find
from dew_tfds.records import Words, record_reader
from dew_tfds.shards import ShardFiles, count_problems, list_sizes, size_problems
from dew_tfds.splits import Shard, shared, stretches

_SAMPLED: Final = 8  # shards that the fingerprint reads parts of
_HEAD: Final = 1 << 12
_TAIL: Final = 1 << 17  # holds the index of the records, or its end


class TFDSSource:
    """Records of a split, in the order in which they are stored.

    A record is a mapping of the builder's fields to values of their declared dtypes, see `dew_tfds.records`. There is
    no `__getitems__`: ArrayRecord's own reading of many records at once measures slower than one after the other, and
    the threads of a step decode images side by side only where they read records themselves.

    Args:
        builder: the dataset.
        split: a split expression.
        decoders: by field, as `tfds.data_source` takes them.
        check: `"full"` counts the records of every shard.

    Raises:
        SplitError, OptionsError: there is no such split, or no such decoder.
        SourceError: the split holds no records.
        DamagedSourceError: a shard is missing or cut, or record 0 is not what the metadata declares.
    """

    def __init__(self, builder: Builder, split: str, *, decoders: Any = None, check: str = "sizes") -> None:
        self._builder = builder
        self._split = split
        self._decoders = decoders
        self._stretches = stretches(builder, split)
        self._sizes = _checked_sizes(builder, split, self._shards(), check)
        self._reader = record_reader(builder, decoders)
        self._starts = [0, *accumulate(stretch.records for stretch in self._stretches)]
        self._files = ShardFiles(builder.metadata.directory, [stretch.shard for stretch in self._stretches])
        self._data_digest = self._digest_of_data()
        self._fingerprint: str | None = None
        self._check_first()

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        """Record `index`.

        Raises:
            IndexError: there is no such record.
            DamagedSourceError: its shard is missing or cut, or it is not what the metadata declares.
        """
        number, position = self._locate(index)
        data = self._files.read(number, position)
        try:
            return self._reader(data)
        except Exception as error:
            error.add_note(f"record {position} of {self._stretches[number].shard.name}")
            raise

    def __repr__(self) -> str:
        decoders = "" if not self._decoders else f", decoders={_described(self._decoders)}"
        return f"TFDSSource({self.name}, split={self._split!r}, records={len(self)}{decoders})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._builder.metadata.directory, self._split, self._decoders, self._data_digest)

    @property
    def name(self) -> str:
        """`builder/config/version`, as TFDS writes it."""
        return self._builder.metadata.full_name

    @property
    def labels(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the classes of each field with class labels, by its path, such as `"objects/label"`."""
        return self._reader.labels

    def fields(self) -> Words:
        """What each field is, in words."""
        return self._reader.words

    def fingerprint(self) -> str:
        """Digest of what the metadata says of the records, of the shards' sizes, and of both ends of eight of them.

        It cannot see a change in the middle of a shard that leaves sizes, counts and ends as they were.
        """
        if self._fingerprint is None:
            digest = hashlib.sha256(self._data_digest.encode())
            spans = [(stretch.shard.name, stretch.start, stretch.stop) for stretch in self._stretches]
            digest.update(json.dumps(spans).encode())
            names = sorted(self._sizes)
            for number in sorted({round(part * (len(names) - 1) / (_SAMPLED - 1)) for part in range(_SAMPLED)}):
                _digest_ends(digest, os.path.join(self._builder.metadata.directory, names[number]))
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def shares_records_with(self, other: object) -> int:
        """How many stored records both sources read."""
        if not isinstance(other, TFDSSource) or other._builder.metadata.digest != self._builder.metadata.digest:
            return 0
        alike = {name for name, size in self._sizes.items() if other._sizes.get(name) == size}
        return shared((stretch for stretch in self._stretches if stretch.shard.name in alike), other._stretches)

    def open(self) -> "TFDSSource":
        """A reader of the same records with files of its own; reads nothing."""
        other = TFDSSource.__new__(TFDSSource)
        other.__dict__.update(self.__dict__)
        other._files = ShardFiles(self._builder.metadata.directory, [stretch.shard for stretch in self._stretches])
        return other

    def close(self) -> None:
        """Closes its files; reading again opens them again."""
        self._files.close()

    def _locate(self, index: int) -> tuple[int, int]:
        """Number of the stretch that holds a record, and its position in the shard."""
        index = operator.index(index)
        if not 0 <= index < self._starts[-1]:
            raise IndexError(f"record {index} was asked for, there are records 0 to {len(self) - 1}")
        number = bisect_right(self._starts, index) - 1
        return number, self._stretches[number].start + index - self._starts[number]

    def _shards(self) -> list[Shard]:
        return list(dict.fromkeys(stretch.shard for stretch in self._stretches))

    def _check_first(self) -> None:
        try:
            self._reader.check(self._files.read(*self._locate(0)))
        finally:
            self._files.close()

    def _digest_of_data(self) -> str:
        """Digest of what the listing and the metadata say of the split's shards."""
        records = {shard.name: shard.records for shard in self._shards()}
        facts = [self._builder.metadata.digest, records, self._sizes]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def open_split(name: str, split: str, options: TFDSOptions) -> TFDSSource:
    """One split of the prepared dataset that `"tfds/<name>"` and the options say.

    Raises:
        SourceNotFoundError, SourceError, DamagedSourceError: it is not there, is another, or cannot be read.
        SplitError, OptionsError: there is no such split, config or decoder.
    """
    metadata = find(options.path, Wanted.from_name(name, options))
    return TFDSSource(open_builder(metadata), split, decoders=options.decoders, check=options.check)


def _reopen(directory: str, split: str, decoders: Any, expected: str) -> TFDSSource:
    """A pickled source, in another process."""
    source = TFDSSource(open_builder(find(directory, Wanted())), split, decoders=decoders)
    if source._data_digest != expected:  # pyright: ignore[reportPrivateUsage]
        raise DamagedSourceError(
            f"{directory} was prepared again or altered since it was opened; a dataset must not be replaced while it "
            "is read"
        )
    return source


def _checked_sizes(builder: Builder, split: str, shards: Sequence[Shard], check: str) -> dict[str, int]:
    """Name -> bytes of the split's shards, all of them there and whole as far as `check` looks."""
    directory = builder.metadata.directory
    sizes = list_sizes(directory)
    problems = size_problems(directory, shards, sizes)
    if not problems and check == "full":
        problems = count_problems(directory, shards)
    if problems:
        more = f" (and {len(problems) - 1} more shards are not whole)" if len(problems) > 1 else ""
        raise DamagedSourceError(f"split {split!r} of {builder.metadata.full_name}: {problems[0]}{more}")
    return {shard.name: sizes[shard.name] for shard in shards}


def _digest_ends(digest: Any, path: str) -> None:
    with open(path, "rb") as file:
        digest.update(file.read(_HEAD))
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        digest.update(file.read(_TAIL))


def _described(decoders: Any) -> str:
    """Decoders by field, each by its class, or by the function that it was made from."""
    if isinstance(decoders, Mapping):
        parts = sorted(cast("Mapping[str, Any]", decoders).items())
        return "{" + ", ".join(f"{name}: {_described(one)}" for name, one in parts) + "}"
    function = getattr(decoders, "_fn", None)
    if function is None:
        return type(decoders).__qualname__
    return ".".join(str(getattr(function, part, "?")) for part in ("__module__", "__qualname__"))
