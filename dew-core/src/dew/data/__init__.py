"""Training data for JAX runs: one endless order, one integer position, any number of processes.

`load("prefix/name", batch=...)` makes a `Dataset` from an installed provider, `from_records` one from arrays in memory;
`Dataset.train(DataPartition(...))` is an iterator of batches. Names are imported on first use (`dew.data.names`), also
those that provider packages define (`TFDSOptions`, `TokenWindows`, ...).
"""

from typing import TYPE_CHECKING

from dew.data.load import load

__all__ = [
    "Batch",
    "BlockCache",
    "CollateError",
    "ConditionEncoder",
    "DamagedSourceError",
    "DataPartition",
    "Dataset",
    "DewDataError",
    "DewWarning",
    "FieldError",
    "Loading",
    "Mixture",
    "OptionsError",
    "OptionsTypeError",
    "OverlapError",
    "PartitionError",
    "PositionError",
    "PositionMismatchError",
    "ProviderConflictError",
    "ProviderError",
    "ProviderImportError",
    "ProviderNotFoundError",
    "ProviderNotInstalledError",
    "ProviderVersionError",
    "Ramp",
    "RecordPosition",
    "RecordSource",
    "RecordStream",
    "ShardPosition",
    "SourceError",
    "SourceNotFoundError",
    "SplitError",
    "StorageError",
    "StreamClosedError",
    "TokenizerEncoder",
    "WorkerError",
    "check_batch",
    "columns",
    "dataset_of",
    "from_records",
    "identity",
    "load",
    "ramped",
    "rebatch",
    "register",
    "segment_mask",
    "shift",
    "skip",
    "target_mask",
    "tokenized",
    "train_stream",
    "unregister",
    "validation_pass",
    "validation_sets",
]

if TYPE_CHECKING:
    from dew.data.build import columns, dataset_of, from_records, identity, ramped
    from dew.data.cache import BlockCache
    from dew.data.conditioning import tokenized
    from dew.data.dataset import Batch, DataPartition, Dataset
    from dew.data.encoders import ConditionEncoder, TokenizerEncoder
    from dew.data.errors import (
        CollateError,
        DamagedSourceError,
        DewDataError,
        DewWarning,
        FieldError,
        OptionsError,
        OptionsTypeError,
        OverlapError,
        PartitionError,
        PositionError,
        PositionMismatchError,
        ProviderConflictError,
        ProviderError,
        ProviderImportError,
        ProviderNotFoundError,
        ProviderNotInstalledError,
        ProviderVersionError,
        SourceError,
        SourceNotFoundError,
        SplitError,
        StorageError,
        StreamClosedError,
        WorkerError,
    )
    from dew.data.fields import check_batch, segment_mask, shift, target_mask
    from dew.data.loading import Loading
    from dew.data.mixing import validation_sets
    from dew.data.position import RecordPosition, ShardPosition, rebatch, skip
    from dew.data.recipe import Mixture
    from dew.data.registry import register, unregister
    from dew.data.schedule import Ramp
    from dew.data.source import RecordSource
    from dew.data.stream import RecordStream, train_stream, validation_pass
    from dew.tokens import ByteTokenizer as ByteTokenizer
    from dew.tokens import ChatMessages as ChatMessages
    from dew.tokens import PackedDocuments as PackedDocuments
    from dew.tokens import PreferencePairs as PreferencePairs
    from dew.tokens import Prompts as Prompts
    from dew.tokens import TokenOptions as TokenOptions
    from dew.tokens import TokenWindows as TokenWindows
    from dew_hf import HFOptions as HFOptions
    from dew_media import AudioOptions as AudioOptions
    from dew_media import ImageFolder as ImageFolder
    from dew_media import ImageOptions as ImageOptions
    from dew_media import ImageParquet as ImageParquet
    from dew_media import ImageTar as ImageTar
    from dew_media import OxfordFlowers as OxfordFlowers
    from dew_media import VideoFolder as VideoFolder
    from dew_media import VideoOptions as VideoOptions
    from dew_tfds import TFDSOptions as TFDSOptions
else:
    # Under `else`, or type checkers would accept every misspelt name. Names of provider packages are not in __all__, or
    # `from dew.data import *` would fail where a package is absent.
    from dew.data import names

    def __getattr__(name: str) -> object:
        value = names.resolve(name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *names.present()})
