"""PreferencePairs: one prompt, two completions, masks that say what the model writes."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from dew.data import DataPartition, OptionsError, SourceError
from dew.testing import SourceSuite
from dew.tokens.chat import PairSource, PreferencePairs

Model = Callable[..., Path]
Spec = Callable[..., PreferencePairs]

ASK = [{"role": "user", "content": "What is it?"}]
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("It is the cat.", "the mat"))
MESSAGES = {"prompt": ASK, "chosen": [GOOD], "rejected": [BAD]}
IMPLICIT = {"chosen": [*ASK, GOOD], "rejected": [*ASK, BAD]}
TEXT = {"prompt": "What is it? ", "chosen": "the cat", "rejected": "the mat and so on"}
IDS = {"prompt": [9, 10, 11], "chosen": [12, 13], "rejected": [14, 15, 16], "rejected_mask": [1, 0, 1]}


@pytest.fixture
def path(model: Model) -> Path:
    return model()


@pytest.fixture
def spec(path: Path, tmp_path: Path) -> Spec:
    def make(data: Any, **options: Any) -> PreferencePairs:
        return PreferencePairs(data, **{"tokenizer": path, "seq_len": 64, "renders": tmp_path / "renders", **options})

    return make


def parts(path: Path, record: dict[str, Any], side: str) -> tuple[str, str, int]:
    """Prompt, what is scored, and the length, as text."""
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    decode = lambda ids: tokenizer.decode(ids.tolist(), skip_special_tokens=False)  # noqa: E731
    ids, mask = record[side], record[f"{side}_mask"]
    return decode(ids[: record["prompt_length"]]), decode(ids[mask]), int(record[f"{side}_length"])


@pytest.mark.parametrize("row", [MESSAGES, IMPLICIT], ids=["explicit", "implicit"])
def test_messages(spec: Spec, path: Path, row: dict[str, Any]) -> None:
    record = spec([row]).source()[0]
    prompt = "<|im_start|>user\nWhat is it?<|im_end|>\n<|im_start|>assistant\n"
    assert parts(path, record, "chosen")[:2] == (prompt, "It is the cat.<|im_end|>")
    assert parts(path, record, "rejected")[:2] == (prompt, "the mat<|im_end|>")
    shapes = {name: (np.shape(column), str(np.asarray(column).dtype)) for name, column in record.items()}
    assert shapes == {
        "chosen": ((64,), "int32"),
        "rejected": ((64,), "int32"),
        "chosen_mask": ((64,), "bool"),
        "rejected_mask": ((64,), "bool"),
        "prompt_length": ((), "int32"),
        "chosen_length": ((), "int32"),
        "rejected_length": ((), "int32"),
    }
    pad = Tokenizer.from_file(str(path / "tokenizer.json")).token_to_id("<|endoftext|>")
    assert (record["chosen"][record["chosen_length"] :] == pad).all()
    assert not record["chosen_mask"][record["chosen_length"] :].any()


def test_turns_of_others_within_a_completion_are_not_scored(spec: Spec, path: Path) -> None:
    chosen = [GOOD, {"role": "user", "content": "So?"}, BAD]
    record = spec([{"prompt": ASK, "chosen": chosen, "rejected": [BAD]}]).source()[0]
    assert parts(path, record, "chosen")[1] == "It is the cat.<|im_end|>the mat<|im_end|>"


def test_strings_are_text_and_end(spec: Spec, path: Path) -> None:
    record = spec([TEXT]).source()[0]
    assert parts(path, record, "chosen")[:2] == ("What is it? ", "the cat<|im_end|>")
    evil = {**TEXT, "prompt": "x<|im_end|>"}
    typed, parsed = spec([evil]).source()[0], spec([evil], parse_special=True).source()[0]
    assert int(typed["prompt_length"]) > int(parsed["prompt_length"]) == 2


def test_ids_with_masks(spec: Spec, model: Model) -> None:
    record = spec([IDS], tokenizer=model(None, name="bare")).source()[0]
    assert record["chosen"][:5].tolist() == [9, 10, 11, 12, 13]
    assert record["rejected_mask"][:7].tolist() == [False] * 3 + [True, False, True, False]
    assert (record["prompt_length"], record["rejected_length"]) == (3, 6)


def test_pairs_stay_together_in_any_order(spec: Spec) -> None:
    data = [
        {**IDS, "prompt": [20 + i], "chosen": [50 + i], "rejected": [90 + i], "rejected_mask": None} for i in range(20)
    ]
    dataset = spec(data, seq_len=4).load(batch=4)
    with dataset.train(DataPartition()) as stream:
        batch = next(stream)
        state = stream.get_state()
        following = next(stream)
    assert (batch["chosen"][:, 1] - batch["chosen"][:, 0] == 30).all()
    assert (batch["rejected"][:, 1] - batch["chosen"][:, 1] == 40).all()
    with dataset.train(DataPartition()) as stream:
        stream.set_state(state)
        again = next(stream)
    assert (again["chosen"] == following["chosen"]).all()


def test_too_long(spec: Spec) -> None:
    row = {"prompt": list(range(20, 30)), "chosen": [40, 41, 42, 43], "rejected": [50]}
    with pytest.raises(
        SourceError, match=r"row 0: the pair has 14 tokens \(chosen\) and 11 \(rejected\), seq_len is 12"
    ):
        spec([row], seq_len=12).source()
    right = spec([row], seq_len=12, long="truncate_right").source()[0]
    assert right["chosen"].tolist() == [*range(20, 30), 40, 41]
    left = spec([row], seq_len=12, long="truncate_left").source()[0]
    assert left["chosen"].tolist() == [*range(22, 30), 40, 41, 42, 43]
    assert left["rejected"][:9].tolist() == [*range(22, 30), 50]
    assert left["prompt_length"] == 8
    with pytest.raises(SourceError, match="nothing is left of the completion of chosen: the prompt alone fills the 10"):
        spec([row], seq_len=10, long="truncate_right").source()
    with pytest.raises(SourceError, match="no pair is left: all 1 are too long"):
        spec([row], seq_len=12, long="drop").source()
    assert len(spec([row, IDS], seq_len=12, long="drop").source()) == 1
    with pytest.raises(OptionsError, match="long must be one of error, drop"):
        spec([row], long="split")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("x", "a row is a mapping with 'chosen' and 'rejected', got 'x'"),
        ({"prompt": ASK, "chosen": [GOOD]}, "the row has no 'rejected'; its fields are prompt, chosen"),
        ({**MESSAGES, "chosen": 3}, "chosen is a list of messages, a string, or a list of ids, got 3"),
        ({**MESSAGES, "chosen": []}, "chosen is empty"),
        ({**MESSAGES, "chosen": "x"}, "chosen is text, rejected is messages, prompt is messages: all of a pair must"),
        ({**MESSAGES, "rejected": [GOOD]}, "chosen and rejected are the same, so that neither is preferred"),
        ({**MESSAGES, "prompt": [*ASK, GOOD]}, "the prompt ends with a message of the assistant"),
        ({**MESSAGES, "chosen": ASK}, "chosen"),
        ({"chosen": "a", "rejected": "b"}, "the row has no 'prompt': only conversations say what it is"),
        ({"chosen": [GOOD], "rejected": [BAD]}, "chosen and rejected share no messages to begin with"),
        ({"chosen": [*ASK, GOOD], "rejected": ASK}, "chosen or rejected is the beginning of the other"),
        ({**TEXT, "chosen": ""}, "chosen is empty: it has no tokens"),
        ({**IDS, "rejected_mask": [1]}, "rejected has 3 ids and rejected_mask has the shape (1,)"),
        ({**IDS, "chosen": [12, 99999]}, "chosen has ids from 12 to 99999, the tokenizer has 0 to "),
        ({**IDS, "rejected_mask": [0, 0, 0]}, "nothing is left of the completion of rejected"),
    ],
)
def test_wrong_pairs(spec: Spec, row: Any, words: str) -> None:
    with pytest.raises(SourceError, match=r"row 0: .*" + re.escape(words)):
        spec([row]).source()


def test_a_template_that_rewrites_the_prompt_is_refused(spec: Spec) -> None:
    changing = (
        "{{ messages | length }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    with pytest.raises(
        SourceError, match=r"writes the prompt in another way when chosen follows: from character 0 on '2"
    ):
        spec([MESSAGES], template=changing).source()
    with pytest.raises(SourceError, match="there are no pairs"):
        spec([]).source()


def test_validation_pairs(spec: Spec) -> None:
    dataset = spec([MESSAGES, TEXT, IDS], val=[IMPLICIT]).load(batch=2)
    assert dataset.val is not None
    with dataset.val(DataPartition()) as batches:
        assert next(batches)["valid"].tolist() == [True, False]
    spec([MESSAGES], val=[TEXT]).prepare()


class TestPairSource(SourceSuite):
    @pytest.fixture(autouse=True)
    def _source(self, spec: Spec) -> None:
        self.spec = spec([MESSAGES, TEXT, IDS])

    def make_source(self) -> PairSource:
        return self.spec.source()
