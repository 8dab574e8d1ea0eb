"""Opening datasets through the `datasets` library, and saying in one line what kept it from doing so.

This is the only module that calls `load_dataset`; secrets (tokens, storage options) never leave it in a message.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar, cast

from dew.data.errors import (
    DewDataError,
    OptionsError,
    OptionsTypeError,
    ProviderError,
    SourceError,
    SourceNotFoundError,
    SplitError,
    StorageError,
)
from dew_hf.options import HFOptions

_T = TypeVar("_T")
_OLDEST: Final = (5, 1)
_SHOWN_FILES: Final = 10
_SPLITS = re.compile(r"(?:Available splits: |Should be one of )(?P<splits>\[.*\])")
_COLUMN = re.compile(r"No match for FieldRef.Name\((?P<name>.*?)\) in (?P<found>.*?) __fragment_index")
_CAUSES: Final = 5
_COMMIT = re.compile(r"^hf://[^@]*@(?P<commit>[0-9a-f]{40})(?=/)")
_HUB_PREFIX: Final = {"dataset": "datasets/", "space": "spaces/", "model": ""}

# Left to itself, the library reads a parquet file in batches as large as its first row group, and fails where that has
# no row.
_BATCH_SIZE: Final = 10_000
_EMPTY_GROUP: Final = "BatchSize must be greater than 0"


def library() -> Any:
    """The `datasets` package.

    Raises:
        ProviderError: it is older than 5.1, whose streams restart in silence when they are resumed twice.
    """
    import datasets  # pyright: ignore[reportMissingTypeStubs]

    version = cast("Any", datasets).__version__
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise ProviderError(
            f"dew-hf needs datasets 5.1 or newer, found {version}: older ones lose rows when a stream is resumed "
            "(huggingface/datasets#8308); pip install --upgrade datasets"
        )
    return datasets


def inner(opened: Any, attribute: str, what: str) -> Any:
    """What an object of the library keeps to itself; Dew must know it, since it would read other rows without.

    Raises:
        ProviderError: this release does not keep it there.
    """
    if hasattr(opened, attribute):
        return getattr(opened, attribute)
    kind = type(opened).__name__
    raise ProviderError(
        f"datasets {library().__version__} does not tell {what}: its {kind} has no {attribute}, which dew-hf reads; "
        'install a release that it knows, such as pip install "datasets==5.2.*", and report this one'
    )


def arrow() -> Any:
    """The `pyarrow` package."""
    import pyarrow  # pyright: ignore[reportMissingTypeStubs]

    return pyarrow


def parquet() -> Any:
    """The `pyarrow.parquet` module."""
    from pyarrow import parquet as module  # pyright: ignore[reportMissingTypeStubs]

    return module


def open_table(name: str, split: str, options: HFOptions) -> Any:
    """One split as a `datasets.Dataset`."""
    datasets = library()
    keys = ("keep_in_memory", "num_proc", "save_infos", "verification_mode")
    given = {**_arguments(options), **{key: getattr(options, key) for key in keys}}

    def load() -> Any:
        try:
            return datasets.load_dataset(name, split=split, **given)
        except Exception as error:
            if _EMPTY_GROUP not in _line(error) or "batch_size" in given:
                _explain(name, split, options, error)
                raise
        return datasets.load_dataset(name, split=split, **given, batch_size=_BATCH_SIZE)

    return guarded(name, split, options, load)


def _explain(name: str, split: str, options: HFOptions, error: Exception) -> None:
    """Raises what names the column and the files, where a cast failed."""
    if not is_cast(error):
        return
    try:
        said = differing_types(open_builder(name, split, options), re.split(r"[\[+]", split)[0])
    except Exception:
        return  # the first error says what there is to say
    if said is not None:
        raise SourceError(f"'hf/{short_name(name)}' (split {split!r}): {said}") from error


def is_cast(error: BaseException) -> bool:
    """Whether a value did not fit the type of its column."""
    text = _line(error).lower()
    return "cast" in text or "not in range" in text or "out of bounds" in text


def open_builder(name: str, split: str, options: HFOptions) -> Any:
    """What `datasets` streams a dataset with: its configuration, its files, and `as_streaming_dataset`."""
    datasets = library()
    builder = guarded(name, split, options, lambda: datasets.load_dataset_builder(name, **_arguments(options)))
    if format_of(builder) == "Parquet" and builder.config.batch_size is None:
        builder.config.batch_size = _BATCH_SIZE
    guarded(name, split, options, lambda: _pin(builder, options))
    return builder


def _pin(builder: Any, options: HFOptions) -> None:
    """Puts the commit into the addresses of hub files that name a branch, so that all of a run reads one state."""
    commits: dict[tuple[str, ...], str] = {}
    for files in cast("Mapping[str, Any]", builder.config.data_files or {}).values():
        for number, path in enumerate(files):
            if not path.startswith("hf://") or _COMMIT.search(path):
                continue
            repository = _repository(path, options)
            if repository is None:
                continue
            kind, name, revision, inside = repository
            commit = commits.get((kind, name, revision))
            if commit is None:
                commit = commits[kind, name, revision] = _commit_of(kind, name, revision, options)
            files[number] = f"hf://{_HUB_PREFIX[kind]}{name}@{commit}/{inside}"
            files.origin_metadata[number] = (name, commit)


def _repository(path: str, options: HFOptions) -> tuple[str, str, str, str] | None:
    """Kind, name, revision and path inside of a hub file; None where files have no revisions (buckets)."""
    from huggingface_hub import HfFileSystem

    found = cast("Any", HfFileSystem(token=options.token).resolve_path(path))
    if not hasattr(found, "revision"):
        return None
    return found.repo_type, found.repo_id, found.revision, found.path_in_repo


def _commit_of(kind: str, name: str, revision: str, options: HFOptions) -> str:
    from huggingface_hub import HfApi

    return str(cast("Any", HfApi(token=options.token)).repo_info(name, repo_type=kind, revision=revision).sha)


def hub_commit(builder: Any, split: str) -> str | None:
    """The commit of a split's hub files, None for other files."""
    commits = {found["commit"] for path in split_files(builder, split) if (found := _COMMIT.search(path))}
    return ", ".join(sorted(commits)) or None


