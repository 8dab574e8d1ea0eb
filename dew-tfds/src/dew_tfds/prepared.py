"""Finding a prepared dataset: from a path and a builder's name to the one directory of one version, and its metadata.

A directory's own metadata decides what it holds, whichever form the path has; names of directories only lead there.
Nothing is downloaded or prepared, and no builder's code is looked for.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import attrs

from dew.data.errors import DamagedSourceError, OptionsError, SourceError, SourceNotFoundError
from dew_tfds.options import TFDSOptions

INFO: Final = "dataset_info.json"
FEATURES: Final = "features.json"
FORMAT: Final = "array_record"

_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)", re.ASCII)
_NAME: Final = re.compile(r"(?P<builder>[\w-]+)(/(?P<config>[^:]+))?(:(?P<version>\d+\.\d+\.\d+))?", re.ASCII)
_OF_A_SPLIT: Final = ("name", "numBytes", "shardLengths")
_LISTED: Final = 8


@attrs.frozen(kw_only=True)
class Wanted:
    """Which prepared dataset is asked for; None asks for none in particular."""

    builder: str | None = None
    config: str | None = None
    version: str | None = None

    @classmethod
    def from_name(cls, name: str, options: TFDSOptions) -> "Wanted":
        """What `"tfds/<name>"` and the options say together; a name may be TFDS's own `builder/config:1.2.0`.

        Raises:
            OptionsError: the name is none, or the options contradict it.
        """
        parts = _NAME.fullmatch(name)
        if parts is None:
            raise OptionsError(
                f"'tfds/{name}' must name a builder, such as 'tfds/mnist' or 'tfds/glue/cola:2.0.0'; "
                "directories go into TFDSOptions(path=...)"
            )
        stated = {"config": options.config, "version": options.version}
        for part, value in stated.items():
            if None not in (parts[part], value) and parts[part] != value:
                raise OptionsError(
                    f"'tfds/{name}' names the {part} {parts[part]!r} and TFDSOptions({part}={value!r}) another; "
                    "name one of them"
                )
        return cls(
            builder=parts["builder"],
            config=parts["config"] or options.config,
            version=parts["version"] or options.version,
        )


@attrs.frozen(kw_only=True)
class Metadata:
    """What one prepared version says of itself.

    Args:
        directory: where it is.
        info: the parsed `dataset_info.json`.
        features: the parsed `features.json`.
    """

    directory: str
    info: Mapping[str, Any]
    features: Mapping[str, Any]

    @property
    def builder(self) -> str:
        """Name of the builder."""
        return str(self.info.get("name", ""))

    @property
    def config(self) -> str | None:
        """Name of the config; None for a builder without configs."""
        return self.info.get("configName") or None

    @property
    def version(self) -> str:
        """Such as `"1.2.0"`."""
        return str(self.info.get("version", ""))

    @property
    def full_name(self) -> str:
        """`builder/config/version`, as TFDS writes it."""
        return "/".join(filter(None, (self.builder, self.config, self.version)))

    @property
    def formats(self) -> list[str]:
        """File formats that it was prepared in, the main one first."""
        return [self.info.get("fileFormat") or "tfrecord", *self.info.get("alternativeFileFormats", [])]

    @property
    def digest(self) -> str:
        """Of what the records are: builder, config, version, features, and the splits' sizes and counts."""
        splits = [{key: split.get(key) for key in _OF_A_SPLIT} for split in self.info.get("splits", [])]
        facts = [self.builder, self.config, self.version, self.features, splits]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def check_format(self) -> None:
        """Refuses what was not prepared as ArrayRecord.

        Raises:
            SourceError: names the format, and the command that prepares the other.
        """
        if FORMAT not in self.formats:
            name = "/".join(filter(None, (self.builder, self.config)))
            raise SourceError(
                f"{self.full_name} in {self.directory} is prepared as {' and '.join(self.formats)}, whose records "
                f"cannot be read in any order; prepare it as ArrayRecord: tfds build {name} --file_format={FORMAT}"
            )


