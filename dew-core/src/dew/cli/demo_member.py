"""One process of the demo's run: `python -m dew.cli.demo_member ORDER`, started and killed by `dew.cli.demo_pool`.

It is an ordinary training script: a dataset, a step, checkpoints, `Trainer.fit`. It knows nothing of kills; what it
does for the demo is to say, after every step, which records and tokens it was given, and to hold still after one step.
"""

# JAX leaves parts of its own signatures untyped.
# pyright: reportUnknownMemberType=false

import collections
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.dataset import Batch, Dataset
from dew.data.load import load


@attrs.frozen(kw_only=True)
class MemberOrder:
    """What a process is to do.

    Args:
        source, batch, seq_len, val: the dataset.
        vocabulary: of the model.
        steps: the target of the whole run.
        hold: hold still after that many steps until the kill comes; None for no hold.
        every: steps between checkpoints.
        checkpoints: their directory; None for a run without.
        programs: a directory of compiled programs, so that the last process need not compile what the first did.
        index, processes, address: this process in its pool.
        said: the file descriptor that takes a JSON line a step.
    """

    source: str
    batch: int
    seq_len: int
    val: float
    vocabulary: int
    steps: int
    hold: int | None = None
    every: int = 1
    checkpoints: str | None = None
    programs: str = ""
    index: int = 0
    processes: int = 1
    address: str = ""
    said: int = 1

    def dataset(self) -> Dataset:
        """The demo's dataset; each record comes with its place in the order."""
        from dew.tokens import TokenOptions

        options = TokenOptions(seq_len=self.seq_len, val=self.val)
        return load(self.source, batch=self.batch, options=options, place_field="place")


def digests(text: npt.NDArray[np.int32]) -> list[str]:
    """One short digest a row of tokens, `(rows, S+1)`."""
    return [hashlib.sha256(row.tobytes()).hexdigest()[:16] for row in text]


def places(batch: Mapping[str, Any]) -> npt.NDArray[np.int64]:
    """The places of a batch's records in the order, (rows,), from two words each."""
    words = batch["place"].astype(np.int64)
    return words[:, 0] << 32 | words[:, 1]


def run(order: MemberOrder) -> None:
    """Trains, and says how it goes."""
    from contextlib import ExitStack

    from dew.cli.demo_model import Learner, Shape
    from dew.data.fields import shift
    from dew.training import Checkpoints, Trainer, build_mesh, shard_batch

    taken: collections.deque[Batch] = collections.deque()  # what was placed, until its step is done
    mesh = build_mesh()
    learner = Learner(Shape(vocabulary=order.vocabulary, length=order.seq_len))

    def place(batch: Batch) -> Batch:
        if "valid" not in batch:
            taken.append({"places": places(batch).tolist(), "digests": digests(batch["text"])})
        return shard_batch(mesh, shift(batch), global_batch=order.batch)

    def report(step: int, metrics: Mapping[str, float]) -> None:
        if "loss" not in metrics:
            return
        say(order, {"step": step - 1, "loss": metrics["loss"], "wait": metrics["wait_share"], **taken.popleft()})
        if step == order.hold:
            sys.stdin.read()  # until the kill, or the end of whoever was to send it
            os._exit(1)

    with ExitStack() as opened:
        directory = order.checkpoints
        checkpoints = None if directory is None else opened.enter_context(Checkpoints(directory))
        trainer = Trainer(
            learner.step, learner.start(), mesh=mesh, evaluate=learner.score, checkpoints=checkpoints, place=place
        )
        trainer.fit(
            order.dataset(),
            steps=order.steps,
            checkpoint_every=None if checkpoints is None else order.every,
            validate_every=order.steps,
            report=report,
        )
    say(order, {"validation": trainer.metrics["val/loss"]})


def say(order: MemberOrder, words: Mapping[str, Any]) -> None:
    """One JSON line to whoever started this process."""
    os.write(order.said, (json.dumps(words) + "\n").encode())


def main() -> None:
    """The process's own program."""
    import jax

    order = MemberOrder(**json.loads(sys.argv[1]))
    if order.processes > 1:
        jax.distributed.initialize(order.address, order.processes, order.index)
    run(order)


if __name__ == "__main__":
    main()
