"""The first steps of a dataset as another process reads them.

Streams side by side in one process share what a process has for itself: the seed of Python's hashes, which decides the
order of a set, module state, caches. So the dataset is also made by a process of its own, with another hash seed, and
every field of every row that it reads is compared by digest.
"""

import contextlib
import hashlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np

from dew.data.dataset import Batch, Dataset
from dew.testing.compare import leaves, row_of, rows_in
from dew.testing.counterexample import Check, Counterexample, passes, said_by
from dew.testing.subject import DIRECT, Step, Subject, varied

Opens: TypeAlias = "Callable[[], AbstractContextManager[Dataset]]"
"""Makes the dataset, for as long as it is in use; it is pickled, and called in the other process."""

Digests: TypeAlias = dict[str, str]
"""Of a row: dotted name of a field -> digest of its dtype, shape and values."""

_CHILD: Final = "import sys; sys.path[:] = {path!r}; from dew.testing.apart import main; main()"
_HASH_SEED: Final = "PYTHONHASHSEED"
_LOOK_SECONDS: Final = 0.1  # between two looks at whether the process has ended


def another_process_reads_the_same(subject: Subject, opens: Opens) -> Check:
    """A process with another hash seed, which makes the dataset for itself, reads the same rows."""
    ours: list[Step] = []
    yield from subject.read(1, subject.steps, ours)
    theirs: list[list[Digests]] = []
    yield from _read_apart(opens, subject.steps, theirs)
    for step, digests in zip(ours, theirs, strict=True):
        for row, (here, there) in enumerate(zip(_digests(step.batch), digests, strict=True)):
            if here != there:
                fields = " and ".join(repr(name) for name in here | there if here.get(name) != there.get(name))
                raise Counterexample(
                    f"row {row} of the step is another in a process with another {_HASH_SEED}, in {fields}: no record "
                    "may depend on the order of a set, on hash(), on a global random generator, or on what a process "
                    "has for itself",
                    step=step.number,
                    place=None if step.place is None else step.place + row,
                    records=step.ids[row : row + 1],
                )
        yield True


@contextmanager
def loaded(source: str, arguments: dict[str, Any]) -> Generator[Dataset]:
    """The dataset that `dew.data.load` makes, as `Opens` wants it."""
    from dew.data.load import load

    yield load(source, **arguments)


def _read_apart(opens: Opens, steps: int, into: "list[list[Digests]]") -> Check:
    """Puts the digests that another process reads into a list; whoever stops waiting ends the process."""
    import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

    job: bytes = cloudpickle.dumps((opens, steps))  # pyright: ignore[reportUnknownMemberType] - scripts travel by value
    command = [sys.executable, "-c", _CHILD.format(path=sys.path)]
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
        given.write(job)
        given.seek(0)
        environment = {**os.environ, _HASH_SEED: _other_seed()}
        child = subprocess.Popen(command, stdin=given, stdout=out, stderr=said, env=environment)
        try:
            while _runs(child):
                yield False
        finally:
            child.kill()
            child.wait()
        out.seek(0)
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
        ended = f"it ended with exit code {child.returncode}" + (f": {lines[-1]}" if lines else "")
        answer: dict[str, Any] = json.loads(out.read()) if not child.returncode else {"error": ended}
        if "error" in answer:
            raise Counterexample(f"another process cannot read the source: {answer['error']}")
        into += answer["digests"]


def _runs(child: "subprocess.Popen[bytes]") -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=_LOOK_SECONDS)
    return child.poll() is None


def _other_seed() -> str:
    """A hash seed that this process does not have."""
    seed = os.environ.get(_HASH_SEED, "")
    return str(int(seed) + 1) if seed.isdecimal() and int(seed) < 1 << 31 else "1"


def _digests(batch: Batch) -> list[Digests]:
    """Those of every row."""
    return [{name: _digest(value) for name, value in leaves(row_of(batch, row))} for row in range(rows_in(batch))]


def _digest(value: Any) -> str:
    array = np.asarray(value)
    digest = hashlib.sha256(f"{array.dtype} {array.shape} ".encode())
    digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _read(opens: Opens, steps: int) -> list[list[Digests]]:
    with opens() as dataset:
        read: list[Step] = []
        direct = varied(dataset, loading=DIRECT) or dataset
        passes(Subject(make=lambda: direct, steps=steps).read(1, steps, read))
        return [_digests(step.batch) for step in read]


def main() -> NoReturn:
    """The other process: its parent's job on stdin, digests on what was stdout; what programs print goes to stderr."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        try:
            answer = {"digests": _read(*pickle.load(sys.stdin.buffer))}
        except Exception as error:
            answer = {"error": said_by(error)}
        out.write(json.dumps(answer))
    sys.exit(0)
