"""`import dew.data` over what it stands on, in fresh interpreters."""

import statistics
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.measure import Figure, at_most

ROUNDS = 15
BASE = "import numpy, attrs, pluggy"


def figures() -> Iterator[Figure]:
    base, ours = [], []
    for _ in range(ROUNDS):
        base.append(_seconds(BASE))
        ours.append(_seconds(f"{BASE}; import dew.data"))
    extra = statistics.median(ours) - statistics.median(base)
    yield at_most("import dew.data, over numpy, attrs, pluggy", max(0.0, extra) * 1e3, 10, "ms")


def _seconds(statement: str) -> float:
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
