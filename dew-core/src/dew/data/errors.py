"""Every exception that Dew raises on purpose, as one tree.

    DewDataError
    ├── OptionsError (ValueError)            an argument has a value that cannot be used
    ├── OptionsTypeError (TypeError)         an argument has a type that cannot be used
    ├── PartitionError (ValueError)          a batch does not divide into the shares asked for
    ├── CollateError (ValueError)            records do not fit into one batch
    ├── FieldError (ValueError)              a batch is not what an objective wants
    ├── SourceError (ValueError)             a source is empty, too small, or breaks the record contract
    │   ├── SourceNotFoundError (FileNotFoundError)   nothing is stored at the path
    │   └── DamagedSourceError               what is stored is cut, half-written or altered
    ├── SplitError (LookupError)             no split of that name
    ├── OverlapError (ValueError)            training and validation would share records
    ├── StorageError (OSError)               bytes could not be read, after retries
    │   └── StorageDeniedError (PermissionError)     the storage does not permit it
    ├── PositionError (ValueError)           a saved position cannot be read
    │   └── PositionMismatchError            a saved position belongs to other data or another order
    ├── CheckpointError (ValueError)         a checkpoint is damaged, lacks a part, or cannot be written
    │   └── CheckpointNotFoundError (FileNotFoundError)   there is no checkpoint, or none of that step
    ├── PoolError (RuntimeError)             another process of the pool failed or disagrees
    ├── StreamClosedError (ValueError)       an iterator was used after close()
    ├── StreamBusyError (RuntimeError)       an iterator was used by two threads at once
    ├── WorkerError (RuntimeError)           a worker process ended or could not start
    └── ProviderError                        a provider cannot be used
        ├── ProviderNotFoundError (LookupError)       no installed package provides the prefix
        ├── ProviderNotInstalledError (ImportError)   one of Dew's own packages is absent
        ├── ProviderConflictError (RuntimeError)      two distributions claim one prefix
        ├── ProviderImportError (ImportError)         the plugin failed to import
        └── ProviderVersionError (RuntimeError)       the plugin speaks another version of the interface

Each class is also the built-in that a caller would expect. A message says what was asked, what was found, and what to
do. Errors of user code (a source, `preprocess`) keep their own type and gain notes that name step, place, record and
source.
"""


class DewDataError(Exception):
    """Base of all errors that Dew raises on purpose."""


class OptionsError(DewDataError, ValueError):
    """An argument has a value that cannot be used."""


class OptionsTypeError(DewDataError, TypeError):
    """An argument has a type that cannot be used."""


class PartitionError(DewDataError, ValueError):
    """A global batch does not divide into the shares asked for."""


class CollateError(DewDataError, ValueError):
    """Records do not fit into one batch: fields, dtypes or shapes differ."""


class FieldError(DewDataError, ValueError):
    """A batch is not what an objective wants."""


class SourceError(DewDataError, ValueError):
    """A source is empty, too small, or breaks the record contract."""


class SourceNotFoundError(SourceError, FileNotFoundError):
    """Nothing is stored at the path."""


class DamagedSourceError(SourceError):
    """What is stored is cut, half-written, or altered since it was written."""


class SplitError(DewDataError, LookupError):
    """There is no split of that name."""


class OverlapError(DewDataError, ValueError):
    """Training and validation would share records."""


class StorageError(DewDataError, OSError):
    """Bytes could not be read, after retries."""


class StorageDeniedError(StorageError, PermissionError):
    """The storage does not permit it: a file's mode, a bucket's policy, missing or wrong credentials."""


class PositionError(DewDataError, ValueError):
    """A saved position cannot be read."""


class PositionMismatchError(PositionError):
    """A saved position belongs to other data, another order, or another batch.

    Attributes:
        part: the part of the position that differs, e.g. `"fingerprint"`.
        saved: its value in the saved position.
        current: its value in the stream that should continue.
    """

    def __init__(self, message: str, *, part: str, saved: object, current: object) -> None:
        super().__init__(message)
        self.part = part
        self.saved = saved
        self.current = current


class CheckpointError(DewDataError, ValueError):
    """A checkpoint is damaged, lacks a part, or cannot be written."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is no checkpoint, or none of that step."""


class PoolError(DewDataError, RuntimeError):
    """Another process of the pool failed, or disagrees with this one."""


class StreamClosedError(DewDataError, ValueError):
    """An iterator was used after `close()`."""


class StreamBusyError(DewDataError, RuntimeError):
    """An iterator was used by two threads at once."""


class WorkerError(DewDataError, RuntimeError):
    """A worker process ended or could not start."""


class ProviderError(DewDataError):
    """A provider cannot be used."""


class ProviderNotFoundError(ProviderError, LookupError):
    """No installed package provides the prefix."""


class ProviderNotInstalledError(ProviderError, ImportError):
    """One of Dew's own provider packages is absent."""


class ProviderConflictError(ProviderError, RuntimeError):
    """Two distributions claim one prefix."""


class ProviderImportError(ProviderError, ImportError):
    """A plugin failed to import."""


class ProviderVersionError(ProviderError, RuntimeError):
    """A plugin speaks another version of the provider interface."""


class DewWarning(UserWarning):
    """Something differs or was chosen that a user should know, but nothing is refused."""
