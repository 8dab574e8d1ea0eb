"""A prepared dataset opened with tensorflow-datasets, from its metadata alone, and without TensorFlow.

What the metadata names is checked before tensorflow-datasets sees it: it would import whatever module a feature's class
name points to, and TensorFlow for features that need it. Features that are stored like one that does not (the frames of
a video, the samples of audio) are read as that one.
"""

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import attrs
import numpy as np

from dew.data.errors import DamagedSourceError, ProviderNotInstalledError, SourceError
from dew_tfds.prepared import FORMAT, Metadata

_OWN: Final = "tensorflow_datasets.core.features."
_VIDEO: Final = "video_feature.Video"
_AUDIO: Final = "audio_feature.Audio"
_CLASS_KEYS: Final = ("pythonClassName", "python_class_name", "type")
# Where `builder_from_metadata` takes features from; later versions may do so too, which the tests would tell.
_REWRITING: Final = ((4, 9, 10), (4, 10, 0))


@attrs.frozen(kw_only=True)
class Builder:
    """What is read of a prepared dataset.

    Args:
        metadata: its metadata files.
        features: the top-level feature, a `tfds.features.FeaturesDict`.
        splits: the `SplitDict`, whose keys may be split expressions.
        videos: paths of the fields, such as `"clip/frames"`, that were declared as videos.
    """

    metadata: Metadata
    features: Any
    splits: Any
    videos: frozenset[str]


def library() -> Any:
    """The package tensorflow_datasets.

    Raises:
        ProviderNotInstalledError: it is absent.
    """
    try:
        return importlib.import_module("tensorflow_datasets")
    except ModuleNotFoundError as error:
        if error.name != "tensorflow_datasets":
            raise
        raise ProviderNotInstalledError(
            "reading tfds/... needs tensorflow-datasets, which is not installed: pip install dew-tfds"
        ) from error


def open_builder(metadata: Metadata) -> Builder:
    """The dataset's features and splits.

    Raises:
        SourceError: it is not prepared as ArrayRecord, or has a feature that cannot be read without TensorFlow.
        DamagedSourceError: tensorflow-datasets cannot make sense of the metadata.
    """
    metadata.check_format()
    for refusal in refusals(metadata):
        raise SourceError(refusal)
    tfds = library()
    videos = frozenset(path for path, node in _nodes(metadata.features) if _is(_VIDEO, node))
    try:
        builder = _open(tfds, metadata)
        features, splits = builder.info.features, _splits(tfds, metadata, builder.info.splits)
    except SourceError:
        raise
    except Exception as error:
        raise DamagedSourceError(
            f"tensorflow-datasets {tfds.__version__} cannot open {metadata.full_name} in {metadata.directory}: "
            f"{type(error).__name__}: {error}; prepare it or copy it again"
        ) from error
    if not isinstance(features, tfds.features.FeaturesDict):
        raise SourceError(
            f"the records of {metadata.full_name} are no mapping of field names but a {type(features).__name__}, which "
            "has no place in a batch"
        )
    return Builder(metadata=metadata, features=features, splits=splits, videos=videos)


def refusals(metadata: Metadata) -> Iterator[str]:
    """Why features of the dataset cannot be read, one line each."""
    for features in (metadata.features, metadata.info.get("features")):
        for path, node in _nodes(features):
            field = f"field {path!r} of {metadata.full_name}" if path else f"the features of {metadata.full_name}"
            for name in _class_names(node):
                if (reason := _refusal(name, node)) is not None:
                    yield f"{field} {reason}"


def _refusal(name: str, node: Mapping[str, Any]) -> str | None:
    """What is wrong with a feature of the class `name`."""
    # Two parts are left: one of tensorflow-datasets' own modules of features, and a class in it.
    if not name.startswith(_OWN) or name.removeprefix(_OWN).count(".") != 1:
        return (
            f"is of the class {name}, which is none of tensorflow-datasets' own features; reading it would run that "
            "code: prepare the dataset with features of tensorflow-datasets"
        )
    if name.endswith((_VIDEO, _AUDIO)) and "type" in node:
        return "is described as an old release did it; prepare the dataset again, with tensorflow-datasets 4.9"
    if name.endswith(_AUDIO) and node.get("audio", {}).get("lazyDecode"):
        return (
            "holds encoded audio, which tensorflow-datasets decodes with TensorFlow alone; prepare it with "
            "Audio(lazy_decode=False)"
        )
    if (dtype := _unknown_dtype(node)) is not None:
        return f"has the dtype {dtype!r}, which NumPy does not know; prepare it with one of NumPy's"
    return None


