"""Tasks on a Ray cluster: plain remote tasks, which Ray starts again elsewhere when a worker or a node is lost.

`out` and the inputs must be where every node sees them: a shared file system, or URLs.
"""

import importlib
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

from dew.data.errors import DewDataError, OptionsError, WorkerError
from dew.tokens.prepare.receipts import Receipt
from dew.tokens.prepare.task import Job, Setting
from dew.tokens.prepare.workers import Advance

_RETRIES: Final = 10
_ENVIRONMENT: Final = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def run_on_ray(setting: Setting, tasks: Iterable[int], advanced: Callable[[int, Advance], None]) -> None:
    """Does `tasks` on the cluster that this process is connected to, or that `RAY_ADDRESS` names, or on this machine.

    Raises:
        OptionsError: Ray is not installed.
        DewDataError: what a task raised.
        WorkerError: a task was lost more often than Ray may try it again.
    """
    ray = _ray()
    started = not ray.is_initialized()
    if started:
        ray.init(include_dashboard=False, log_to_driver=False)
    try:
        remote = ray.remote(num_cpus=1, max_retries=_RETRIES, runtime_env={"env_vars": _ENVIRONMENT})(_do)
        waiting = {remote.remote(setting, number): number for number in tasks}
        while waiting:
            for reference in ray.wait(list(waiting))[0]:
                receipt = _receipt(ray, reference)
                counts = receipt.documents, receipt.text_bytes, receipt.tokens
                advanced(waiting.pop(reference), Advance(*counts, receipt))
    finally:
        if started:
            ray.shutdown()


def _receipt(ray: Any, reference: Any) -> Receipt:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, DewDataError):
            raise error.cause from None
        raise WorkerError(f"a Ray task failed: {error}") from error
    except ray.exceptions.RayError as error:
        raise WorkerError(f"a Ray task was lost {_RETRIES + 1} times, the last time by: {error}") from error


def _do(setting: Setting, number: int) -> Receipt:
    return _job(_Hashed(setting)).run(number)


class _Hashed:
    """A setting as a key: the plan's id stands for all of it."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def __hash__(self) -> int:
        return hash(self.setting.plan)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashed) and other.setting == self.setting


@cache
def _job(key: _Hashed) -> Job:
    """The job, made once in each process of the cluster."""
    return key.setting.job()


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise OptionsError('runner="ray" needs the package ray: pip install "dew-core[ray]"') from error
