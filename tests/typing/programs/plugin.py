"""A provider as a third party writes it."""

from collections.abc import Mapping, Sequence
from typing import Any, assert_type

import attrs
import numpy as np

from dew.data import Dataset, RecordSource, register
from dew.data.provider import LoadRequest, Picture, Provider, ShowRequest, hookimpl


@attrs.frozen(kw_only=True)
class Options:
    rows: int = 8


class Rows:
    """Records with random access, and a method of each optional kind."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int, /) -> Mapping[str, Any]:
        return {"x": np.full(3, index)}

    def fingerprint(self) -> str:
        return "rows"


class NoLength:
    def __getitem__(self, index: int, /) -> Mapping[str, Any]:
        return {"x": index}


def open_split(request: LoadRequest, split: str) -> Rows:
    assert_type(request.batch, int)
    assert_type(request.seed, int)
    print(request.bacth)  # error: reportAttributeAccessIssue
    return Rows(request.options.rows)


def show(request: ShowRequest) -> Sequence[Picture]:
    assert_type(request.ids, tuple[int, ...] | None)
    assert_type(request.source, RecordSource | None)
    return [Picture(name="x", media_type="image/png", data=b"", alt="nothing")]


def wrong(request: LoadRequest) -> Rows:
    return Rows(8)


ROWS = Provider(prefix="rows", summary="rows", options=Options, open=open_split, show="plugin:show")
Provider(prefix="rows", summary="rows", options=Options, open=wrong)  # error: reportArgumentType
Provider(prefix="rows", summary="rows", options=Options)  # error: reportCallIssue
Provider("rows", summary="rows", options=Options, open=open_split)  # error: reportCallIssue
Picture(name="x", media_type="image/png", data="text", alt="")  # error: reportArgumentType

source: RecordSource = Rows(8)
other: RecordSource = NoLength()  # error: reportAssignmentType


@hookimpl
def dew_provider() -> Provider:
    return ROWS


def load_all() -> Dataset:
    register(ROWS, prefix="rows")
    register(ROWS, prefx="rows")  # error: reportCallIssue
    from dew.data import load

    return load("rows/x", batch=2, options=Options(rows=4))
