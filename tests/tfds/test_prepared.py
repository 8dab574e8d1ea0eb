"""Finding the one directory that is asked for, by the metadata, and refusing every other."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dew.data import TFDSOptions, load
from dew.data.errors import DamagedSourceError, OptionsError, SourceError, SourceNotFoundError
from dew_tfds.prepared import Metadata, Wanted, find

Prepare = Callable[..., Path]


def found(path: Path | str | None, **wanted: Any) -> Path:
    return Path(find(None if path is None else str(path), Wanted(**wanted)).directory)


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory, prepare: Prepare) -> Path:
    """`numbers`, without configs, in three versions; beside them what interrupted preparations leave behind."""
    path = tmp_path_factory.mktemp("versions")
    for version in ("9.0.0", "10.0.0", "1.2.0"):
        prepare(path, "numbers", {"id": np.int64}, {"train": [{"id": 1}, {"id": 2}]}, version=version)
    base = path / "numbers"
    for left in ("11.0.0.incompleteABCDEF", "backup_of_1.0.0", "incomplete.FYDBNO_12.0.0"):
        shutil.copytree(base / "9.0.0", base / left)
    return path


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_every_level_leads_to_the_version(data_dir: Path, images: Path, level: int) -> None:
    path = data_dir.joinpath(*("dew_images", "small", "1.2.0")[:level])
    assert found(path, builder="dew_images", config="small") == images
    assert found(path, builder="dew_images", config="small", version="1.2.0") == images


def test_a_relative_path_and_a_home(data_dir: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"builder": "dew_images", "config": "small"}
    monkeypatch.chdir(data_dir)
    assert found("dew_images/small/1.2.0", **wanted) == found(".", **wanted) == images
    monkeypatch.setenv("HOME", str(data_dir))
    assert found("~/dew_images", **wanted) == images


def test_a_path_with_detours(data_dir: Path, images: Path) -> None:
    path = data_dir / "dew_images" / ".." / "dew_images" / "." / "small"
    dataset = load("tfds/dew_images", batch=4, options=TFDSOptions(path=f"{path}/"), preprocess=dict)
    assert dataset.records == 100
    assert found(f"{path}/", builder="dew_images").samefile(images)


def test_the_default_directory(data_dir: Path, images: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TFDS_DATA_DIR", str(data_dir))
    assert found(None, builder="dew_images", config="small") == images
    monkeypatch.delenv("TFDS_DATA_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    message = f"no TFDS data at {tmp_path}/tensorflow_datasets: there is no such directory; TFDSOptions(path=...) says"
    with pytest.raises(SourceNotFoundError, match=re.escape(message)):
        found(None, builder="dew_images")
    (tmp_path / "tensorflow_datasets").symlink_to(data_dir)
    default = found(None, builder="dew_images", config="small")
    assert default == tmp_path / "tensorflow_datasets" / "dew_images" / "small" / "1.2.0"


def test_the_newest_version_is_the_greatest_number(versions: Path) -> None:
    assert found(versions, builder="numbers") == versions / "numbers" / "10.0.0"
    assert found(versions / "numbers", builder="numbers").name == "10.0.0"
    assert found(versions, builder="numbers", version="9.0.0").name == "9.0.0"


def test_leftovers_are_ignored_and_versions_listed(versions: Path) -> None:
    message = f"no version 3.0.0 in {versions}/numbers; there are ['1.2.0', '9.0.0', '10.0.0']"
    with pytest.raises(SourceNotFoundError, match=re.escape(message)):
        found(versions, builder="numbers", version="3.0.0")


def test_a_newest_version_without_metadata_is_refused_and_not_passed_over(versions: Path, tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(versions, path)
    (path / "numbers" / "10.0.0" / "dataset_info.json").unlink()
    message = f"{path}/numbers/10.0.0 has no dataset_info.json: its preparation or copy is unfinished"
    with pytest.raises(DamagedSourceError, match=re.escape(message)):
        found(path, builder="numbers")
    assert found(path, builder="numbers", version="9.0.0").name == "9.0.0"


@pytest.mark.parametrize(
    ("wanted", "part"),
    [
        ({"builder": "other"}, "builder is 'dew_images', and the builder 'other'"),
        ({"config": "big"}, "config is 'small', and the config 'big'"),
        ({"version": "9.0.0"}, "version is '1.2.0', and the version '9.0.0'"),
    ],
)
def test_the_metadata_of_a_version_decides(images: Path, wanted: Any, part: str) -> None:
    message = f"{images} holds dew_images/small/1.2.0, whose {part} was asked for"
    with pytest.raises(SourceError, match=re.escape(message)):
        found(images, **({"builder": "dew_images"} | wanted))


def test_the_metadata_decides_below_names_that_lie(images: Path, tmp_path: Path) -> None:
    shutil.copytree(images, tmp_path / "dew_images" / "big" / "3.0.0")
    with pytest.raises(SourceError, match="whose config is 'small', and the config 'big' was asked for"):
        found(tmp_path, builder="dew_images", config="big")
    with pytest.raises(SourceError, match=re.escape("whose version is '1.2.0', and the version '3.0.0' was asked")):
        found(tmp_path, builder="dew_images", version="3.0.0")


def test_several_configs_are_listed(data_dir: Path) -> None:
    message = f"{data_dir}/dew_images holds several, ['big', 'small']; name one as the config"
    with pytest.raises(OptionsError, match=re.escape(message)):
        found(data_dir, builder="dew_images")
    with pytest.raises(SourceNotFoundError, match=re.escape("no config 'wee' in") + r".*\['big', 'small'\]"):
        found(data_dir, builder="dew_images", config="wee")


def test_the_only_config_needs_no_name(copied: Path) -> None:
    data = copied.parents[2]
    assert found(data, builder="dew_images") == copied


def test_a_config_of_a_builder_without_any(versions: Path) -> None:
    with pytest.raises(SourceError, match="whose config is None, and the config 'small' was asked for"):
        found(versions, builder="numbers", config="small")


def test_missing_levels_are_named(data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match=re.escape(f"no TFDS data at {tmp_path}/none: there is no such")):
        found(tmp_path / "none", builder="dew_images")
    with pytest.raises(SourceNotFoundError, match=re.escape(f"no 'mnist' in {data_dir}; it holds ['dew_images', ")):
        found(data_dir, builder="mnist")
    with pytest.raises(SourceNotFoundError, match=re.escape(f"no 'mnist' in {tmp_path}; it holds nothing")):
        found(tmp_path, builder="mnist")
    empty = tmp_path / "mnist"
    empty.mkdir()
    with pytest.raises(SourceNotFoundError, match=re.escape(f"no prepared version in {empty}; it holds nothing")):
        found(tmp_path, builder="mnist")
    for number in range(12):
        (empty / f"file{number:02}").touch()
    with pytest.raises(SourceNotFoundError, match=r"'file07'\] and 4 more"):
        found(tmp_path, builder="mnist")


@pytest.mark.parametrize("url", ["gs://bucket/data", "s3://bucket/data", "memory://data"])
def test_urls_are_refused(url: str) -> None:
    message = f"TFDSOptions(path='{url}'): TFDS data is read from a local or mounted directory; copy it, or mount"
    with pytest.raises(OptionsError, match=re.escape(message)):
        found(url, builder="x")


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
def test_metadata_that_is_missing_or_cut(copied: Path, name: str) -> None:
    whole = (copied / name).read_bytes()
    damages: list[tuple[bytes, str]] = [
        (whole[: len(whole) // 2], f"{copied / name} cannot be read: .*; prepare it or copy it again"),
        (b"", f"{copied / name} cannot be read"),
        (b"\xff" * 50, f"{copied / name} cannot be read"),
        (b"[1, 2]", f"{copied / name} holds no JSON object but a list"),
        (b"[" * 100_000, f"{copied / name} cannot be read"),
    ]
    for damage, message in damages:
        (copied / name).write_bytes(damage)
        with pytest.raises(DamagedSourceError, match=message):
            found(copied)
    (copied / name).unlink()
    if name == "features.json":
        with pytest.raises(DamagedSourceError, match=re.escape(f"{copied} has no features.json: its preparation")):
            found(copied)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("mnist", Wanted(builder="mnist")),
        ("mnist:3.0.1", Wanted(builder="mnist", version="3.0.1")),
        ("glue/cola", Wanted(builder="glue", config="cola")),
        ("glue/cola:2.0.0", Wanted(builder="glue", config="cola", version="2.0.0")),
        ("wiki/20230601.en:1.0.0", Wanted(builder="wiki", config="20230601.en", version="1.0.0")),
    ],
)
def test_names_are_those_of_tfds(name: str, wanted: Wanted) -> None:
    assert Wanted.from_name(name, TFDSOptions()) == wanted


def test_names_and_options_together() -> None:
    options = TFDSOptions(config="cola", version="2.0.0")
    assert Wanted.from_name("glue", options) == Wanted.from_name("glue/cola:2.0.0", options)
    with pytest.raises(OptionsError, match=re.escape("names the config 'sst2' and TFDSOptions(config='cola') another")):
        Wanted.from_name("glue/sst2", options)
    with pytest.raises(OptionsError, match=re.escape("names the version '1.0.0' and TFDSOptions(version='2.0.0')")):
        Wanted.from_name("glue:1.0.0", options)
    for name in ("", "/data/mnist", "mnist:1", "mnist:newest", "../mnist", "a b"):
        with pytest.raises(OptionsError, match="must name a builder, such as 'tfds/mnist'"):
            Wanted.from_name(name, TFDSOptions())


@pytest.mark.parametrize("stored", ["tfrecord", "parquet", "riegeli"])
def test_other_file_formats_are_refused_with_the_command_that_mends_it(copied: Path, stored: str) -> None:
    info = json.loads((copied / "dataset_info.json").read_text())
    (copied / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": stored}))
    message = (
        f"dew_images/small/1.2.0 in {copied} is prepared as {stored}, whose records cannot be read in any order; "
        "prepare it as ArrayRecord: tfds build dew_images/small --file_format=array_record"
    )
    with pytest.raises(SourceError, match=re.escape(message)):
        load("tfds/dew_images", batch=4, options=TFDSOptions(path=str(copied)), preprocess=dict)


def test_a_dataset_without_a_stated_format_is_tfrecord() -> None:
    info = {"name": "old", "version": "1.0.0"}
    with pytest.raises(SourceError, match=r"old/1\.0\.0 in /x is prepared as tfrecord, whose"):
        Metadata(directory="/x", info=info, features={}).check_format()


def test_really_parquet(tmp_path: Path, prepare: Prepare) -> None:
    """TFDS would read it and ignore the slice."""
    path = prepare(tmp_path, "rows", {"id": np.int64}, {"train": [{"id": n} for n in range(9)]}, file_format="parquet")
    with pytest.raises(SourceError, match="prepared as parquet, whose records cannot be read in any order"):
        load("tfds/rows", batch=2, split="train[2:6]", options=TFDSOptions(path=str(path)), preprocess=dict)


def test_array_record_as_another_of_its_formats(copied: Path) -> None:
    info = json.loads((copied / "dataset_info.json").read_text())
    info |= {"fileFormat": "tfrecord", "alternativeFileFormats": ["array_record"]}
    (copied / "dataset_info.json").write_text(json.dumps(info))
    dataset = load("tfds/dew_images", batch=4, options=TFDSOptions(path=str(copied)), preprocess=dict)
    assert dataset.records == 100
