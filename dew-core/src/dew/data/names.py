"""The public names of `dew.data`, and where each is defined; a name is imported when it is first used.

So `import dew.data` costs about a millisecond whatever a program goes on to use, and needs neither JAX, nor Grain, nor
a provider's package. `load` alone is not here: the function has its module's name, and is imported with the package.
"""

import importlib
from collections.abc import Mapping
from typing import Any, Final

OWN: Final[Mapping[str, tuple[str, ...]]] = {
    "dew.data.build": ("columns", "dataset_of", "from_records", "identity", "ramped"),
    "dew.data.cache": ("BlockCache",),
    "dew.data.conditioning": ("tokenized",),
    "dew.data.dataset": ("Batch", "DataPartition", "Dataset"),
    "dew.data.encoders": ("ConditionEncoder", "TokenizerEncoder"),
    "dew.data.errors": (
        "CollateError",
        "DamagedSourceError",
        "DewDataError",
        "DewWarning",
        "FieldError",
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
        "SourceError",
        "SourceNotFoundError",
        "SplitError",
        "StorageError",
        "StreamClosedError",
        "WorkerError",
    ),
    "dew.data.fields": ("check_batch", "segment_mask", "shift", "target_mask"),
    "dew.data.loading": ("Loading",),
    "dew.data.mixing": ("validation_sets",),
    "dew.data.position": ("RecordPosition", "ShardPosition", "rebatch", "skip"),
    "dew.data.recipe": ("Mixture",),
    "dew.data.registry": ("register", "unregister"),
    "dew.data.schedule": ("Ramp",),
    "dew.data.source": ("RecordSource",),
    "dew.data.stream": ("RecordStream", "train_stream", "validation_pass"),
}
"""Module of `dew.data` -> the public names that it defines."""

ELSEWHERE: Final[Mapping[str, tuple[str, str]]] = {
    "AudioOptions": ("dew_media", "dew-media"),
    "ByteTokenizer": ("dew.tokens", "dew-core"),
    "ChatMessages": ("dew.tokens", "dew-core"),
    "HFOptions": ("dew_hf", "dew-hf"),
    "ImageFolder": ("dew_media", "dew-media"),
    "ImageOptions": ("dew_media", "dew-media"),
    "ImageParquet": ("dew_media", "dew-media"),
    "ImageTar": ("dew_media", "dew-media"),
    "OxfordFlowers": ("dew_media", "dew-media"),
    "PackedDocuments": ("dew.tokens", "dew-core"),
    "PreferencePairs": ("dew.tokens", "dew-core"),
    "Prompts": ("dew.tokens", "dew-core"),
    "TFDSOptions": ("dew_tfds", "dew-tfds"),
    "TokenOptions": ("dew.tokens", "dew-core"),
    "TokenWindows": ("dew.tokens", "dew-core"),
    "VideoFolder": ("dew_media", "dew-media"),
    "VideoOptions": ("dew_media", "dew-media"),
}
"""Name that a provider's package defines -> that package, and the distribution that brings it."""

_MODULES: Final = {name: module for module, names in OWN.items() for name in names}


def resolve(name: str) -> Any:
    """The object that `dew.data` offers as `name`.

    Raises:
        AttributeError: there is none.
        ImportError: the package that defines it is absent. Not an AttributeError, which `from dew.data import name`
            would turn into "cannot import name" and so lose the advice.
    """
    if (module := _MODULES.get(name)) is not None:
        return getattr(importlib.import_module(module), name)
    if name not in ELSEWHERE:
        raise AttributeError(f"module 'dew.data' has no attribute {name!r}")
    package, distribution = ELSEWHERE[name]
    try:
        return getattr(importlib.import_module(package), name)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # the package is there, and something that it needs is not
        raise ImportError(
            f"dew.data.{name} needs the {distribution} package, which is not installed: pip install {distribution}",
            name=package,
        ) from error


def present() -> list[str]:
    """Every name that can be resolved here; imports none of them."""
    from importlib.util import find_spec

    elsewhere = [name for name, (package, _) in ELSEWHERE.items() if find_spec(package) is not None]
    return [*_MODULES, *elsewhere]
