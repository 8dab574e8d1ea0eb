"""What is refused by looking at the arguments, and what the library's own errors become."""

import re
from pathlib import Path
from typing import Any

import datasets
import pytest

from dew.data import (
    HFOptions,
    OptionsError,
    OptionsTypeError,
    ProviderError,
    SourceError,
    SourceNotFoundError,
    identity,
    load,
)


def attempt(files: Any, **more: Any) -> Any:
    return load(files.source, **{"batch": 4, "options": files.options(), "preprocess": identity, **more})


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ({"shuffle_buffer": 10}, {}, "shuffle_buffer=10 belongs to streaming=True"),
        ({}, {"position": "records"}, "position='records' belongs to streaming=True"),
        ({"streaming": True}, {"lanes": 4}, 'lanes=4 belongs to position="records"'),
        (
            {"streaming": True, "shuffle_buffer": 5},
            {"position": "records"},
            "shuffle_buffer=5 and position='records' exclude each other",
        ),
        ({"streaming": True}, {"position": "records", "lanes": 2}, "lanes=2 are row groups of parquet"),
    ],
)
def test_arguments_that_contradict_each_other(arguments: Any, options: Any, message: str, all_kinds: Any) -> None:
    files = all_kinds["json"]
    with pytest.raises(OptionsError, match=re.escape(message)):
        attempt(files, options=files.options(**options), **arguments)


def test_options_of_tfds_are_refused_with_both_classes() -> None:
    pytest.importorskip("dew_tfds")
    from dew.data import TFDSOptions

    with pytest.raises(TypeError, match=r"class HFOptions \(dew_hf.options\), got an instance of TFDSOptions"):
        load("hf/x", batch=4, options=TFDSOptions(path="/data"))


def test_how_to_open_is_refused_beside_what_is_open() -> None:
    given = datasets.Dataset.from_dict({"id": list(range(9))})
    with pytest.raises(OptionsError, match="dataset is open already, and HFOptions has config, revision"):
        load("hf/x", batch=4, dataset=given, options=HFOptions(config="a", revision="b"), preprocess=identity)
    with pytest.raises(OptionsError, match=r"shuffle_buffer=7 was given with a Dataset"):
        load("hf/x", batch=4, dataset=given, shuffle_buffer=7, preprocess=identity)


@pytest.mark.parametrize("streaming", [False, True])
def test_unknown_columns_are_named_beside_those_there_are(streaming: bool, all_kinds: Any) -> None:
    files = all_kinds["parquet"]
    options = files.options(config_kwargs={"columns": ["id", "txt"]})
    with pytest.raises(OptionsError, match=r"txt.*(?s:.*)id"):
        attempt(files, options=options, streaming=streaming)