def _open(tfds: Any, metadata: Metadata) -> Any:
    """The read-only builder; its features are rewritten where they need TensorFlow."""
    rewritten = _rewritten(metadata.features)
    if rewritten == metadata.features:
        return tfds.builder_from_directory(metadata.directory)
    version = tuple(int(part) for part in re.findall(r"\d+", tfds.__version__)[:3])
    if not _REWRITING[0] <= version < _REWRITING[1]:
        raise SourceError(
            f"videos and audio of {metadata.full_name} are read with tensorflow-datasets "
            f"{'.'.join(map(str, _REWRITING[0]))} or later, below {'.'.join(map(str, _REWRITING[1]))}; "
            f"{tfds.__version__} is installed"
        )
    info: Any = importlib.import_module("tensorflow_datasets.core.dataset_info")
    read_only: Any = importlib.import_module("tensorflow_datasets.core.read_only_builder")
    proto = info.read_proto_from_builder_dir(metadata.directory)
    proto.features.CopyFrom(tfds.features.FeatureConnector.from_json(rewritten).to_proto())
    return read_only.builder_from_metadata(metadata.directory, proto)


def _splits(tfds: Any, metadata: Metadata, splits: Any) -> Any:
    """The splits with the names of ArrayRecord files, where those are not the main ones."""
    if metadata.formats[0] == FORMAT:
        return splits
    renamed: list[Any] = []
    for split in splits.values():
        template = split.filename_template.replace(filetype_suffix=FORMAT)
        renamed.append(split.replace(filename_template=template))
    return tfds.core.SplitDict(renamed)


def _rewritten(node: Any) -> Any:
    """`features.json` with the videos as sequences of images, and the audio as tensors of samples."""
    if not isinstance(node, dict):
        return node
    fields = cast("dict[str, Any]", node)
    if _is(_VIDEO, fields):
        return _frames(fields.get("video", {}))
    if _is(_AUDIO, fields):
        return _samples(fields.get("audio", {}))
    return {key: _rewritten(value) for key, value in fields.items()}


def _frames(video: Mapping[str, Any]) -> dict[str, Any]:
    count, *frame = video.get("shape", {}).get("dimensions", ["-1", "-1", "-1", "3"])
    image = {
        "shape": {"dimensions": frame},
        "dtype": video.get("dtype", "uint8"),
        "encodingFormat": video.get("encodingFormat", ""),
    }
    feature = {"pythonClassName": f"{_OWN}image_feature.Image", "image": image}
    return {
        "pythonClassName": f"{_OWN}sequence_feature.Sequence",
        "sequence": {"feature": feature, "length": count},
    }


def _samples(audio: Mapping[str, Any]) -> dict[str, Any]:
    tensor = {
        "shape": audio.get("shape", {"dimensions": ["-1"]}),
        "dtype": audio.get("dtype", "int64"),
        "encoding": audio.get("encoding", "none").lower(),
    }
    return {"pythonClassName": f"{_OWN}tensor_feature.Tensor", "tensor": tensor}


def _nodes(node: Any, path: str = "", of_fields: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of `features.json`, with the path of the field that it belongs to.

    `of_fields`: the keys of this object are names of fields.
    """
    if isinstance(node, list):
        for value in cast("list[Any]", node):
            yield from _nodes(value, path)
    if not isinstance(node, dict):
        return
    fields = cast("dict[str, Any]", node)
    yield path, fields
    for key, value in fields.items():
        if key == "json" and isinstance(value, str):
            yield from _nodes(_parsed(value), path)
        else:
            inner = f"{path}/{key}" if of_fields and path else key if of_fields else path
            yield from _nodes(value, inner, of_fields=key == "features" and not of_fields)


def _parsed(text: str) -> Any:
    """A description that is itself JSON text; tensorflow-datasets refuses one that is not."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _class_names(node: Mapping[str, Any]) -> list[str]:
    """What tensorflow-datasets would take for the Python class of a feature, in the spellings that it knows."""
    return [name for key in _CLASS_KEYS if isinstance(name := node.get(key), str)]


def _is(ending: str, node: Mapping[str, Any]) -> bool:
    return any(name.endswith(ending) for name in _class_names(node))


def _unknown_dtype(node: Mapping[str, Any]) -> str | None:
    """A dtype, in a feature's own description, that only TensorFlow would understand."""
    for value in node.values():
        dtype = cast("dict[str, Any]", value).get("dtype") if isinstance(value, dict) else None
        if isinstance(dtype, str) and dtype != "string":
            try:
                np.dtype(dtype)
            except TypeError:
                return dtype
    return None
