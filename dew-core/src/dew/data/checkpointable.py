"""What lets other trainers save a stream with the checkpoint classes they have.

Orbax (`StatefulCheckpointable`) calls `save` and `load`, Grain's `CheckpointHandler` calls `get_state`, `set_state` and
`start_prefetch` of whatever is one of its iterators. Neither library is imported here.
"""

import sys
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from dew.data.errors import PositionError
from dew.data.position import State

_FILE = "position.json"


class _Positioned(Protocol):
    def get_state(self) -> State: ...
    def set_state(self, state: State) -> None: ...


class Checkpointable:
    """Mixed into a stream whose position is the same in every process.

    Orbax: `save_checkpointables(path, {"data": stream, ...})` writes one `position.json`, which restores on any process
    count. Grain: `CheckpointSave(stream)` and `CheckpointRestore(stream)` work too, on the same process count, since
    that handler names its files by it.
    """

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The class, as ever. `isinstance` asks for it, which is the moment to enter it in Grain's list of iterators.

        It cannot be done earlier: importing Grain takes seconds, and a script may import it at any time.
        """
        iterators = getattr(sys.modules.get("grain"), "DatasetIterator", None)
        if iterators is not None:
            iterators.register(type(self))
        return type(self)

    async def save(self: _Positioned, directory: Any) -> Awaitable[None]:
        """Orbax's protocol: the position as it is now; the awaitable writes it, from process 0."""
        import json

        return _write(directory, json.dumps(self.get_state()))

    async def load(self: _Positioned, directory: Any) -> Awaitable[None]:
        """Orbax's protocol: the awaitable sets the position that `save` wrote.

        Raises:
            PositionError: there is no position in `directory`, or it does not fit; from the awaitable.
        """
        return _read(directory, self.set_state)


async def _write(directory: Any, text: str) -> None:
    import asyncio

    import jax

    folder = await directory.await_creation()
    if jax.process_index() == 0:  # pyright: ignore[reportUnknownMemberType]
        await asyncio.to_thread((folder / _FILE).write_text, text)


async def _read(directory: Any, set_state: Callable[[State], None]) -> None:
    import asyncio
    import json

    try:
        text = await asyncio.to_thread((directory / _FILE).read_text)
    except FileNotFoundError as error:
        raise PositionError(f"{directory} has no {_FILE}: the position of a stream was not saved there") from error
    try:
        state = json.loads(text)
    except ValueError as error:
        raise PositionError(f"{directory / _FILE} is damaged: {error}") from error
    set_state(state)
