"""`train.py:data`: the `Dataset` that a user's own program makes.

The file is run as a module of its own, not as `__main__`, so that what stands under a main guard does not begin to
train. While the dataset is in use, what lies beside the file can be imported, as if Python ran the file itself, and
worker processes get the file's functions by value; afterwards nothing of this is left.
"""

import inspect
import re
import sys
import traceback
import types
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dew.data.errors import OptionsError, SourceNotFoundError

if TYPE_CHECKING:
    from dew.data.dataset import Dataset

_WRITTEN: Final = re.compile(r"(?P<file>.+\.py):(?P<name>[^/\\:]*)")
_GUARDED: Final = "what stands under `if __name__ == '__main__':` is not run"


def is_program(source: str) -> bool:
    """Whether `source` is written `FILE.py:NAME`, or is a Python file without the name."""
    return _WRITTEN.fullmatch(source) is not None or (source.endswith(".py") and Path(source).is_file())


@contextmanager
def program_dataset(source: str) -> "Generator[Dataset, None, None]":
    """The dataset that `FILE.py:NAME` names: a `Dataset`, or a function without arguments that returns one.

    Raises:
        SourceNotFoundError: there is no such file.
        OptionsError: the file raises, has no such name, or the name is something else.
    """
    written = _WRITTEN.fullmatch(source)
    file, name = (source, "") if written is None else written.group("file", "name")
    path = Path(file)
    if not path.is_file():
        raise SourceNotFoundError(f"{source} was asked for, but there is no file {file}")
    with _module(path) as module:
        yield _dataset(module, file, name)


@contextmanager
def _module(path: Path) -> Generator[types.ModuleType, None, None]:
    """The file, run; it and its directory are known to this process for as long as the context lasts."""
    import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

    module = types.ModuleType(f"dew_program_{path.stem}")
    module.__file__ = str(path.resolve())
    before, others = sys.path[:], sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module  # classes look their module up there
    sys.path.insert(0, str(path.resolve().parent))
    cloudpickle.register_pickle_by_value(module)  # pyright: ignore[reportUnknownMemberType]
    try:
        _run(module, path)
        yield module
    finally:
        cloudpickle.unregister_pickle_by_value(module)  # pyright: ignore[reportUnknownMemberType]
        sys.path[:] = before
        del sys.modules[module.__name__]
        if others is not None:
            sys.modules[module.__name__] = others


def _run(module: types.ModuleType, path: Path) -> None:
    """Runs the file, as if it had been given no arguments."""
    arguments, sys.argv = sys.argv, [str(path)]
    try:
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        raise _failed(str(path), error) from error
    finally:
        sys.argv = arguments


def _failed(file: str, error: BaseException) -> OptionsError:
    """What the file raised, with the last of its lines that took part."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f", line {lines[-1]}," if lines else ""
    said = f": {error}" if str(error) else ""
    return OptionsError(
        f"{file}{where} raised {type(error).__name__}{said}; it is run without arguments, and {_GUARDED}"
    )


def _dataset(module: types.ModuleType, file: str, name: str) -> "Dataset":
    from dew.data.dataset import Dataset

    if not name or not hasattr(module, name):
        asked = f"{file}:{name} was asked for, but there is no {name!r}" if name else f"{file} names no dataset"
        raise OptionsError(f"{asked}: {_there_is(module, file)}")
    found = getattr(module, name)
    made = _called(found, file, name) if callable(found) else found
    if not isinstance(made, Dataset):
        how = "()" if callable(found) else ""
        advice = f"; give {file} a line such as data = {name}{how}.load(batch=...)" if hasattr(made, "load") else ""
        raise OptionsError(f"{file}:{name}{how} must be a dew.data.Dataset, got {_kind(made)}{advice}")
    return made


def _called(found: Any, file: str, name: str) -> Any:
    try:
        needed = [
            parameter.name
            for parameter in inspect.signature(found).parameters.values()
            if parameter.default is parameter.empty and parameter.kind not in (2, 4)  # *args, **kwargs
        ]
    except (TypeError, ValueError):
        needed = []
    if needed:
        raise OptionsError(
            f"{file}:{name} is called without arguments, and needs {', '.join(needed)}; "
            "name a Dataset, or a function without arguments that returns one"
        )
    try:
        return found()
    except (Exception, SystemExit) as error:
        raise _failed(file, error) from error


def _there_is(module: types.ModuleType, file: str) -> str:
    """The datasets of the module, else its functions."""
    from dew.data.dataset import Dataset

    own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    if datasets := sorted(name for name, value in own.items() if isinstance(value, Dataset)):
        return f"there is {', '.join(f'{file}:{name}' for name in datasets)}"
    functions = sorted(
        f"{name}()"
        for name, value in own.items()
        if isinstance(value, types.FunctionType) and value.__module__ == module.__name__
    )
    found = f", and the functions {', '.join(functions)}" if functions else ""
    return f"it makes no Dataset{found}; {_GUARDED}"


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
