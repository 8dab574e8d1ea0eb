"""Where the Oxford flowers can lie: the original archive's files, or the rows of a prepared copy; both as `MediaFiles`.

Whatever the form, the labels are the archive's classes less one, and captions are made of the class names.
"""

import bisect
import hashlib
import importlib
import io
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Final, cast

import attrs
import numpy as np
import numpy.typing as npt

from dew.data import registry
from dew.data.errors import DamagedSourceError, OptionsError, SourceError, SplitError
from dew.data.provider import LoadRequest
from dew.data.source import RecordSource, describe, fingerprint
from dew.data.storage import Storage
from dew_media.files.collection import MediaFiles, Opened, StoredFiles, check_index
from dew_media.files.open import open_files, splits_in
from dew_media.files.problems import listed
from dew_media.images.flower_names import NAMES

IMAGES: Final = "jpg"
LABELS: Final = "imagelabels.mat"
SPLITS: Final = "setid.mat"
FILES: Final = (IMAGES, LABELS, SPLITS)
"""What the original archive is made of."""

TRAINING: Final = "train"
VALIDATION: Final = "validation"
TEST: Final = "test"
ALL: Final = "all"

PARTS: Final = {TRAINING: "trnid", VALIDATION: "valid", TEST: "tstid"}
"""Split -> its name in `setid.mat`."""

_SAMPLED: Final = 64  # images whose sizes go into the digest


def captions_of(label: int, templates: Sequence[str]) -> tuple[str, ...]:
    """One caption a template."""
    return tuple(template.format(name=NAMES[label]) for template in templates)


@attrs.frozen(kw_only=True)
class _Archive(Opened):
    """`labels`: of each file, from 0."""

    labels: npt.NDArray[np.int64]


class FlowerArchive(StoredFiles[_Archive]):
    """The files of the original archive: `jpg/image_00001.jpg` and so on, `imagelabels.mat`, `setid.mat`.

    Args:
        storage: the directory that holds them.
        split: "train", "validation", "test", or "all" for the three after each other.
        templates: of the captions; none for images without captions.

    Raises:
        SplitError: there is no such split.
        DamagedSourceError: a `.mat` file cannot be read, or they do not fit each other.
        SourceError: images of the split are missing.
        ImportError: scipy is not installed.
    """

    def __init__(self, storage: Storage, split: str, templates: Sequence[str]) -> None:
        self._storage = storage
        self._split = split
        self._templates = tuple(templates)
        super().__init__()

    def name(self, index: int) -> str:
        """Its path in the archive."""
        return self.key(index)

    def read(self, index: int) -> bytes:
        """The JPEG file."""
        return self._storage.read(self.key(index))

    def open_file(self, index: int) -> BinaryIO:
        """The same, in memory: a flower has about 41 KB."""
        return io.BytesIO(self.read(index))

    def path(self, index: int) -> str | None:
        """Its path on a local disk."""
        path = self._storage.path(self.key(index))
        return None if path is None else str(path)

    def label(self, index: int) -> int:
        """From 0, as everywhere but in the archive."""
        return int(self.known.labels[check_index(index, len(self))])

    def captions(self, index: int) -> tuple[str, ...]:
        """One a template."""
        return captions_of(self.label(index), self._templates)

    def _location(self) -> str:
        return self._storage.location()

    def _open(self) -> _Archive:
        labels = _numbers(self._storage, LABELS, "labels")
        splits = _splits(self._storage, self._split)
        ids = np.concatenate(splits)
        self._check_numbers(ids, labels)
        names = [f"image_{number:05d}.jpg" for number in ids.tolist()]
        there = set(self._storage.list(IMAGES))
        if missing := [name for name in names if name not in there]:
            raise SourceError(
                f"{self._storage.location(IMAGES)} lacks {len(missing)} of the {len(names)} images of the split "
                f"{self._split!r}: {listed(missing)}; unpack 102flowers.tgz again"
            )
        chosen = labels[ids - 1] - 1
        return _Archive(
            keys=[f"{IMAGES}/{name}" for name in names],
            label_names=NAMES,
            has_labels=True,
            has_captions=bool(self._templates),
            digest=self._digest_of(ids, chosen, names),
            description=f"oxford flowers, original files, {self._split}, {len(names)} files",
            labels=chosen,
        )

    def _check_numbers(self, ids: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]) -> None:
        where = self._storage.location()
        if not len(labels) or int(labels.min()) < 1 or int(labels.max()) > len(NAMES):
            raise DamagedSourceError(f"{where}/{LABELS} must hold classes 1 to {len(NAMES)}, got {labels!r}")
        if not len(ids):
            raise SourceError(f"{where}/{SPLITS} holds no images for the split {self._split!r}")
        if int(ids.min()) < 1 or int(ids.max()) > len(labels):
            raise DamagedSourceError(
                f"{where}/{SPLITS} names image {ids.max()}, and {LABELS} has the classes of images 1 to {len(labels)}"
            )
        if len(np.unique(ids)) != len(ids):
            raise DamagedSourceError(f"{where}/{SPLITS} names an image twice in the split {self._split!r}")

    def _digest_of(self, ids: npt.NDArray[np.int64], labels: npt.NDArray[np.int64], names: Sequence[str]) -> str:
        """Of numbers and classes, and of the sizes of 64 images spread over all."""
        digest = hashlib.sha256(ids.astype("<i8").tobytes() + labels.astype("<i8").tobytes())
        for index in np.linspace(0, len(names) - 1, min(_SAMPLED, len(names))).astype(int).tolist():
            digest.update(f"{names[index]} {self._storage.size(f'{IMAGES}/{names[index]}')}\n".encode())
        return digest.hexdigest()