def format_of(builder: Any) -> str:
    """The format that a builder reads, such as "Parquet"; of a directory or hub dataset it is a subclass of that."""
    for kind in type(builder).__mro__:
        if getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind:
            return kind.__name__
    return type(builder).__name__


def split_files(builder: Any, split: str) -> list[str]:
    """Paths and URLs of a split's files, in order."""
    files = cast("Mapping[str, Any]", builder.config.data_files or {})
    return [str(path) for name in split.split("+") for path in files.get(name.strip(), ())]


def split_versions(builder: Any, split: str) -> tuple[str, ...]:
    """What tells one state of each of a split's files from another: commit, ETag or time of change; "" for nothing."""
    files = cast("Mapping[str, Any]", builder.config.data_files or {})
    lists = [files[name.strip()] for name in split.split("+") if name.strip() in files]
    known = [getattr(one, "origin_metadata", None) or [()] * len(one) for one in lists]
    return tuple(" ".join(map(str, origin)) for origins in known for origin in origins)


def footer_cache(options: HFOptions) -> str:
    """The directory for indexes of footers: below the library's cache of prepared tables."""
    return os.path.join(os.path.expanduser(options.cache_dir or str(library().config.HF_DATASETS_CACHE)), "dew-footers")


def differing_types(builder: Any, split: str) -> str | None:
    """The first column whose type differs between two local parquet files of a split, with both; for a message."""
    paths = [path for path in split_files(builder, split) if "://" not in path]
    if format_of(builder) != "Parquet" or not paths:
        return None
    first = parquet().read_schema(paths[0])
    for path in paths[1:]:
        for field in parquet().read_schema(path):
            if field.name in first.names and first.field(field.name).type != field.type:
                return (
                    f"column {field.name!r} is {first.field(field.name).type} in {os.path.basename(paths[0])} and "
                    f"{field.type} in {os.path.basename(path)}, and its values do not fit; "
                    "state one type for it in HFOptions(features=...)"
                )
    return None


def guarded(name: str, split: str, options: HFOptions, call: Callable[[], _T]) -> _T:
    """`call()`, its errors put in one line without secrets."""
    try:
        return call()
    except (DewDataError, MemoryError):
        raise
    except Exception as error:
        failure = error
    try:
        _refuse(failure, name, split, options)
    finally:
        del failure


def split_share(opened: Any, index: int, count: int, strategy: str) -> Any:
    """Share `index` of `count` of a stream, by "shards" or row by row ("examples")."""
    from datasets import distributed  # pyright: ignore[reportMissingTypeStubs]

    return cast("Any", distributed).split_dataset_by_node(opened, rank=index, world_size=count, strategy=strategy)


def hidden(text: str, options: HFOptions) -> str:
    """`text` without tokens, storage options, and what stands in a URL beside its address."""
    secrets = [options.token, *_leaves(options.storage_options), getattr(options.download_config, "token", None)]
    for secret in sorted({one for one in secrets if isinstance(one, str) and len(one) >= 4}, key=len, reverse=True):
        text = text.replace(secret, "***")
    text = re.sub(r"(?<=://)[^/?#\s'\"]*@", "***@", text)
    return re.sub(r"(https?://[^\s'\"?]*)\?[^\s'\"]+", r"\1?***", text)


