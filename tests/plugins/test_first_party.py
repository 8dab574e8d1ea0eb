"""Dew's own provider packages, as installed: their prefixes and their options."""

import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from dew.data import HFOptions, ImageOptions, OptionsError, TFDSOptions, VideoOptions, load, registry


def test_every_prefix_of_ours_is_stated_by_its_owner() -> None:
    owners = {claim.prefix: claim.distribution for claim in registry.installed()}
    assert {prefix: owners.get(prefix) for prefix in registry.OWNERS} == registry.OWNERS


@pytest.mark.parametrize("prefix", sorted(registry.OWNERS))
def test_every_provider_of_ours_can_be_found(prefix: str) -> None:
    found = registry.find(prefix)
    assert found.prefix == prefix
    assert found.summary
    assert found.options is not None


@pytest.mark.parametrize(
    ("source", "options", "wanted", "got"),
    [
        ("tfds/x", HFOptions(), "TFDSOptions (dew_tfds.options)", "HFOptions (dew_hf.options)"),
        ("hf/x", TFDSOptions(path="/data"), "HFOptions (dew_hf.options)", "TFDSOptions (dew_tfds.options)"),
        (
            "images/x",
            VideoOptions(),
            "ImageOptions (dew_media.images.options)",
            "VideoOptions (dew_media.video.options)",
        ),
    ],
)
def test_options_of_another_provider_are_refused_with_both_classes(
    source: str, options: Any, wanted: str, got: str
) -> None:
    message = f"load('{source}') takes options of the class {wanted}, got an instance of {got}"
    # Anything opened would raise a ProviderError instead.
    with pytest.raises(TypeError, match=re.escape(message)):
        load(source, batch=2, options=options)


def test_what_only_streams_understand_is_refused_by_name() -> None:
    with pytest.raises(
        TypeError, match=r"load\('tfds/x'\) was given streaming, which means nothing to the provider 'tfds'"
    ):
        load("tfds/x", batch=2, streaming=True)


def test_options_are_values() -> None:
    assert TFDSOptions(path=Path("/data")) == TFDSOptions(path="/data")  # type: ignore[arg-type]
    assert HFOptions(data_files={"train": ["a", "b"]}).data_files == {"train": ["a", "b"]}
    assert (VideoOptions().frames, VideoOptions().stride, VideoOptions().field) == (16, None, "video")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        TFDSOptions().config = "small"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TFDSOptions(path=3), "not int"),  # type: ignore[arg-type]
        (lambda: TFDSOptions(version=1), "'version' must be"),  # type: ignore[arg-type]
        (lambda: HFOptions(revision=1), "'revision' must be"),  # type: ignore[arg-type]
        (lambda: ImageOptions(size=2.0), "size must be a side or (height, width) in pixels, got 2.0"),  # type: ignore[arg-type]
    ],
)
def test_options_of_the_wrong_type_are_refused(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        make()


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(OptionsError, match="frames must be at least 1, got 0"):
        VideoOptions(frames=0)


def test_token_options_are_asked_for() -> None:
    message = "load('tokens/x') needs options=TokenOptions(seq_len=...), got none"
    with pytest.raises(TypeError, match=re.escape(message)):
        load("tokens/x", batch=2)