def find(path: str | None, wanted: Wanted) -> Metadata:
    """The metadata of the version that `wanted` asks for, in or below `path`.

    Args:
        path: a version's directory, a `data_dir` above it, or one between the two; None is TFDS's own default.
        wanted: a version that is not asked for is the newest by number.

    Raises:
        SourceNotFoundError: a level is missing; names it, and what is there instead.
        OptionsError: there are several configs, and none is asked for.
        SourceError: the metadata is that of another builder, config or version.
        DamagedSourceError: the metadata is missing or cannot be read.
    """
    root = _root(path)
    found = read_metadata(_version_directory(root, wanted))
    for part in ("builder", "config", "version"):
        asked, stated = getattr(wanted, part), getattr(found, part)
        if asked is not None and asked != stated:
            raise SourceError(
                f"{found.directory} holds {found.full_name}, whose {part} is {stated!r}, and the {part} {asked!r} was "
                "asked for; correct the path or what is asked for"
            )
    return found


def read_metadata(directory: Path) -> Metadata:
    """The metadata files of one version.

    Raises:
        DamagedSourceError: one is missing or is no JSON object.
    """
    parsed: list[Mapping[str, Any]] = []
    for name in (INFO, FEATURES):
        try:
            value = json.loads((directory / name).read_bytes())
        except FileNotFoundError as error:
            raise DamagedSourceError(
                f"{directory} has no {name}: its preparation or copy is unfinished; prepare it or copy it again"
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise DamagedSourceError(
                f"{directory / name} cannot be read: {error}; prepare it or copy it again"
            ) from error
        if not isinstance(value, dict):
            raise DamagedSourceError(f"{directory / name} holds no JSON object but a {type(value).__name__}")
        parsed.append(cast("Mapping[str, Any]", value))
    return Metadata(directory=str(directory), info=parsed[0], features=parsed[1])


def _root(path: str | None) -> Path:
    shown = path or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    if "://" in shown:
        raise OptionsError(
            f"TFDSOptions(path={shown!r}): TFDS data is read from a local or mounted directory; copy it, or mount the "
            "storage"
        )
    root = Path(shown).expanduser()
    if not root.is_dir():
        default = "" if path else "; TFDSOptions(path=...) says where it is"
        raise SourceNotFoundError(f"no TFDS data at {root}: there is no such directory{default}")
    return root.absolute()


def _version_directory(root: Path, wanted: Wanted) -> Path:
    """The directory of the version, by the names of the directories on the way there."""
    if (root / INFO).is_file():
        return root
    base = _config_directory(_builder_directory(root, wanted.builder), wanted.config)
    versions = _versions(base)
    if not versions:
        raise SourceNotFoundError(f"no prepared version in {base}; it holds {_listed(base)}")
    if wanted.version is None:
        return base / versions[-1]
    if wanted.version not in versions:
        raise SourceNotFoundError(f"no version {wanted.version} in {base}; there are {versions}")
    return base / wanted.version


def _builder_directory(root: Path, builder: str | None) -> Path:
    if builder is not None and (root / builder).is_dir():
        return root / builder
    if builder in (None, root.name) or _versions(root):
        return root
    raise SourceNotFoundError(f"no {builder!r} in {root}; it holds {_listed(root)}")


def _config_directory(base: Path, config: str | None) -> Path:
    configs = _configs(base)
    if config is not None:
        if config in configs:
            return base / config
        if configs:
            raise SourceNotFoundError(f"no config {config!r} in {base}; there are {configs}")
        return base
    if _versions(base) or not configs:
        return base
    if len(configs) > 1:
        raise OptionsError(f"{base} holds several, {configs}; name one as the config: TFDSOptions(config=...)")
    return base / configs[0]


def _versions(directory: Path) -> list[str]:
    """Names of the versions in a directory, oldest first; leftovers such as `1.0.0.incompleteXYZ` are none."""
    names = [entry.name for entry in _directories(directory) if _VERSION.fullmatch(entry.name)]
    return sorted(names, key=lambda name: [int(part) for part in name.split(".")])


def _configs(directory: Path) -> list[str]:
    """Names of the directories that hold versions."""
    found = [entry.name for entry in _directories(directory) if not entry.name.startswith(".")]
    return sorted(name for name in found if not _VERSION.fullmatch(name) and _versions(directory / name))


def _directories(directory: Path) -> list[Path]:
    return [entry for entry in directory.iterdir() if entry.is_dir()]


def _listed(directory: Path) -> str:
    names = sorted(entry.name for entry in directory.iterdir())
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{names[:_LISTED]}{more}" if names else "nothing"
