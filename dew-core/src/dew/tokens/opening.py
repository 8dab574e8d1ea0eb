"""From a path to a corpus: who wrote what is there, which files are which split, and how they are opened."""

import fnmatch
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, Final

import attrs

from dew.data.errors import OptionsError, SourceError, SourceNotFoundError, SplitError
from dew.data.filenames import in_order
from dew.data.storage import Storage
from dew.tokens.access import CorpusOptions
from dew.tokens.corpus import TokenCorpus
from dew.tokens.foreign.formats import files_in, format_named, open_files, signs
from dew.tokens.foreign.shard import Format
from dew.tokens.manifest import MANIFEST
from dew.tokens.reader import TokenReader
from dew.tokens.splits import find_split, is_split_name, splits_in

# Words in the names of files that say which split they are of.
_SPLIT_WORDS: Final = {"train", "training", "val", "valid", "validation", "dev", "eval", "test"}
_WORD: Final = re.compile("[^A-Za-z]+")
_DEW_FILE: Final = re.compile(r"shard-[0-9]{5,9}(\.(tokens|docs|roles|origin)\.npy|\.json)", re.ASCII)
_SINGLE: Final = ("headerless", "npy", "llm.c")  # formats of one file


def open_corpus(path: str, split: str = "train", options: CorpusOptions | None = None) -> TokenReader:
    """The corpus of one split at `path`, whoever wrote it.

    Args:
        path: a directory of a corpus or of splits; one file of ids, Megatron's common begin of `.bin` and `.idx`, or a
            pattern (`data/part-*.bin`): a path or a URL.
        split: which split.
        options: how it is reached and read.

    Raises:
        SourceNotFoundError: nothing is stored at `path`.
        DamagedSourceError: a corpus is unfinished, cut, or was altered.
        SourceError: what is there is of no known format, or could be of several.
            Or the corpus was prepared with another tokenizer than `options.tokenizer`.
        SplitError: there is no split of that name.
        OptionsError: the options contradict what is there, or lack what it does not say.
    """
    options = options or CorpusOptions()
    storage = options.storage(path)
    if options.format == "dew" or (options.format is None and _is_dew(storage, split)):
        _refuse_foreign_options(storage, options)
        corpus: TokenReader = TokenCorpus(find_split(storage, split))
    else:
        files = _locate(storage, split, options)
        corpus = open_files(files.storage, files.format, files.of(split), options)
    if options.tokenizer is not None:
        _check_tokenizer(storage, corpus, options.tokenizer)
    return corpus


def _check_tokenizer(storage: Storage, corpus: TokenReader, tokenizer: Any) -> None:
    from dew.tokens.prepare.tokenizers import load_definition

    wanted = load_definition(tokenizer).info
    if corpus.tokenizer_sha256 == wanted.sha256:
        return
    made = (
        f"with tokenizer {corpus.tokenizer_sha256}" if corpus.tokenizer_sha256 else "by a tokenizer it does not state"
    )
    if isinstance(corpus, TokenCorpus):
        made += f" of {corpus.manifest.tokenizer.vocab_size} ids"
    raise SourceError(
        f"{storage.location()} was prepared {made}, and the tokenizer given is {wanted.sha256} of {wanted.vocab_size} "
        "ids: its ids would be other text; prepare the corpus with this tokenizer, or leave tokenizer= out"
    )


def has_split(path: str, split: str, options: CorpusOptions) -> bool:
    """Whether there is a split of that name beside the one `train`."""
    storage = options.storage(path)
    if options.format == "dew" or (options.format is None and _is_dew(storage, "train")):
        return split in splits_in(storage)
    if storage.is_dir(split):
        return True
    files = _locate(storage, "train", options)
    return split in files.splits()


