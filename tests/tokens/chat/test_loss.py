"""A model's loss on a packed batch is, token by token, that of the conversations alone with transformers' own mask."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dew.data import segment_mask, shift
from dew.tokens.chat import ChatMessages

Model = Callable[..., Path]
WIDTH = 16

CONVERSATIONS = [
    [("user", "What is it?"), ("assistant", "It is the cat.")],
    [("system", "Be brief."), ("user", "And?"), ("assistant", "the mat"), ("user", "So?"), ("assistant", "on it")],
    [("user", "say hello"), ("assistant", "hello to the user")],
    [("user", "is it"), ("assistant", "It is."), ("user", "what"), ("assistant", "a cat and so on")],
]


def parameters(vocabulary: int) -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(0), 6)
    shapes = {
        "embed": (vocabulary, WIDTH),
        "place": (256, WIDTH),
        "q": (WIDTH, WIDTH),
        "k": (WIDTH, WIDTH),
        "v": (WIDTH, WIDTH),
        "out": (WIDTH, vocabulary),
    }
    return {name: jax.random.normal(key, shape) for key, (name, shape) in zip(keys, shapes.items(), strict=True)}


def losses(params: dict[str, Any], inputs: Any, targets: Any, segments: Any, positions: Any) -> Any:
    """(B, S): one layer of attention within segments."""
    x = params["embed"][inputs] + params["place"][positions]
    scores = jnp.einsum("bic,bjc->bij", x @ params["q"], x @ params["k"])
    weights = jax.nn.softmax(jnp.where(segment_mask(segments), scores, -1e9))
    logits = (x + weights @ (x @ params["v"])) @ params["out"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)[..., 0]


def test_packed_loss_is_the_loss_of_each_conversation(model: Model, tagged: str, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    path = model(tagged)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
    rows = [{"messages": [{"role": r, "content": c} for r, c in messages]} for messages in CONVERSATIONS]
    chats = ChatMessages(rows, tokenizer=path, seq_len=127, renders=tmp_path / "renders")
    source = chats.source()
    batch = source.take(np.arange(len(source)))
    assert batch["text_segment_ids"].max() >= 2  # or nothing is packed
    params = parameters(len(theirs))

    shifted = shift(batch)
    packed = losses(params, shifted["inputs"], shifted["targets"], shifted["segment_ids"], shifted["positions"])
    mask = chats.loss_mask(batch)
    assert (mask == np.asarray(jax.jit(chats.loss_mask)({k: jnp.asarray(v) for k, v in batch.items()}))).all()

    alone: dict[tuple[int, ...], list[float]] = {}
    for row in rows:
        found = theirs.apply_chat_template(
            copy.deepcopy(row["messages"]), chat_template=tagged, return_dict=True, return_assistant_tokens_mask=True
        )
        ids, scored = np.array(found["input_ids"]), np.array(found["assistant_masks"], bool)
        ones = np.ones((1, len(ids) - 1), np.int32)
        each = losses(params, ids[None, :-1], ids[None, 1:], ones, np.arange(len(ids) - 1)[None])
        alone[tuple(ids.tolist())] = np.asarray(each)[0][scored[1:]].tolist()

    seen = 0
    for row in range(len(source)):
        for segment in range(1, int(batch["text_segment_ids"][row].max()) + 1):
            of_it = batch["text_segment_ids"][row] == segment
            expected = alone[tuple(batch["text"][row][of_it].tolist())]
            here = mask[row] & of_it[1:]
            np.testing.assert_allclose(np.asarray(packed)[row][here], expected, rtol=2e-5, atol=2e-5)
            seen += 1
    assert seen == len(rows)
    assert int(mask.sum()) == sum(map(len, alone.values()))
