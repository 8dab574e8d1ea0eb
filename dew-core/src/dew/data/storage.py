"""Where bytes come from and go to: a local directory, or any storage that fsspec knows, behind one small interface.

Every source reads through `Storage`, so that exact ranges, retries and messages are the same everywhere. `_Local`,
`_Remote` and `_Web` try once and let errors pass as they are; `Storage` checks names, tries again, and explains.
"""

import errno
import os
import pathlib
import random
import re
import stat
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast
from urllib import parse

import attrs
import numpy as np

from dew.data import cache as caching
from dew.data import checks, errors

_FIRST_DELAY = 0.5  # seconds before the second try; doubles from try to try
_LONGEST_DELAY = 8.0
_JITTER = random.SystemRandom()  # without a state: a retry must not move anybody's draws
_TEMPORARY = ".dew-tmp-"
_LOCAL_URL = re.compile("(file|local)://")
_VERSIONS = ("ETag", "etag", "generation", "md5Hash", "LastModified", "last_modified", "mtime", "created")
_TRANSIENT_STATUS = (408, 425, 429)  # and every 5xx
_TRANSIENT_ERRNO = (errno.EAGAIN, errno.EBUSY, errno.EIO, errno.ESTALE, errno.ENETUNREACH, errno.EHOSTUNREACH)
# By name, since core imports none of the client libraries: aiohttp, botocore, requests, urllib3, azure.
_TRANSIENT_TYPE = re.compile(
    "TimeoutError|Timeout|(Client)?ConnectionError|ClientPayloadError|HTTPClientError|ChunkedEncodingError|ProtocolError|"
    "IncompleteRead|Service(Request|Response)Error"
)

_T = TypeVar("_T")
_Files: TypeAlias = "_Local | _Remote"
_Span: TypeAlias = tuple[int, int]


class _Stat(NamedTuple):
    size: int | None  # None where a server does not tell
    directory: bool
    version: str = ""  # tells one state of a remote file from another, where the storage has such a thing


def _as_url(url: "str | os.PathLike[str]") -> str:
    if not os.fspath(url):
        raise errors.OptionsError("a storage's url must name a directory, got ''; '.' is the working directory")
    return os.fspath(url)


def _shown(url: str) -> str:
    """`url` without user, password and query, which may be a signature."""
    if "://" not in url:
        return url
    bare, mark, _ = url.partition("?")
    return re.sub(r"(?<=://)[^/?#]*@", "***@", bare) + (mark and "?***")


