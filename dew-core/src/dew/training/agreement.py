"""What the processes of a pool tell each other: small values, and whether one of them failed.

The one idea: no process goes on, or stops, on what it alone knows. Each of these calls is made by all processes at the
same point and ends the same way in all of them: with everybody's value, or with an error in every process.
"""

# JAX leaves parts of its own signatures untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import hashlib
import json
import socket
from collections.abc import Callable
from typing import Any, Final

import jax
import numpy as np
from jax.experimental import multihost_utils

from dew.data.errors import PoolError

_NUMBER: Final = 8  # bytes of an integer
_HEAD: Final = 2 * _NUMBER + hashlib.sha256().digest_size


def gathered(payload: bytes) -> list[bytes]:
    """The payload of every process, by process index; the same list everywhere. Equal payloads travel as digests."""
    if jax.process_count() == 1:
        return [payload]
    head = _number(jax.process_index()) + _number(len(payload)) + hashlib.sha256(payload).digest()
    heads = sorted(row.tobytes() for row in _all(head, _HEAD))
    if len({each[_NUMBER:] for each in heads}) == 1:
        return [payload] * len(heads)
    lengths = [int.from_bytes(each[_NUMBER : 2 * _NUMBER]) for each in heads]
    rows = sorted(row.tobytes() for row in _all(_number(jax.process_index()) + payload, _NUMBER + max(lengths)))
    return [row[_NUMBER : _NUMBER + length] for row, length in zip(rows, lengths, strict=True)]


def exchange(doing: str, make: Callable[[], Any]) -> list[Any]:
    """What `make` returned in each process, JSON values, by process index.

    Args:
        doing: for the message, such as "saving step 10".
        make: runs in every process.

    Raises:
        Exception: in the process where `make` raised, that error.
        PoolError: in every other process; names the first process that failed, its host, and its error.
    """
    error: Exception | None = None
    try:
        said: dict[str, Any] = {"value": make()}
    except Exception as failed:
        error = failed
        said = {"error": f"process {jax.process_index()} on {socket.gethostname()}: {type(failed).__name__}: {failed}"}
    answers = [json.loads(each) for each in gathered(json.dumps(said).encode())]
    if error is not None:
        raise error
    for answer in answers:
        if "error" in answer:
            raise PoolError(f"{doing} failed in {answer['error']}; so it was given up in every process")
    return [answer["value"] for answer in answers]


def told(doing: str, make: Callable[[], Any]) -> Any:
    """What `make` returned in process 0, a JSON value; it runs there alone.

    Raises:
        Exception, PoolError: as `exchange`.
    """
    if jax.process_count() == 1:
        return make()
    text = ""

    def length() -> int:
        nonlocal text
        text = json.dumps(make()) if jax.process_index() == 0 else ""
        return len(text.encode())

    size = exchange(doing, length)[0]
    sent = np.frombuffer(text.encode() or bytes(size), np.uint8)
    return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(sent)).tobytes())


def _number(value: int) -> bytes:
    return value.to_bytes(_NUMBER)


def _all(payload: bytes, width: int) -> list[Any]:
    """Each process's payload, filled up to `width` bytes; bytes, since JAX would narrow wider integers."""
    row = np.frombuffer(payload.ljust(width, b"\0"), np.uint8)
    return list(np.asarray(multihost_utils.process_allgather(row), np.uint8))