@attrs.frozen(kw_only=True)
class _Rows(Opened):
    """Nothing more than what every collection knows."""


class FlowerRows(StoredFiles[_Rows]):
    """The rows of a prepared copy, whose images are not decoded yet.

    Args:
        rows: records with the encoded image under "image", as bytes or as `{"bytes": ...}`, and the class as "label".
        form: what the copy is, for descriptions.
        split: its name there.
        templates: of the captions; none for images without captions.
    """

    def __init__(self, rows: RecordSource, *, form: str, split: str, templates: Sequence[str]) -> None:
        self._rows: Any = rows
        self._form = form
        self._split = split
        self._templates = tuple(templates)
        self._last = threading.local()
        super().__init__()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_last"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._last = threading.local()

    def name(self, index: int) -> str:
        """Split and number of the row."""
        return f"{self._form}, {self._split}, row {check_index(index, len(self))}"

    def read(self, index: int) -> bytes:
        """The encoded image.

        Raises:
            DamagedSourceError: the row holds none.
        """
        image: Any = self._row(index).get("image")
        data = cast("Mapping[str, Any]", image).get("bytes") if isinstance(image, Mapping) else image
        if not isinstance(data, bytes):
            raise DamagedSourceError(
                f"{self.name(index)} holds {type(data).__name__} where an encoded image should be; fetch the copy again"
            )
        return data

    def open_file(self, index: int) -> BinaryIO:
        """The same, in memory."""
        return io.BytesIO(self.read(index))

    def label(self, index: int) -> int:
        """The class, from 0."""
        label: Any = self._row(index).get("label")
        if label is None or not 0 <= int(label) < len(NAMES):
            raise DamagedSourceError(f"{self.name(index)} has the label {label!r}; there are 0 to {len(NAMES) - 1}")
        return int(label)

    def captions(self, index: int) -> tuple[str, ...]:
        """One a template."""
        return captions_of(self.label(index), self._templates)

    def shares_records_with(self, other: object) -> int:
        """As many as the rows themselves share."""
        own = getattr(self._rows, "shares_records_with", None)
        return own(other._rows) if own is not None and isinstance(other, FlowerRows) else 0

    def reopened(self) -> MediaFiles:
        """With a reader of its own, where the rows open one."""
        other = cast("FlowerRows", super().reopened())
        own = getattr(self._rows, "open", None)
        other._rows = self._rows if own is None else own()
        return other

    def close(self) -> None:
        """Closes the reader."""
        self._last = threading.local()
        close = getattr(self._rows, "close", None)
        if close is not None:
            close()

    def _row(self, index: int) -> Mapping[str, Any]:
        """A row is asked for its image, label and captions in turn, and read once."""
        kept = getattr(self._last, "row", None)
        if kept is None or kept[0] != index:
            kept = self._last.row = (index, self._rows[check_index(index, len(self))])
        return kept[1]

    def _location(self) -> str:
        return describe(self._rows)

    def _open(self) -> _Rows:
        count = len(self._rows)
        facts = [describe(self._rows), fingerprint(self._rows)]
        return _Rows(
            keys=[f"{self._split}/{index}" for index in range(count)],
            label_names=NAMES,
            has_labels=True,
            has_captions=bool(self._templates),
            digest=hashlib.sha256(json.dumps(facts).encode()).hexdigest(),
            description=f"oxford flowers, {self._form}, {self._split}, {count} files",
        )


