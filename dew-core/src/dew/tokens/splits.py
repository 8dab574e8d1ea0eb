"""Splits: a directory with a manifest is one corpus, the split `train`; one without has a directory for each split."""

from dew.data.errors import SplitError
from dew.data.storage import Storage
from dew.tokens.manifest import MANIFEST


def is_split_name(name: str) -> bool:
    """Whether `name` can be a split: one directory, below the corpus's own."""
    return name not in {"", ".", ".."} and not set(name) & {"/", "\\", "\0"}


def splits_in(storage: Storage) -> list[str]:
    """Names of the finished splits, sorted; empty where there are none."""
    if storage.exists(MANIFEST):
        return ["train"]
    if not storage.is_dir(""):
        return []
    return [name for name in storage.list() if storage.exists(f"{name}/{MANIFEST}")]


def find_split(storage: Storage, split: str) -> Storage:
    """Where the corpus of `split` should be; opening it tells whether it is there and finished.

    Raises:
        SplitError: there are other splits, and none of that name.
    """
    if storage.exists(MANIFEST):
        if split == "train":
            return storage
        raise SplitError(
            f"no split {split!r} in {storage.location()}: it holds one corpus, the split 'train'; "
            "to validate on the end of it, give val as a fraction"
        )
    if is_split_name(split) and storage.is_dir(split):
        return storage.child(split)
    if names := splits_in(storage):
        raise SplitError(f"no split {split!r} in {storage.location()}; there are {names}")
    return storage
