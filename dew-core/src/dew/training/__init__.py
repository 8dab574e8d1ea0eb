"""The training side: shares from the mesh, arrays on devices, prefetch, checkpoints, accumulation, and a trainer.

Importing it imports JAX; Orbax is imported when a checkpoint is written or read.
"""

from typing import TYPE_CHECKING

from dew.training.accumulate import accumulate, accumulate_mean, check_mass, microbatches, valid_targets
from dew.training.distributed import Placement, build_mesh, data_partition, row_keys, row_order, shard_batch

__all__ = [
    "Checkpoints",
    "DevicePrefetch",
    "Placement",
    "Preempted",
    "Trainer",
    "accumulate",
    "accumulate_mean",
    "build_mesh",
    "check_mass",
    "data_partition",
    "microbatches",
    "row_keys",
    "row_order",
    "shard_batch",
    "valid_targets",
]

if TYPE_CHECKING:
    from dew.training.checkpoints import Checkpoints
    from dew.training.prefetch import DevicePrefetch
    from dew.training.trainer import Trainer
    from dew.training.watch import Preempted
else:
    # `accumulate` is imported above and not here: a module of that name would take the function's place once loaded.
    _MODULES = {"Checkpoints": "checkpoints", "DevicePrefetch": "prefetch", "Preempted": "watch", "Trainer": "trainer"}

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_MODULES})
