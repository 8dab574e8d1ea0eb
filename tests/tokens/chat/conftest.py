"""A small model directory to render with, and transformers' own renders to compare with."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # transformers says on import that there is no torch

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

CHATML_TAGGED = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}"
    "{{ '\\n' }}{% else %}{{ message.content + '<|im_end|>\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>"]
THINKING = ["<think>", "</think>", "<tool_call>", "</tool_call>"]

Model = Callable[..., Path]


@pytest.fixture(scope="session")
def trained() -> str:
    """A byte-level BPE of 600 ids with the control tokens of ChatML, as the text of its tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = ["the cat sat on the mat and said hello to the user and the assistant, and so on. What is it? It is."] * 9
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    tokenizer.train_from_iterator([*text, "\n\n\n", "a\n\nb\n\n\n"], trainer)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in THINKING])
    return tokenizer.to_str()


@pytest.fixture
def model(trained: str, tmp_path: Path) -> Model:
    """Writes a model directory: `model(template)`, with further files and keys as asked."""

    def write(
        template: str | None = CHATML,
        *,
        name: str = "model",
        bos: bool = False,
        templates: dict[str, str] | None = None,
        **config: Any,
    ) -> Path:
        path = tmp_path / name
        path.mkdir()
        tokenizer = Tokenizer.from_str(trained)
        if bos:
            begin = tokenizer.token_to_id("<s>")
            tokenizer.post_processor = processors.TemplateProcessing(
                single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", begin)]
            )
        tokenizer.save(str(path / "tokenizer.json"))
        values = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", **config}
        (path / "tokenizer_config.json").write_text(json.dumps(values))
        if template is not None:
            (path / "chat_template.jinja").write_text(template)
        for other, text in (templates or {}).items():
            (path / "additional_chat_templates").mkdir(exist_ok=True)
            (path / "additional_chat_templates" / f"{other}.jinja").write_text(text)
        return path

    return write


@pytest.fixture(scope="session")
def chatml() -> str:
    """A plain template."""
    return CHATML


@pytest.fixture(scope="session")
def tagged() -> str:
    """The same with `{% generation %}`."""
    return CHATML_TAGGED
