"""The field contracts, the checker's messages, and the shift from token rows to inputs and targets."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dew.data.errors import DewDataError, FieldError
from dew.data.fields import CONTRACTS, check_batch, shift, zero_padding


def ints(*rows: list[int]) -> Any:
    return np.array(rows, np.int32)


def packed(batch: int = 2, width: int = 9) -> dict[str, Any]:
    """Rows of two documents with a padded end."""
    positions = np.tile(np.arange(width, dtype=np.int32) % 4, (batch, 1))
    segments = np.tile(1 + np.arange(width, dtype=np.int32) // 4, (batch, 1))
    segments[:, 8:] = positions[:, 8:] = 0
    text = np.arange(batch * width, dtype=np.int32).reshape(batch, width)
    return {"text": text, "text_segment_ids": segments, "text_positions": positions}


def sft() -> dict[str, Any]:
    return packed() | {"text_roles": np.ones((2, 9), np.int32)}


def batch_for(use: str) -> dict[str, Any]:
    return {
        "image-diffusion": lambda: {"image": np.zeros((2, 4, 6, 3), np.uint8)},
        "video-diffusion": lambda: {"video": np.zeros((2, 5, 4, 6, 3), np.uint8)},
        "lm": lambda: {"text": np.zeros((2, 9), np.int32)},
        "packed-lm": packed,
        "sft": sft,
    }[use]()


def refused(batch: Any, use: str, match: str) -> None:
    with pytest.raises(FieldError, match=match):
        check_batch(batch, use)


def test_the_table_of_contracts() -> None:
    table = {use: {field.name: (field.axes, field.dtype) for field in fields} for use, fields in CONTRACTS.items()}
    tokens = (("B", "S+1"), "int32")
    assert table == {
        "image-diffusion": {"image": (("B", "H", "W", "C"), "uint8")},
        "video-diffusion": {"video": (("B", "T", "H", "W", "C"), "uint8")},
        "lm": {"text": tokens},
        "packed-lm": {"text": tokens, "text_segment_ids": tokens, "text_positions": tokens},
        "sft": {"text": tokens, "text_segment_ids": tokens, "text_positions": tokens, "text_roles": tokens},
    }


@pytest.mark.parametrize("use", CONTRACTS)
def test_a_right_batch_passes_with_fields_of_ones_own(use: str) -> None:
    batch = batch_for(use)
    check_batch(batch, use)
    extra = {"valid": np.ones(2, bool), "caption": np.array(["a", "bc"]), "meta": {"id": np.zeros((2, 2), np.uint32)}}
    check_batch(batch | extra, use)


def test_the_video_field_has_a_name_of_choice() -> None:
    batch = {"clip": np.zeros((2, 5, 4, 6, 3), np.uint8)}
    check_batch(batch, "video-diffusion", video_field="clip")
    with pytest.raises(
        FieldError, match=r"field 'video' is missing; video-diffusion wants it as .*The batch has: clip"
    ):
        check_batch(batch, "video-diffusion")
    with pytest.raises(FieldError, match="field 'frames' is missing"):
        check_batch(batch, "video-diffusion", video_field="frames")


def test_an_unknown_use_lists_the_uses() -> None:
    refused(
        packed(), "custom", "no use is called 'custom'; there are image-diffusion, video-diffusion, lm, packed-lm, sft"
    )


def test_the_error_is_a_value_error_of_dew() -> None:
    with pytest.raises(ValueError, match="no use is called"):
        check_batch({}, "")
    assert issubclass(FieldError, DewDataError)


@pytest.mark.parametrize("use", CONTRACTS)
def test_every_field_must_be_there_with_its_dtype_and_rank(use: str) -> None:
    for field in CONTRACTS[use]:
        batch = batch_for(use)
        value = batch.pop(field.name)
        refused(batch, use, rf"field '{field.name}' is missing; {use} wants it as \(B, .*The batch has: ")
        refused(
            batch | {field.name: value.astype(np.float32)}, use, rf"'{field.name}' is \(2, .*float32; {use} wants \(B"
        )
        refused(
            batch | {field.name: value[0]}, use, rf"field '{field.name}' is \({value.shape[1]},.*; {use} wants \(B, "
        )
        refused(
            batch | {field.name: value.tolist()}, use, rf"field '{field.name}' is a list; {use} wants an array \(B, "
        )


def test_the_message_says_what_the_objective_wants() -> None:
    refused(
        {"image": np.zeros((2, 4, 6, 3), np.float32)},
        "image-diffusion",
        r"field 'image' is \(2, 4, 6, 3\) float32; image-diffusion wants \(B, H, W, C\) uint8, pixels in \[0, 255\]",
    )
    refused({}, "lm", "field 'text' is missing; lm wants it as .*The batch has: none")
    refused({"text": np.zeros((2, 9), np.int64)}, "lm", r"\(2, 9\) int64; lm wants \(B, S\+1\) int32, token ids")
    refused([1], "lm", "lm wants a batch, a mapping of field names to arrays, got a list")


def test_aligned_fields_have_one_shape() -> None:
    for name in ("text_segment_ids", "text_positions", "text_roles"):
        batch = sft()
        batch[name] = batch[name][:, :-1]
        refused(
            batch,
            "sft",
            rf"field '{name}' is \(2, 8\), but axis S\+1 has length 9 in 'text'; sft wants the two aligned",
        )
        batch[name] = sft()[name][:1]
        refused(batch, "sft", rf"field '{name}' is \(1, 9\), but axis B has length 2 in 'text'")


def test_rows_without_a_target() -> None:
    refused({"text": np.zeros((2, 1), np.int32)}, "lm", r"'text' is \(2, 1\): rows of 1 tokens hold no target")


def test_negative_ids_and_positions() -> None:
    for name in ("text_segment_ids", "text_positions"):
        batch = packed()
        batch[name][1, 3] = -100
        refused(batch, "packed-lm", rf"field '{name}' holds -100 in row 1; packed-lm wants values of at least 0")


def test_every_field_has_the_same_rows() -> None:
    batch = packed()
    refused(batch | {"valid": np.ones(3, bool)}, "packed-lm", "field 'valid' has 3 rows and 'text' has 2; every field")
    refused(batch | {"meta": {"id": np.ones(1)}}, "packed-lm", r"field 'meta\.id' has 1 rows and 'text' has 2")
    refused(batch | {"step": np.array(3)}, "packed-lm", "field 'step' is a scalar; every field of a batch is an array")
    refused(
        batch | {"caption": ["a", "b"]}, "packed-lm", "field 'caption' is a list; every field of a batch is an array"
    )


# shift


def test_shift_of_plain_text() -> None:
    made = shift({"text": ints([1, 2, 3, 4], [5, 6, 7, 8])})
    assert made.keys() == {"inputs", "targets", "target_mask"}
    assert made["inputs"].tolist() == [[1, 2, 3], [5, 6, 7]]
    assert made["targets"].tolist() == [[2, 3, 4], [6, 7, 8]]
    assert made["inputs"].dtype == made["targets"].dtype == np.int32
    assert made["target_mask"].dtype == np.bool_
    assert made["target_mask"].all()
    assert made["target_mask"].shape == (2, 3)


def test_the_role_is_that_of_the_target() -> None:  # C14
    user, assistant = 2, 3
    made = shift({"text": ints([10, 11, 12, 13]), "text_roles": ints([user, assistant, assistant, assistant])})
    assert made["inputs"].tolist() == [[10, 11, 12]]
    assert made["targets"].tolist() == [[11, 12, 13]]
    assert made["target_roles"].tolist() == [[assistant, assistant, assistant]]
    assert made["target_roles"].shape == made["targets"].shape == made["target_mask"].shape


def test_no_target_across_documents_or_into_padding() -> None:  # C15
    made = shift(
        {
            "text": ints([1, 2, 3, 4, 5, 6, 0, 0]),
            "text_segment_ids": ints([1, 1, 1, 2, 2, 2, 0, 0]),
            "text_positions": ints([0, 1, 2, 0, 1, 2, 0, 0]),
        }
    )
    assert made["target_mask"].tolist() == [[True, True, False, True, True, False, False]]
    assert made["segment_ids"].tolist() == [[1, 1, 1, 2, 2, 2, 0]]
    assert made["positions"].tolist() == [[0, 1, 2, 0, 1, 2, 0]]
    assert made.keys() == {"inputs", "targets", "target_mask", "segment_ids", "positions"}


def test_padding_is_told_by_segment_and_never_by_token() -> None:
    made = shift({"text": ints([0, 0, 0, 7]), "text_segment_ids": ints([1, 1, 1, 0])})
    assert made["target_mask"].tolist() == [[True, True, False]]


def test_shift_passes_other_fields_and_leaves_the_batch_alone() -> None:
    batch = sft() | {"valid": np.ones(2, bool)}
    before = {name: value.copy() for name, value in batch.items()}
    made = shift(batch)
    assert made["valid"] is batch["valid"]
    assert not {"text", "text_segment_ids", "text_positions", "text_roles"} & made.keys()
    for name in ("inputs", "targets", "segment_ids", "positions", "target_roles", "target_mask"):
        assert made[name].flags.c_contiguous
        assert made[name].flags.owndata
        made[name][...] = 0
    for name, value in before.items():
        np.testing.assert_array_equal(batch[name], value)


def test_one_row_is_copied_too() -> None:
    batch = {"text": ints([1, 2, 3])}
    made = shift(batch)
    made["inputs"][0, 1] = 9
    assert made["targets"].tolist() == [[2, 3]]
    assert batch["text"].tolist() == [[1, 2, 3]]


def test_shift_refuses_by_name() -> None:
    for batch, match in (
        ({"image": np.zeros((2, 4, 4, 3), np.uint8)}, r"field 'text' is missing; shift wants it as \(B, S\+1\) int32"),
        ({"text": np.zeros((2, 4), np.int64)}, r"field 'text' is \(2, 4\) int64; shift wants"),
        ({"text": ints([1])}, "rows of 1 tokens hold no target"),
        (sft() | {"text_roles": np.ones((2, 8), np.int32)}, r"'text_roles' is \(2, 8\), but axis S\+1 has length 9"),
        (sft() | {"targets": np.ones((2, 8), np.int32)}, "field 'targets' is in the batch already; .* rename yours"),
    ):
        with pytest.raises(FieldError, match=match):
            shift(batch)


@given(hnp.arrays(np.int32, st.tuples(st.integers(1, 3), st.integers(2, 9)), elements=st.integers(0, 3)), st.data())
def test_shift_agrees_with_a_loop(segments: Any, data: st.DataObject) -> None:
    roles = data.draw(hnp.arrays(np.int32, segments.shape, elements=st.integers(0, 5)))
    text = np.arange(segments.size, dtype=np.int32).reshape(segments.shape)
    made = shift({"text": text, "text_segment_ids": segments, "text_roles": roles})
    rows, width = segments.shape
    assert made["target_mask"].shape == (rows, width - 1)
    for row in range(rows):
        for t in range(width - 1):
            here, after = segments[row, t], segments[row, t + 1]
            assert made["target_mask"][row, t] == (here == after and after > 0)
            assert made["inputs"][row, t] == text[row, t]
            assert made["targets"][row, t] == text[row, t + 1]
            assert made["segment_ids"][row, t] == here
            assert made["target_roles"][row, t] == roles[row, t + 1]


# Padding rows


@pytest.mark.parametrize("rows", [slice(1, None), np.array([False, True, True])])
def test_padding_rows_lose_segments_and_roles(rows: Any) -> None:
    batch: dict[str, Any] = {
        name: np.full((3, 4), 7, np.int32)
        for name in ("text", "text_segment_ids", "text_positions", "text_roles", "chosen_segment_ids", "chosen_roles")
    }
    batch["n"] = {"text_roles": np.full((3, 4), 7, np.uint8)}
    batch["user_roles"] = np.array(["a", "b", "c"])
    zero_padding(batch, rows)
    for name in ("text_segment_ids", "text_roles", "chosen_segment_ids", "chosen_roles"):
        assert batch[name].tolist() == [[7] * 4, [0] * 4, [0] * 4]
    assert batch["n"]["text_roles"].tolist() == [[7] * 4, [0] * 4, [0] * 4]
    assert (batch["text"] == 7).all()
    assert (batch["text_positions"] == 7).all()
    assert batch["user_roles"].tolist() == ["a", "b", "c"]


def test_a_padding_row_has_no_targets() -> None:
    batch = packed()
    zero_padding(batch, slice(1, None))
    check_batch(batch, "packed-lm")
    assert shift(batch)["target_mask"].any(axis=1).tolist() == [True, False]


def test_neither_module_imports_jax() -> None:
    code = (
        "import sys, dew.data.fields, dew.data.collate; print(sorted({'jax', 'grain', 'fsspec'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Properties


@given(st.data())
def test_a_planted_fault_is_refused_by_its_field(data: st.DataObject) -> None:
    use = data.draw(st.sampled_from(sorted(CONTRACTS)))
    batch = batch_for(use)
    check_batch(batch, use)
    field = data.draw(st.sampled_from([field.name for field in CONTRACTS[use]]))
    value = batch[field]
    faults: list[Any] = [
        value.astype(np.int16),
        value.astype(np.float64),
        value[..., None],
        value[..., 0],
        value[:, :1] if value.ndim == 2 else value[0],
        value.tolist(),
        None,
    ]
    fault = data.draw(st.sampled_from(range(len(faults) + 1)))
    if fault == len(faults):
        del batch[field]
    else:
        batch[field] = faults[fault]
    # A field of the wrong width is named with the one that it should match, whichever is looked at second.
    refused(batch, use, f"'{field}'")
