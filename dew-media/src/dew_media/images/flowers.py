"""Oxford Flowers 102 as one value, from wherever a copy lies: `OxfordFlowers("flowers", size=64).load(batch=32)`.

8189 photographs of 102 kinds of flowers. The published test split is the large one: 1020 images to train on, 1020 to
validate on, 6149 to test on. The data set has no captions; they are made of the class names by templates.
"""

import logging
import os
import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import attrs

from dew.data import checks
from dew.data.dataset import Dataset
from dew.data.errors import OptionsError, OptionsTypeError, OverlapError, SourceNotFoundError
from dew.data.loading import Loading
from dew.data.storage import Storage
from dew_media.files.collection import MediaFiles
from dew_media.images import flower_download
from dew_media.images.flower_files import (
    ALL,
    LABELS,
    PARTS,
    TRAINING,
    VALIDATION,
    FlowerArchive,
    hf_flowers,
    parquet_flowers,
    tfds_flowers,
)
from dew_media.images.flower_names import NAMES, TEMPLATES
from dew_media.images.options import PictureOptions
from dew_media.images.source import ImageSource

logger = logging.getLogger("dew.media")

Form: TypeAlias = Literal["archive", "tfds", "saved", "parquet"]
"""The original archive's files; prepared by tensorflow-datasets; saved to disk by `datasets`; parquet files."""

_SPLITS: Final = (*PARTS, ALL)
_TFDS_NAME: Final = "oxford_flowers102"


def _as_templates(value: Any) -> Any:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return value
    return tuple(cast("Sequence[Any]", value))


def _check_templates(_instance: object, _attribute: "attrs.Attribute[tuple[str, ...]]", value: object) -> None:
    if not isinstance(value, tuple) or not value:
        raise OptionsTypeError(f"templates must be a sequence of texts, got {value!r}")
    for template in cast("tuple[Any, ...]", value):
        if not isinstance(template, str):
            raise OptionsTypeError(f"templates must be a sequence of texts, got {template!r} in it")
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
        if names != ["name"]:
            raise OptionsError(f"a template holds {{name}} once and no other braces, got {template!r}")


def _check_split(_instance: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if value is not None and value not in _SPLITS:
        raise OptionsError(f"{attribute.name} must be one of {', '.join(map(repr, _SPLITS))}, got {value!r}")


def _check_form(_instance: object, _attribute: "attrs.Attribute[Form | None]", value: object) -> None:
    if value is not None and value not in get_args(Form):
        raise OptionsError(f"form must be one of {', '.join(map(repr, get_args(Form)))} or None, got {value!r}")


@attrs.frozen
class OxfordFlowers(PictureOptions):
    """The Oxford flowers in a directory: the original archive's files, or a copy by TFDS or Hugging Face.

    Records are `{"image", "label", "caption"}`: the label is the archive's class less one, of which `NAMES` has the
    name, and the caption is one of the templates, drawn by the record itself in training. Nothing is downloaded unless
    asked for.

    Args:
        path: a directory with `jpg/`, `imagelabels.mat` and `setid.mat`; one that tensorflow-datasets prepared, or a
            `data_dir` above it; one that `datasets` saved; or a copy of parquet files.
        split: `"train"`, `"validation"`, `"test"`, or `"all"`: the three after each other.
        val_split: the split to validate on, or None.
        form: what the directory is; by default found from what is there.
        templates: captions, each with `{name}` in it.
        download: fetches the original files into `path`, where it holds no flowers, from where they were published,
            https://www.robots.ox.ac.uk/~vgg/data/flowers/102 (329 MiB).
        allow_overlap: validates on images that are also trained on.
        size, fit, crop, resample, flip, upscale, background, exact, engine, icc, max_pixels, captions: as in
            `PictureOptions`.
        seed: of the order and of every record's draws.
        loading: how fast batches are made, never what they hold.

    Raises:
        OptionsError, OptionsTypeError: a value that cannot be used.
    """

    path: str = attrs.field(converter=os.fspath)
    split: str = attrs.field(default=TRAINING, validator=_check_split, kw_only=True)
    val_split: str | None = attrs.field(default=VALIDATION, validator=_check_split, kw_only=True)
    form: Form | None = attrs.field(default=None, validator=_check_form, kw_only=True)
    templates: tuple[str, ...] = attrs.field(
        default=TEMPLATES, converter=_as_templates, validator=_check_templates, kw_only=True
    )
    download: bool = attrs.field(default=False, validator=attrs.validators.instance_of(bool), kw_only=True)
    allow_overlap: bool = attrs.field(default=False, validator=attrs.validators.instance_of(bool), kw_only=True)
    seed: int = attrs.field(default=0, validator=checks.seed, kw_only=True)
    loading: Loading = attrs.field(factory=Loading, kw_only=True)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each label."""
        return NAMES

    def load(self, *, batch: int) -> Dataset:
        """The data set, with `batch` rows in one step over all processes.

        Raises:
            SourceNotFoundError: no flowers are in the directory, and none are to be downloaded.
            SplitError: a copy has no such split.
            SourceError: images are missing, or a copy has other classes.
            OverlapError: validation would read images that are trained on.
        """
        from dew.data.build import dataset_of

        if self.val_split in (self.split, *(_SPLITS if self.split == ALL else ())) and not self.allow_overlap:
            raise OverlapError(
                f"validation on {self.val_split!r} would read images of the split {self.split!r} that is trained on; "
                "validate on other images, or allow it with allow_overlap=True"
            )
        return dataset_of(
            self.open(self.split),
            batch=batch,
            val=None if self.val_split is None else self.open(self.val_split),
            seed=self.seed,
            loading=self.loading,
            allow_overlap=self.allow_overlap,
        )

    def open(self, split: str) -> ImageSource:
        """One split as a record source.

        Raises:
            As `load`.
        """
        _check_split(self, attrs.fields(OxfordFlowers).split, split)
        form = self.form or form_of(self.path)
        if form is None and self.download:
            flower_download.download(Path(self.path), flower_download.OXFORD)
            form = "archive"
        if form is None:
            raise SourceNotFoundError(
                f"there are no Oxford flowers in {os.path.abspath(self.path)}: no {LABELS}, no prepared "
                f"{_TFDS_NAME}, and no Hugging Face copy. Give another path, or fetch the original files "
                f"({flower_download.OXFORD.size}) from {flower_download.OXFORD.url} with download=True"
            )
        source = ImageSource(self._files(form, split), self)
        logger.info("%s", source)
        return source

    def _files(self, form: Form, split: str) -> MediaFiles:
        templates = () if self.captions == "drop" else self.templates
        if form == "archive":
            return FlowerArchive(Storage(self.path), split, templates)
        openers: Mapping[str, Callable[[str, str, Sequence[str]], MediaFiles]] = {
            "tfds": tfds_flowers,
            "saved": hf_flowers,
            "parquet": parquet_flowers,
        }
        return openers[form](self.path, split, templates)


def form_of(path: str) -> Form | None:
    """What the directory `path` is, None where it holds no flowers."""
    storage = Storage(path)
    try:
        names = storage.list()
    except SourceNotFoundError:
        return None
    if LABELS in names:
        return "archive"
    if "dataset_dict.json" in names or "state.json" in names:
        return "saved"
    if _has_parquet(names) or ("data" in names and _has_parquet(storage.list("data"))):
        return "parquet"
    if (
        "features.json" in names
        or _TFDS_NAME in names
        or any(storage.exists(f"{name}/features.json") for name in names)
    ):
        return "tfds"
    return None


def _has_parquet(names: Sequence[str]) -> bool:
    return any(name.endswith(".parquet") for name in names)