def short_name(name: str) -> str:
    """How a description calls a dataset: a local path by its last part, since positions hold no locations."""
    path = os.path.expanduser(name)
    return os.path.basename(os.path.normpath(path)) if os.path.isabs(path) or os.path.exists(path) else name


def described(name: str, split: str, options: HFOptions) -> str:
    """The data as asked for, without locations; the revision is not part of it, since commit or content tell more."""
    parts = {
        "config": options.config,
        "split": split,
        "data_dir": None if options.data_dir is None else short_name(options.data_dir),
    }
    said = "".join(f", {key}={value!r}" for key, value in parts.items() if value is not None)
    columns = options.config_kwargs.get("columns")
    return f"hf({short_name(name)!r}{said}{'' if columns is None else f', columns={list(columns)}'})"


def _arguments(options: HFOptions) -> dict[str, Any]:
    keys = ("data_dir", "cache_dir", "features", "download_config", "download_mode", "revision", "token")
    storage = None if options.storage_options is None else dict(options.storage_options)
    given = {key: getattr(options, key) for key in keys}
    return {
        "name": options.config,
        "data_files": _plain_files(options.data_files),
        **given,
        "storage_options": storage,
        **options.config_kwargs,
    }


def _plain_files(files: Any) -> Any:
    """`data_files` as the types that `datasets` knows: str, list, dict."""
    if files is None or isinstance(files, str | os.PathLike):
        return None if files is None else os.fspath(cast("str", files))
    if isinstance(files, Mapping):
        return {key: _plain_files(value) for key, value in cast("Mapping[str, Any]", files).items()}
    return [os.fspath(one) for one in files]


def _refuse(error: Exception, name: str, split: str, options: HFOptions) -> NoReturn:
    text = hidden(_line(error), options)
    cause = error if hidden(str(error), options) == str(error) else None
    asked = f"'hf/{short_name(name)}' (split {split!r})"
    kind, message = _judged(error, text, asked, split, name, options)
    raise kind(message) from cause


def _judged(
    error: Exception, text: str, asked: str, split: str, name: str, options: HFOptions
) -> tuple[type[DewDataError], str]:
    if (found := _SPLITS.search(text)) is not None:
        if "[" in split and "Bad split" in text:
            return OptionsError, (
                f"{asked} asks for a slice of a stream; slices need streaming=False, and whole splits are "
                f"{found['splits']}"
            )
        return SplitError, f"{asked} has no such split; there are {found['splits']}"
    if (missing := _COLUMN.search(text)) is not None:
        return OptionsError, f"{asked} has no column {missing['name']!r}; its columns are {missing['found']}"
    if isinstance(error, TypeError) and "unexpected keyword argument" in text:
        return OptionsTypeError, f"{asked}: the format does not take such an argument: {text}; see config_kwargs"
    if "no longer supported" in text:
        return OptionsError, f"{asked} is a dataset script, and Dew runs no code of a dataset: {text}"
    if "BuilderConfig" in text or "Config name is missing" in text:
        return OptionsError, f"{asked}: {text}"
    if isinstance(error, FileNotFoundError) or "data file" in text:
        return SourceNotFoundError, f"nothing to read for {asked}: {text}{_beside(name, options)}"
    if isinstance(error, OSError):
        return StorageError, f"{asked} could not be reached: {text}"
    return SourceError, f"{asked} could not be read: {text}"


def _line(error: BaseException) -> str:
    """The error and what it follows from, in one line; the last of them names column and file."""
    texts: list[str] = []
    link: BaseException | None = error
    while link is not None and len(texts) < _CAUSES:
        text = " ".join(f"{type(link).__name__}: {link}".split())
        if not any(text in other for other in texts):
            texts.append(text)
        link = link.__cause__
    return " <- ".join(texts)


def _beside(name: str, options: HFOptions) -> str:
    """The local files beside one that is missing."""
    for path in [*_flat(options.data_files), name]:
        if "://" in path or Path(path).exists():
            continue
        folder = Path(os.path.expanduser(path)).parent
        if folder.is_dir() and folder != Path("."):
            found = sorted(entry.name for entry in folder.iterdir())
            more = f" and {len(found) - _SHOWN_FILES} more" if len(found) > _SHOWN_FILES else ""
            return f"; beside {Path(path).name!r} there is {', '.join(found[:_SHOWN_FILES]) or 'nothing'}{more}"
    return ""


def _flat(files: Any) -> Iterator[str]:
    if isinstance(files, str | os.PathLike):
        yield os.fspath(cast("str", files))
    elif isinstance(files, Mapping):
        for one in cast("Mapping[str, Any]", files).values():
            yield from _flat(one)
    elif files is not None:
        for one in files:
            yield from _flat(one)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in cast("Mapping[str, Any]", value).values():
            yield from _leaves(one)
    elif isinstance(value, list | tuple):
        for one in cast("list[Any]", value):
            yield from _leaves(one)
