"""The conformance kit on datasets of conversations, of preference pairs and of prompts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dew.data import Dataset
from dew.testing import StreamSuite
from dew.tokens.chat import ChatMessages, PreferencePairs, Prompts


def asked(number: int) -> dict[str, str]:
    return {"role": "user", "content": f"What is {number}?"}


def answered(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def conversations(first: int, count: int) -> list[Any]:
    return [{"messages": [asked(n), answered("It is. " * (1 + n % 5))]} for n in range(first, first + count)]


def pairs(first: int, count: int) -> list[Any]:
    return [
        {"prompt": [asked(n)], "chosen": [answered(f"It is {n}.")], "rejected": [answered("the mat")]}
        for n in range(first, first + count)
    ]


class Specified(StreamSuite):
    steps = 3
    largest_count = 4

    @pytest.fixture(autouse=True)
    def _given(self, model: Callable[[], Path], tmp_path: Path) -> None:
        self.options: Any = {"tokenizer": model(), "renders": tmp_path / "renders"}


class TestChat(Specified):
    def make_dataset(self, *, seed: int = 0) -> Dataset:
        data, val = conversations(0, 80), conversations(200, 9)
        return ChatMessages(data, val=val, seq_len=63, seed=seed, **self.options).load(batch=8)


class TestPairs(Specified):
    def make_dataset(self, *, seed: int = 0) -> Dataset:
        data, val = pairs(0, 20), pairs(200, 5)
        return PreferencePairs(data, val=val, seq_len=64, seed=seed, **self.options).load(batch=8)


class TestPrompts(Specified):
    def make_dataset(self, *, seed: int = 0) -> Dataset:
        data = [{"prompt": [asked(number)]} for number in range(20)]
        return Prompts(data, max_prompt=48, seed=seed, **self.options).load(batch=8)