@pytest.mark.parametrize("streaming", [False, True])
def test_arguments_that_the_format_does_not_take(streaming: bool, all_kinds: Any) -> None:
    files = all_kinds["parquet"]
    with pytest.raises(OptionsTypeError, match="unexpected keyword argument 'colums'"):
        attempt(files, options=files.options(config_kwargs={"colums": ["id"]}), streaming=streaming)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: HFOptions(config_kwargs={"trust_remote_code": True}), OptionsError, "never runs code"),
        (lambda: HFOptions(config_kwargs={"revision": "x"}), OptionsError, r"config_kwargs has \['revision'\]"),
        (lambda: HFOptions(config_kwargs=[1]), OptionsTypeError, "mapping of a format's own arguments"),  # type: ignore[arg-type]
        (lambda: HFOptions(position="shard"), OptionsError, 'position must be "records" or None'),  # type: ignore[arg-type]
        (lambda: HFOptions(lanes=0), OptionsError, "lanes must be at least 1"),
        (lambda: HFOptions(background=(1, 2)), OptionsError, "background is"),  # type: ignore[arg-type]
        (lambda: HFOptions(storage_options="key"), OptionsTypeError, "storage_options is a mapping"),  # type: ignore[arg-type]
    ],
)
def test_options_that_cannot_be_used(make: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()


def test_secrets_are_not_shown() -> None:
    options = HFOptions(token="hf_secret", storage_options={"key": "AKIASECRET"}, config_kwargs={"a": "b"})
    assert "hf_secret" not in repr(options)
    assert "AKIASECRET" not in repr(options)


def test_secrets_are_cut_out_of_the_librarys_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise OSError(f"GET https://user:pw@host/x?sig=1 with {named['token']} and {named['storage_options']} refused")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    options = HFOptions(token="hf_secret", storage_options={"key": "AKIASECRET"})
    with pytest.raises(OSError, match="could not be reached") as caught:
        load("hf/x", batch=4, options=options, preprocess=identity)
    shown = f"{caught.value} {caught.value.__cause__!r} {caught.value.__context__!r}"
    for secret in ("hf_secret", "AKIASECRET", "user:pw", "sig=1"):
        assert secret not in shown


@pytest.mark.parametrize(
    ("attribute", "what"),
    [
        ("_indices", "which rows a shuffled or selected table holds"),
        ("_distributed", "whether a stream was split already"),
    ],
)
def test_a_release_that_hides_what_must_be_known_is_refused(attribute: str, what: str) -> None:
    given: Any = datasets.Dataset.from_dict({"id": list(range(9))})
    if attribute == "_distributed":
        given = given.to_iterable_dataset()
    delattr(given, attribute)
    with pytest.raises(ProviderError, match=rf"datasets \d.* does not tell {what}: its \w+ has no {attribute}"):
        load("hf/x", batch=4, dataset=given, preprocess=identity, streaming=attribute == "_distributed")


# Offline


@pytest.mark.parametrize("streaming", [False, True])
def test_a_dataset_that_is_not_here_is_one_line(streaming: bool) -> None:
    with pytest.raises(OSError, match=r"'hf/nobody/nothing'.*nobody/nothing") as caught:
        load("hf/nobody/nothing", batch=4, streaming=streaming, preprocess=identity)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_missing_file_lists_its_neighbours(streaming: bool, all_kinds: Any) -> None:
    files = all_kinds["json"]
    missing = str(Path(files.paths[0]).with_name("part-9.jsonl"))
    with pytest.raises(SourceNotFoundError, match=r"beside 'part-9.jsonl' there is part-0.jsonl, part-1.jsonl"):
        attempt(files, options=HFOptions(data_files=missing), streaming=streaming)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="beside 'nothing' there is"):
        load(f"hf/{tmp_path}/nothing", batch=4, preprocess=identity)


def test_a_missing_split_lists_those_there_are(all_kinds: Any) -> None:
    with pytest.raises(LookupError, match=r"has no such split; there are \['train'\]"):
        attempt(all_kinds["json"], split="test")


def test_a_missing_config_lists_those_there_are(tmp_path: Path, all_kinds: Any) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"id": 1}\n')
    (folder / "README.md").write_text("---\nconfigs:\n- config_name: first\n  data_files: a.jsonl\n---\n")
    with pytest.raises(OptionsError, match=r"'second' not found. Available: \['first'\]"):
        load(f"hf/{folder}", batch=1, options=HFOptions(config="second"), preprocess=identity)
    assert load(f"hf/{folder}", batch=1, options=HFOptions(config="first"), preprocess=identity).records == 1


def test_a_dataset_script_is_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / "scripted.py").write_text("raise SystemExit('ran')\n")
    with pytest.raises((OptionsError, SourceError)):
        load(f"hf/{folder}", batch=1, preprocess=identity)


def test_a_cut_file_is_named(write_files: Any) -> None:
    files = write_files("parquet", (7,))
    path = Path(files.paths[0])
    path.write_bytes(path.read_bytes()[:-9])
    for streaming in (False, True):
        with pytest.raises(SourceError, match="could not be read"):
            attempt(files, streaming=streaming)
