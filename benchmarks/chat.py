"""Conversations to token shards with roles, beside `tokenizers` encoding the same texts.

2 000 conversations of about 1 000 tokens. CPU seconds of all threads, since the machine may be shared: what Dew adds to
encoding is reading rows, rendering, roles, typed control tokens and files.
"""

import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.measure import Figure, at_least
from dew.tokens.chat import ChatMessages
from dew.tokens.chat.conversation import RowRules

CONVERSATIONS = 2000
ROUNDS = 3
# How the tokenizers of today's models cut words; half of the time of encoding goes there.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        sentences = _sentences()
        tokenizer = _model(folder / "model", sentences)
        path = folder / "chats.jsonl"
        path.write_text(
            "".join(json.dumps({"messages": _messages(sentences, number)}) + "\n" for number in range(CONVERSATIONS))
        )
        texts = _texts(path, folder / "model")
        seconds: dict[str, list[float]] = {"encode_batch": [], "encode_batch_fast": [], "dew": []}
        for number in range(ROUNDS):
            for name in ("encode_batch", "encode_batch_fast"):
                started = time.process_time()
                tokens = _encode(getattr(tokenizer, name), texts)
                seconds[name].append(time.process_time() - started)
            chats = ChatMessages(path, tokenizer=folder / "model", seq_len=8191, renders=str(folder / str(number)))
            started = time.process_time()
            chats.prepare()
            seconds["dew"].append(time.process_time() - started)
    best = {name: min(found) for name, found in seconds.items()}
    detail = f" ({tokens / best['dew'] / 1e6:.2f} M tokens/CPU-s)"
    yield at_least("conversations to shards, of encode_batch", best["encode_batch"] / best["dew"], 0.85, detail)
    without = best["encode_batch_fast"] / best["dew"]
    yield Figure(what="the same, of encode_batch_fast, which knows no places", value=f"{without:.2f}", budget="")


def _encode(encode: Any, texts: list[str]) -> int:
    """Number of ids, made 64 texts at a time."""
    batches = [texts[first : first + 64] for first in range(0, len(texts), 64)]
    return sum(len(found.ids) for batch in batches for found in encode(batch, add_special_tokens=False))


def _sentences() -> list[str]:
    """Text that every Python carries."""
    import pydoc_data.topics

    text = "\n".join(pydoc_data.topics.topics.values())
    return [sentence.strip() for sentence in text.split(".") if 20 < len(sentence) < 600]


def _model(folder: Path, sentences: list[str]) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": TEMPLATE}))
    return tokenizer


def _messages(sentences: list[str], number: int) -> list[dict[str, str]]:
    rng = random.Random(number)

    def say(count: int) -> str:
        return ". ".join(rng.choice(sentences) for _ in range(count)) + "."

    turns = [(role, say(count)) for _ in range(2) for role, count in (("user", 3), ("assistant", 12))]
    return [{"role": role, "content": text} for role, text in [("system", say(1)), *turns]]


def _texts(path: Path, model: Path) -> list[str]:
    renderer = ChatMessages(path, tokenizer=model, seq_len=1).plan().renderer
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [renderer.painted(RowRules().conversation(row)).text for row in rows]
