"""Prints every figure, its budget, and the machine's core count; exit code 1 when one is missed."""

import argparse
import importlib
import os
import sys

from rich.console import Console
from rich.table import Table

MODULES = (
    "imports",
    "orders",
    "windows",
    "packing",
    "mixtures",
    "memory",
    "workers",
    "training",
    "prepare",
    "chat",
    "hf",
    "tfds",
    "tar",
    "images",
    "video",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", default=MODULES, help=f"which of {', '.join(MODULES)}")
    table = Table("what", "measured", "budget", "", title=f"Dew on {os.cpu_count()} cores")
    missed = 0
    for name in parser.parse_args().modules:
        for figure in importlib.import_module(f"benchmarks.{name}").figures():
            missed += figure.met is False
            verdict = {None: "", True: "met", False: "MISSED"}[figure.met]
            table.add_row(figure.what, figure.value, figure.budget, verdict)
    Console(width=120).print(table)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