@attrs.frozen(kw_only=True)
class _Files:
    """Files of ids in one directory, in order."""

    storage: Storage
    format: Format
    names: list[str]
    one: str | None  # the split that all of them are, whatever their names; None: their names may tell

    def splits(self) -> list[str]:
        """The splits that there are by the names of the files; `train` where they tell none."""
        return sorted({word for name in self.names for word in self._words(name)}) or [self.one or "train"]

    def of(self, split: str) -> list[str]:
        """The files of one split.

        Raises:
            SplitError: there are none.
            SourceError: some files are of no split, or of several, by their names.
        """
        marked = {name: self._words(name) for name in self.names}
        if not any(marked.values()):
            if [split] == self.splits():
                return self.names
            raise SplitError(
                f"no split {split!r} in {self.storage.location()}: its files are one corpus, the split 'train'; to "
                "validate on the end of it, give val as a fraction"
            )
        unclear = [name for name, words in marked.items() if len(words) != 1]
        if unclear:
            raise SourceError(
                f"{self.storage.location()} has files of the splits {self.splits()} by their names, and {unclear[:3]} "
                "are of none or of several; name the files to read by a pattern"
            )
        found = [name for name, words in marked.items() if words == {split}]
        if not found:
            raise SplitError(
                f"no split {split!r} in {self.storage.location()}; by the names of its files there are {self.splits()}"
            )
        return found

    def _words(self, name: str) -> set[str]:
        return set() if self.one else set(_WORD.split(PurePosixPath(name).stem)) & _SPLIT_WORDS


def _is_dew(storage: Storage, split: str) -> bool:
    """Whether Dew wrote what is there, be it finished or not."""
    if storage.exists(MANIFEST):
        return True
    if not storage.is_dir(""):
        return False
    names = storage.list()
    if any(_DEW_FILE.fullmatch(name) for name in names):
        return True
    folders = [name for name in names if "." not in name]
    if any(storage.exists(f"{name}/{MANIFEST}") for name in folders):
        return True
    return split in folders and any(_DEW_FILE.fullmatch(name) for name in storage.child(split).list())


def _locate(storage: Storage, split: str, options: CorpusOptions) -> _Files:
    if storage.is_dir(""):
        inside = is_split_name(split) and storage.is_dir(split)
        folder, one = (storage.child(split), split) if inside else (storage, None)
        names = folder.list()
    else:
        folder, name = _parent(storage)
        matched, one = _matched(folder, name), "train"
        if not matched:
            raise SourceNotFoundError(
                f"no token corpus at {storage.location()}: there is no such directory, file or pattern; check the path"
            )
        if options.format in _SINGLE:  # the caller says what they are, however they are called
            return _Files(storage=folder, format=format_named(options.format), names=in_order(matched), one=one)
        names = [*matched, *_beside(folder, matched)]
    found = files_in(folder, names, options)
    if found is None:
        asked_for = f"format={options.format!r} was asked for" if options.format else f"known are 'dew'; {signs()}"
        raise SourceError(f"{storage.location()} holds no token corpus: there are {names[:5]}, and {asked_for}")
    format, chosen = found
    return _Files(storage=folder, format=format, names=chosen, one=one)


def _matched(folder: Storage, name: str) -> list[str]:
    """The files that the last part of a path names: by a pattern, or whole, or as the begin of `.idx` and `.bin`."""
    if any(mark in name for mark in "*?["):
        return fnmatch.filter(folder.list(), name) if folder.is_dir("") else []
    if folder.exists(name):
        return [name]
    return [f"{name}.idx"] if folder.exists(f"{name}.idx") else []


def _beside(folder: Storage, names: Sequence[str]) -> list[str]:
    """What belongs to files of ids and tells their format: indexes and metadata beside them."""
    wanted = [name.removesuffix(".bin") + ".idx" for name in names if name.endswith(".bin")]
    wanted += [name + ending for name in names for ending in (".index", ".metadata") if name.endswith(".ds")]
    if len(names) > 1:
        listed = set(folder.list())
        return [name for name in wanted if name in listed and name not in names]
    return [name for name in wanted if folder.exists(name)]


def _parent(storage: Storage) -> tuple[Storage, str]:
    """The directory of what a storage's URL names, and its name there."""
    url, chain, further = storage.url.partition("::")
    query = ""
    if url.startswith(("http://", "https://")):
        url, mark, signature = url.partition("?")
        query = mark + signature
    url, _, name = url.rstrip("/").rpartition("/")
    if not url and storage.local:
        url = "/" if storage.url.startswith("/") else "."
    return attrs.evolve(storage, url=f"{url}{query}{chain}{further}"), name


def _refuse_foreign_options(storage: Storage, options: CorpusOptions) -> None:
    given = {"dtype": options.dtype, "eos_id": options.eos_id, "bos_id": options.bos_id}
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise OptionsError(
            f"{storage.location()} is a corpus that Dew wrote, whose manifest states its dtype and documents; leave "
            f"{' and '.join(names)} out"
        )