@attrs.frozen
class Storage:
    """A directory of files, local or remote. It opens nothing until asked for something, and threads may share it.

    Names are relative to the directory, with '/' between their parts; they never leave it.

    Args:
        url: a local path, or a URL of fsspec. A path after `file://` is taken as it stands.
        options: fsspec's storage options (keys, tokens, endpoints); never shown.
        retries: how often an operation is tried again after a timeout, a dropped connection or a 5xx reply.
        cache: where blocks of remote files are kept on a local disk; local files are never copied.

    Every method raises:
        OptionsError: a name is absolute, holds '..', or is empty where a file is needed.
        SourceNotFoundError: nothing is stored there.
        StorageDeniedError: the storage does not permit it.
        StorageError: it failed, after all tries where trying again could help.
    """

    url: str = attrs.field(converter=_as_url, repr=lambda url: repr(_shown(url)))
    options: Mapping[str, Any] = attrs.field(factory=dict[str, Any], repr=False, hash=False, kw_only=True)
    retries: int = attrs.field(default=4, validator=checks.count(0), kw_only=True)
    cache: caching.BlockCache | None = attrs.field(default=None, repr=False, kw_only=True)

    @property
    def local(self) -> bool:
        """Whether the files can be opened by path."""
        return "://" not in self.url or _LOCAL_URL.match(self.url) is not None

    def path(self, name: str = "") -> pathlib.Path | None:
        """The local path of `name`, None where the storage is remote."""
        return self._root() / self._checked(name) if self.local else None

    def location(self, name: str = "") -> str:
        """Where `name` is, for a message: a whole path, or a URL without user, password and query."""
        return str((self._root() / name).absolute()) if self.local else _join(_shown(self.url), name)

    def exists(self, name: str) -> bool:
        """Whether a file or directory of that name is stored."""
        return self._found(name) is not None

    def is_dir(self, name: str) -> bool:
        """Whether `name` is a directory; on object stores and web servers, whether anything is found below it."""
        found = self._found(name)
        return found is not None and found.directory

    def size(self, name: str) -> int:
        """Bytes of the file `name`."""
        name = self._checked(name, file=True)
        found = self._try("measured", name, _measured)
        self._note(name, found)
        return cast("int", found.size)

    def list(self, name: str = "") -> list[str]:
        """Names of what is directly inside a directory, sorted by code points; unfinished writes are left out."""
        names = self._try("listed", self._checked(name), lambda files, name: set(files.names(name)))
        return sorted(name for name in names if name and not name.startswith(_TEMPORARY))

    def read(self, name: str) -> bytes:
        """The whole file."""
        name = self._checked(name, file=True)
        if self.cache is not None and not self.local:
            # Asked for anew each time: manifests and positions must not be older than what is stored.
            found = self._try("read", name, lambda files, name: files.stat(name))
            file = self._note(name, found)
            if file is not None and found.version and file.size and not found.directory:
                return self._cached(self.cache, file, name, (0, file.size))
        return self._try("read", name, lambda files, name: files.fetch(name))

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Exactly bytes `[start, stop)`, in one request and with nothing read ahead; an empty range asks for nothing.

        Raises:
            DamagedSourceError: the file ends before `stop`.
        """
        start = checks.check_count("start", int(start) if isinstance(start, np.integer) else start, 0)
        stop = checks.check_count("stop", int(stop) if isinstance(stop, np.integer) else stop, start)
        name = self._checked(name, file=True)
        if start == stop:
            return b""
        if self.cache is not None and not self.local:
            file = self.cache.known(self._place(name))
            if file is None:
                file = self._note(name, self._try("read", name, lambda files, name: files.stat(name)))
            if file is not None and stop <= file.size:
                return self._cached(self.cache, file, name, (start, stop))
        return self._fetched(name, (start, stop))

    def write(self, name: str, data: bytes) -> None:
        """Stores `data` as `name`, all or nothing; directories on the way are made.

        A local file is on disk when this returns. A remote one is sent in one put, as atomic as the storage makes that.
        """
        name = self._checked(name, file=True)
        self._try("written", name, lambda files, name: files.put(name, data))
        if self.cache is not None:
            self.cache.note(self._place(name), None, "")  # what was known of it is out of date

    def unfinished(self, name: str) -> pathlib.Path:
        """A new local path to write at what is too large to hold, for `adopt` to store; `list` leaves it out."""
        return self._try("written", self._checked(name, file=True), lambda files, name: files.unfinished(name))

    def adopt(self, name: str, path: pathlib.Path) -> None:
        """Stores what was written at `unfinished(name)` as `name`, all or nothing, and removes it there."""
        self._try("written", self._checked(name, file=True), lambda files, name: files.adopt(name, path))

    def child(self, name: str) -> "Storage":
        """The directory `name` as a storage of its own, with the same options."""
        name = self._checked(name)
        if not name:
            return self
        return attrs.evolve(self, url=str(self._root() / name) if self.local else _join(self.url, name))

    def _root(self) -> pathlib.Path:
        return pathlib.Path(_LOCAL_URL.sub("", self.url, count=1))

    def _files(self) -> _Files:
        if self.local:
            return _Local(self._root())
        return (_Web if self.url.startswith(("http://", "https://")) else _Remote)(self.url, self.options)

    def _checked(self, name: str, *, file: bool = False) -> str:
        parts = name.split("/")
        if name.startswith("/") or ".." in parts or "\0" in name:
            raise errors.OptionsError(f"name {name!r} leads out of {self.location()}; use a relative name without '..'")
        if "::" in name and not self.local:
            raise errors.OptionsError(f"name {name!r} cannot be used in {self.location()}: to fsspec '::' chains URLs")
        plain = "/".join(part for part in parts if part not in ("", "."))
        if file and not plain:
            raise errors.OptionsError(f"a file in {self.location()} was asked for, got the name {name!r}")
        return plain

    def _found(self, name: str) -> _Stat | None:
        try:
            return self._try("looked up", self._checked(name), lambda files, name: files.stat(name))
        except errors.SourceNotFoundError:
            return None

    def _place(self, name: str) -> str:
        return caching.place_of(_join(self.url, name), self.options)

    def _note(self, name: str, found: _Stat) -> caching.CachedFile | None:
        if self.cache is None or self.local:
            return None
        return self.cache.note(self._place(name), found.size, found.version)

    def _cached(self, cache: caching.BlockCache, file: caching.CachedFile, name: str, span: _Span) -> bytes:
        return cache.read(file, *span, lambda start, stop: self._fetched(name, (start, stop)))

    def _fetched(self, name: str, span: _Span) -> bytes:
        return self._try("read", name, lambda files, name: self._range(files, name, span))

    def _range(self, files: _Files, name: str, span: _Span) -> bytes:
        data, asked = files.fetch(name, span), span[1] - span[0]
        if len(data) > asked:
            raise _ranges_ignored(span, len(data))
        if len(data) < asked:
            size = cast("int", _measured(files, name).size)
            if size >= span[1]:
                raise ConnectionError(f"{len(data)} of {asked} bytes arrived")
            raise errors.DamagedSourceError(
                f"{self.location(name)} is cut: {asked} bytes, {span[0]} to {span[1]}, were asked for and "
                f"{max(0, size - span[0])} of them found, since it holds {size} bytes; copy or write it again"
            )
        return data

    def _try(self, done: str, name: str, call: Callable[[_Files, str], _T]) -> _T:
        tries, error = 0, None
        while error is None or (tries <= self.retries and _is_transient(error)):
            if tries:
                time.sleep(min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** min(tries - 1, 30)) * _JITTER.uniform(0.5, 1))
            tries += 1
            try:
                return call(self._files(), name)
            except (errors.DewDataError, MemoryError):
                raise
            except Exception as failure:
                error = failure
        try:
            # Raised outside the handler: the refusal has no context but its cause, which shows no credentials.
            raise self._refusal(done, name, error, tries) from self._presentable(error)
        finally:
            del error

    def _refusal(self, done: str, name: str, error: Exception, tries: int) -> errors.DewDataError:
        where, status, text = self.location(name), _status(error), self._hidden(f"{type(error).__name__}: {error}")
        if _is_transient(error):
            return errors.StorageError(
                f"{where} could not be {done} in {tries} tries, the last ended with {text}; "
                f"check the connection and the server, or raise retries (now {self.retries})"
            )
        if status in (401, 403) or isinstance(error, PermissionError):
            return errors.StorageDeniedError(f"{where} may not be {done}: {text}; check permissions and credentials")
        if status in (404, 410) or isinstance(error, FileNotFoundError):
            return errors.SourceNotFoundError(f"nothing is stored at {where}; check the path")
        if isinstance(error, NotADirectoryError):
            return errors.SourceNotFoundError(f"there is no directory at {where}: it, or a part of its path, is a file")
        if isinstance(error, IsADirectoryError):
            return errors.SourceError(f"{where} is a directory, and a file was asked for; name a file inside it")
        return errors.StorageError(f"{where} could not be {done}: {text}")

    def _presentable(self, error: Exception) -> Exception:
        """`error`, or its bare text where it, or one that it follows from, shows credentials."""
        text = "".join(traceback.format_exception(error)) + repr(error)
        return error if self._hidden(text) == text else OSError(self._hidden(f"{type(error).__name__}: {error}"))

    def _hidden(self, text: str) -> str:
        for secret in sorted(_leaves(self.options), key=len, reverse=True):
            text = text.replace(secret, "***")
        text = re.sub(r"(?<=://)[^/?#\s'\"]*@", "***@", text)
        return re.sub(r"(://[^\s'\"?]*)\?[^\s'\"]+", r"\1?***", text)


@attrs.frozen
class _Local:
    root: pathlib.Path

    def stat(self, name: str) -> _Stat:
        found = os.stat(self.root / name)
        return _Stat(found.st_size, stat.S_ISDIR(found.st_mode))

    def names(self, name: str) -> Iterable[str]:
        return os.listdir(self.root / name)

    def fetch(self, name: str, span: _Span | None = None) -> bytes:
        with open(self.root / name, "rb") as file:
            if span is None:
                return file.read()
            file.seek(span[0])
            # Never more than there is: the room is taken before the bytes are read.
            return file.read(max(0, min(span[1], os.fstat(file.fileno()).st_size) - span[0]))

    def put(self, name: str, data: bytes) -> None:
        temporary = self.unfinished(name)
        try:
            with open(temporary, "xb") as file:
                file.write(data)
            self.adopt(name, temporary)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def unfinished(self, name: str) -> pathlib.Path:
        path = self.root / name
        missing = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in {folder.parent for folder in missing}:
            _sync(folder)
        return path.with_name(_TEMPORARY + os.urandom(8).hex())

    def adopt(self, name: str, path: pathlib.Path) -> None:
        _sync(path)
        os.replace(path, self.root / name)
        _sync((self.root / name).parent)


@attrs.frozen
class _Remote:
    url: str
    options: Mapping[str, Any]

    def at(self, name: str) -> tuple[Any, str]:
        # fsspec keeps one instance per process (and per thread where it must), so this is cheap and survives a fork.
        from fsspec import core  # pyright: ignore[reportMissingTypeStubs]

        return cast("Any", core).url_to_fs(_join(self.url, name), **self.options)

    def stat(self, name: str) -> _Stat:
        files, path = self.at(name)
        files.invalidate_cache(path)  # an old listing would hide what another process wrote
        info = files.info(path)
        return _Stat(info["size"], info["type"] == "directory", _version(info))

    def names(self, name: str) -> Iterable[str]:
        files, path = self.at(name)
        files.invalidate_cache(path)
        found = files.ls(path, detail=False)
        if found == [path]:
            raise NotADirectoryError(name)
        return [entry.rstrip("/").rpartition("/")[2] for entry in found if entry.rstrip("/") != path.rstrip("/")]

    def fetch(self, name: str, span: _Span | None = None) -> bytes:
        files, path = self.at(name)
        start, stop = span or (None, None)
        try:
            return files.cat_file(path, start=start, end=stop, **self.request(files, span))
        except Exception as error:
            if _status(error) == 416:  # the range begins past the end
                return b""
            raise

    def put(self, name: str, data: bytes) -> None:
        files, path = self.at(name)
        files.pipe_file(path, data, **self.request(files))

    def unfinished(self, name: str) -> pathlib.Path:
        return pathlib.Path(tempfile.gettempdir(), _TEMPORARY + os.urandom(8).hex())

    def adopt(self, name: str, path: pathlib.Path) -> None:
        files, target = self.at(name)
        files.put_file(str(path), target, **self.request(files))
        path.unlink()

    def request(self, files: Any, span: _Span | None = None) -> dict[str, Any]:
        """Further arguments of one request."""
        return {}


class _Web(_Remote):
    """Plain web servers: a directory is a page of links, and a server may ignore ranges."""

    def stat(self, name: str) -> _Stat:
        files, path = self.at(name)
        info = files.info(path)
        directory = info.get("mimetype") == "text/html" and files.isdir(_folder(path))
        return _Stat(info["size"], directory, _version(info))

    def names(self, name: str) -> Iterable[str]:
        files, path = self.at(name)
        folder = _folder(path)
        prefix = re.sub("^https?", "", folder).rstrip("/") + "/"  # a link may differ from its page in the "s" alone
        links = [re.sub("^https?", "", link) for link in files.ls(folder, detail=False)]
        below = [re.split("[?#]", link.removeprefix(prefix))[0] for link in links if link.startswith(prefix)]
        return [parse.unquote(name) for name in (link.rstrip("/") for link in below) if "/" not in name]

    def request(self, files: Any, span: _Span | None = None) -> dict[str, Any]:
        async def check(reply: Any) -> None:
            # Before the body arrives: it would be the whole file, and pass for the range where it is as long.
            if span and reply.status == 200 and (span[0] > 0 or (reply.content_length or 0) > span[1]):
                reply.close()
                raise _ranges_ignored(span, reply.content_length)

        headers = {**files.kwargs.get("headers", {}), "Accept-Encoding": "identity"}  # the bytes as they are stored
        return {**files.kwargs, "headers": headers, "raise_for_status": check}


def _measured(files: _Files, name: str) -> _Stat:
    found = files.stat(name)
    if found.directory:
        raise IsADirectoryError(name)
    if found.size is None:
        raise OSError("the server does not tell its size")
    return found


def _version(info: Mapping[str, Any]) -> str:
    return next((f"{key}={info[key]}" for key in _VERSIONS if info.get(key) is not None), "")


def _sync(path: pathlib.Path) -> None:
    """Puts a file, or a directory's own entries, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _join(url: str, name: str) -> str:
    """The URL of `name` below `url`: before the query of a web address, in the first part of a chain."""
    scheme, _, rest = url.partition("://")
    path, chain, further = rest.partition("::")
    mark, query = "", ""
    if scheme.endswith(("http", "https")):
        path, mark, query = path.partition("?")
        name = parse.quote(name)
    path = f"{path.rstrip('/')}/{name}" if path and name else path or name
    return f"{scheme}://{path}{mark}{query}{chain}{further}"