def tfds_flowers(path: str, split: str, templates: Sequence[str]) -> FlowerRows:
    """The flowers that tensorflow-datasets prepared, in or below `path`, through the provider `tfds`.

    Raises:
        SplitError: there is no such split.
        SourceError: the classes have other names.
    """
    provider = registry.find("tfds")
    library: Any = importlib.import_module("tensorflow_datasets")
    assert provider.options is not None
    options = provider.options(path=path, decoders={"image": library.decode.SkipDecoding()})
    wanted = "+".join(PARTS) if split == ALL else split
    request = LoadRequest(name="oxford_flowers102", batch=1, options=options)
    rows = cast("RecordSource", provider.open(request, wanted))
    check_names(cast("Any", rows).labels.get("label"), path)
    return FlowerRows(rows, form="prepared by TFDS", split=split, templates=templates)


def hf_flowers(path: str, split: str, templates: Sequence[str]) -> FlowerRows:
    """The flowers that `datasets` saved to disk in `path`, through the provider `hf`.

    Raises:
        SplitError: there is no such split; lists those there are.
        SourceError: the columns, or the names of the classes, are others.
    """
    provider = registry.find("hf")
    library: Any = importlib.import_module("datasets")
    saved: Any = library.load_from_disk(path)
    is_dict = isinstance(saved, Mapping)
    parts = dict(cast("Mapping[str, Any]", saved)) if is_dict else {TRAINING: saved}
    names = _split_names(split, list(parts), path)
    chosen = [_undecoded(library, parts[name], path) for name in names]
    table = chosen[0] if len(chosen) == 1 else library.concatenate_datasets(chosen)
    assert provider.options is not None
    request = LoadRequest(name="oxford-flowers", batch=1, options=provider.options(), dataset=table)
    rows = cast("RecordSource", provider.open(request, split))
    return FlowerRows(rows, form="Hugging Face copy", split=split, templates=templates)


def parquet_flowers(path: str, split: str, templates: Sequence[str]) -> FlowerRows:
    """The flowers in a copy of parquet files, as repositories of the Hugging Face hub hold them.

    Raises:
        SplitError: there is no such split; lists those there are.
        SourceError: there is no label, or the classes have other names.
    """
    names = splits_in(path, layout="parquet") if split == ALL else [split]
    parts = [open_files(path, layout="parquet", split=name) for name in names]
    for part in parts:
        if not part.has_labels:
            raise SourceError(f"{path} has no labels: {part.description()}; the classes of flowers are in `label`")
        check_names(part.label_names or None, path)
    return FlowerRows(EncodedRows(parts), form="parquet copy", split=split, templates=templates)


