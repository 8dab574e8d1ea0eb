"""The demo's language model: a decoder-only transformer and Adam in plain JAX, small enough to read at one sitting.

Shapes: B rows of a batch, S positions, D width, H heads, V token ids, L blocks. All arithmetic is float32.
"""

# JAX leaves parts of its own signatures untyped.
# pyright: reportUnknownMemberType=false

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import jax

Weights: TypeAlias = "dict[str, jax.Array]"
Host: TypeAlias = npt.NDArray[np.float32]

_RATE, _WARM_UP, _BETA_1, _BETA_2, _TINY = 6e-3, 10.0, 0.9, 0.98, 1e-9


@attrs.frozen(kw_only=True)
class Shape:
    """How large the model is: `vocabulary` ids, `length` positions, `width`, `heads` and `blocks`."""

    vocabulary: int
    length: int
    width: int = 128
    heads: int = 4
    blocks: int = 2


def on_cpu() -> None:
    """Keeps JAX to the CPU, whatever else the machine has: a model this small gains nothing elsewhere."""
    import jax

    jax.config.update("jax_platforms", "cpu")


def initial_weights(shape: Shape, seed: int = 0) -> "dict[str, Host]":
    """Fresh weights by name; those of the blocks are stacked, `(L, ...)`. The output layer is `embed`, transposed."""
    draw = np.random.default_rng(seed)
    depth, width = shape.blocks, shape.width

    def normal(*size: int, scale: float) -> Host:
        return draw.normal(0.0, scale, size).astype(np.float32)

    inner = 1 / math.sqrt(width)
    outer = inner / math.sqrt(2 * depth)  # each block adds to the stream twice
    return {
        "embed": normal(shape.vocabulary, width, scale=0.15),
        "place": normal(shape.length, width, scale=0.02),
        "norm_attend": np.ones((depth, width), np.float32),
        "qkv": normal(depth, width, 3 * width, scale=inner),
        "mix": normal(depth, width, width, scale=outer),
        "norm_widen": np.ones((depth, width), np.float32),
        "widen": normal(depth, width, 4 * width, scale=inner),
        "narrow": normal(depth, 4 * width, width, scale=outer / 2),
        "norm": np.ones(width, np.float32),
    }


def logits(weights: Weights, inputs: "jax.Array", heads: int) -> "jax.Array":
    """Scores of the next token: `inputs` (B, S) int32 -> (B, S, V) float32."""
    import jax

    length = inputs.shape[1]
    stream = weights["embed"][inputs] + weights["place"][:length]  # (B, S, D)
    for number in range(weights["mix"].shape[0]):
        block = {name: weights[name][number] for name in ("norm_attend", "qkv", "mix", "norm_widen", "widen", "narrow")}
        stream = stream + _attend(_norm(stream, block["norm_attend"]), block, heads)
        widened = jax.nn.gelu(_norm(stream, block["norm_widen"]) @ block["widen"])  # (B, S, 4D)
        stream = stream + widened @ block["narrow"]
    # The embedding is wide, so that it learns fast; half of its scores starts near a flat guess, ln V.
    return 0.5 * (_norm(stream, weights["norm"]) @ weights["embed"].T)


def _norm(stream: "jax.Array", scale: "jax.Array") -> "jax.Array":
    import jax
    import jax.numpy as jnp

    return stream * jax.lax.rsqrt(jnp.mean(stream * stream, axis=-1, keepdims=True) + 1e-6) * scale


def _attend(stream: "jax.Array", block: Weights, heads: int) -> "jax.Array":
    """Causal self-attention: (B, S, D) -> (B, S, D)."""
    import jax
    import jax.numpy as jnp

    rows, length, width = stream.shape
    query, key, value = jnp.split((stream @ block["qkv"]).reshape(rows, length, 3 * heads, width // heads), 3, axis=2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(width // heads)
    causal = jnp.tril(jnp.ones((length, length), bool))
    share = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)  # (B, H, S, S)
    return jnp.einsum("bhqk,bkhd->bqhd", share, value).reshape(rows, length, width) @ block["mix"]


def loss(weights: Weights, batch: "Mapping[str, jax.Array]", heads: int) -> "tuple[jax.Array, jax.Array]":
    """Cross entropy in nats summed over the targets that count, and their number, both scalars.

    `inputs` and `targets` (B, S) int32; `target_mask` (B, S) bool says which targets count.
    """
    import jax
    import jax.numpy as jnp

    scores = logits(weights, batch["inputs"], heads)
    right = jnp.take_along_axis(scores, batch["targets"][..., None], axis=-1)[..., 0]  # (B, S)
    surprise = jax.nn.logsumexp(scores, axis=-1) - right
    return jnp.sum(surprise * batch["target_mask"]), jnp.sum(batch["target_mask"])


State: TypeAlias = "dict[str, Any]"
"""What a step changes: `weights`, Adam's two moments `first` and `second` of the same shapes, and `steps`, a count."""


class Learner:
    """The train step and the score of a model of one `shape`, as `dew.training.Trainer` takes them; both are jitted.

    Batches are what `dew.data.fields.shift` makes, `inputs`, `targets` and `target_mask`, each (B, S).
    """

    def __init__(self, shape: Shape) -> None:
        import jax

        self.shape = shape
        self.step: Callable[[State, Any], tuple[State, dict[str, jax.Array]]] = jax.jit(self._adam, donate_argnums=0)
        self.score: Callable[[State, Any], dict[str, tuple[jax.Array, jax.Array]]] = jax.jit(self._score)

    def start(self, seed: int = 0) -> State:
        """Fresh weights and empty moments."""
        weights = initial_weights(self.shape, seed)
        empty = [{name: np.zeros_like(value) for name, value in weights.items()} for _ in range(2)]
        return {"weights": weights, "first": empty[0], "second": empty[1], "steps": np.zeros((), np.int32)}

    def _mean(self, weights: Weights, batch: "Mapping[str, jax.Array]") -> "jax.Array":
        total, mass = loss(weights, batch, self.shape.heads)
        return total / mass

    def _score(self, state: State, batch: "Mapping[str, jax.Array]") -> "dict[str, tuple[jax.Array, jax.Array]]":
        """The summed loss and the number of targets; rows that are not `valid` count for nothing."""
        counted = {**batch, "target_mask": batch["target_mask"] & batch["valid"][:, None]}
        return {"loss": loss(state["weights"], counted, self.shape.heads)}

    def _adam(self, state: State, batch: "Mapping[str, jax.Array]") -> "tuple[State, dict[str, jax.Array]]":
        """Adam with bias correction; the loss is the mean over `batch` before the step."""
        import jax
        import jax.numpy as jnp

        value, slopes = jax.value_and_grad(self._mean)(state["weights"], batch)
        count = state["steps"] + 1
        rate = _RATE * jnp.minimum(count / _WARM_UP, 1.0)
        means = {name: _BETA_1 * state["first"][name] + (1 - _BETA_1) * slope for name, slope in slopes.items()}
        squares = {name: _BETA_2 * state["second"][name] + (1 - _BETA_2) * slope**2 for name, slope in slopes.items()}
        moved: Weights = {}
        for name, weight in state["weights"].items():
            size = jnp.sqrt(squares[name] / (1 - _BETA_2**count)) + _TINY
            moved[name] = weight - rate * means[name] / (1 - _BETA_1**count) / size
        return {"weights": moved, "first": means, "second": squares, "steps": count}, {"loss": value}