def _folder(path: str) -> str:
    bare, mark, query = path.partition("?")
    return f"{bare.rstrip('/')}/{mark}{query}"


def _ranges_ignored(span: _Span, found: int | None) -> OSError:
    return OSError(
        f"it ignores byte ranges: bytes {span[0]} to {span[1]} were asked for, and {found} bytes came; "
        "use a server that answers ranges, or copy the files to a local directory"
    )


def _leaves(value: Any) -> Iterator[str]:
    """The strings in storage options; hiding those of under 4 letters would blot out ordinary words."""
    if isinstance(value, str) and len(value) >= 4:
        yield value
    elif isinstance(value, Mapping | list | tuple):
        items = cast("Iterable[Any]", value.values() if isinstance(value, Mapping) else value)
        for item in items:
            yield from _leaves(item)


def _causes(error: BaseException | None) -> Iterator[Any]:
    while error is not None:
        yield error
        error = error.__cause__


def _status(error: Exception) -> int | None:
    """The HTTP status that an error, or one that it follows from, carries under the names that client libraries use."""
    for link in _causes(error):
        reply: Any = getattr(link, "response", None)
        if isinstance(reply, Mapping):  # botocore
            return cast("Any", reply).get("ResponseMetadata", {}).get("HTTPStatusCode")
        for holder, key in ((link, "status"), (reply, "status_code"), (link, "status_code"), (link, "code")):
            status = getattr(holder, key, None)
            if isinstance(status, int) and 400 <= status < 600:
                return status
    return None


def _is_transient(error: Exception) -> bool:
    """Whether trying again could help, by type, then by status, then by errno, over all that the error follows from.

    fsspec calls even a 503 a missing file, aiohttp gives a dropped body the status 400, s3fs a refusal the errno EIO.
    """
    if any(_TRANSIENT_TYPE.fullmatch(kind.__name__) for link in _causes(error) for kind in type(link).__mro__):
        return True
    status = _status(error)
    if status is not None:
        return status >= 500 or status in _TRANSIENT_STATUS
    return any(getattr(link, "errno", None) in _TRANSIENT_ERRNO for link in _causes(error))