class EncodedRows:
    """Files after each other as records of encoded image and label."""

    def __init__(self, parts: Sequence[MediaFiles]) -> None:
        self._parts = tuple(parts)
        self._starts = np.cumsum([0, *map(len, parts)]).tolist()

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        number = bisect.bisect_right(self._starts, check_index(index, len(self))) - 1
        part, within = self._parts[number], index - self._starts[number]
        return {"image": part.read(within), "label": part.label(within)}

    def __repr__(self) -> str:
        return f"EncodedRows({', '.join(part.description() for part in self._parts)})"

    def fingerprint(self) -> str:
        """Of all files."""
        return hashlib.sha256(" ".join(part.digest() for part in self._parts).encode()).hexdigest()

    def open(self) -> "EncodedRows":
        """With files of its own."""
        return EncodedRows([part.reopened() for part in self._parts])

    def close(self) -> None:
        """Closes the files."""
        for part in self._parts:
            part.close()


def _undecoded(library: Any, table: Any, path: str) -> Any:
    """Image and label of a table, the images left as they are stored."""
    if lacking := {"image", "label"} - set(table.column_names):
        raise SourceError(f"{path} has no column {sorted(lacking)}; it has {table.column_names}")
    check_names(getattr(table.features["label"], "names", None), path)
    return table.select_columns(["image", "label"]).cast_column("image", library.Image(decode=False))


def _split_names(split: str, there: Sequence[str], path: str) -> list[str]:
    """Which of the splits that a copy has are meant; some call validation `valid` or `val`."""
    if split == ALL:
        return list(there)
    names = {split} if split != VALIDATION else {VALIDATION, "valid", "val"}
    found = [name for name in there if name in names]
    if not found:
        raise SplitError(f"{path} has no split {split!r}; it has {[*there, ALL]}")
    return found[:1]


def check_names(found: Sequence[str] | None, where: str) -> None:
    """Refuses a copy whose classes are in another order, or others; a copy without names is taken as it is.

    Raises:
        SourceError: names the first class that differs.
    """
    if found is None or tuple(found) == NAMES:
        return
    pairs = zip([*found, *[None] * len(NAMES)], NAMES, strict=False)
    label, (theirs, ours) = next((number, pair) for number, pair in enumerate(pairs) if pair[0] != pair[1])
    raise SourceError(
        f"the classes of {where} are not those of the Oxford flowers: label {label} is {theirs!r} there, and {ours!r} "
        f"here ({len(found)} and {len(NAMES)} classes); open it as it is with ImageFolder, ImageParquet or its provider"
    )


def _splits(storage: Storage, split: str) -> list[npt.NDArray[np.int64]]:
    if split != ALL and split not in PARTS:
        raise SplitError(f"{storage.location()} has no split {split!r}; it has {[*PARTS, ALL]}")
    names = list(PARTS.values()) if split == ALL else [PARTS[split]]
    return [_numbers(storage, SPLITS, name) for name in names]


def _numbers(storage: Storage, name: str, variable: str) -> npt.NDArray[np.int64]:
    """A row of numbers in a `.mat` file."""
    try:
        matlab: Any = importlib.import_module("scipy.io")
    except ImportError as error:
        raise ImportError(
            f"reading {name} of the Oxford flowers needs scipy: pip install 'dew-media[flowers]'"
        ) from error
    data = storage.read(name)
    try:
        found = np.asarray(matlab.loadmat(io.BytesIO(data))[variable]).reshape(-1)
        if found.dtype.kind not in "iu":
            raise OptionsError(f"it holds {found.dtype} values")
    except Exception as error:  # scipy raises what its parser happens to run into
        raise DamagedSourceError(
            f"{storage.location(name)} holds no numbers called {variable!r} ({len(data)} bytes): {error!r}; "
            "fetch it again"
        ) from error
    return found.astype(np.int64)
