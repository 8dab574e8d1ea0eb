"""What a provider's author imports: the hook, the `Provider` record, and what `open` receives.

A provider opens sources; core makes the `Dataset`, so that order, position, validation and mixtures are the same for
everyone. A plugin is a module with one hook implementation::

    from dew.data.provider import LoadRequest, Provider, hookimpl

    def open_split(request: LoadRequest, split: str) -> RecordSource: ...

    EXAMPLE = Provider(prefix="example", summary="...", options=ExampleOptions, open=open_split)

    @hookimpl
    def dew_provider() -> Provider:
        return EXAMPLE

and an entry point `example = "dew_example.plugin"` in the group `dew.providers`.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import pluggy

from dew.data import checks
from dew.data.dataset import Batch, DataPartition
from dew.data.errors import OptionsError, OptionsTypeError
from dew.data.loading import Loading
from dew.data.source import Preprocess, RecordSource
from dew.data.stream import Remainder

API_VERSION: Final = 1
ENTRY_POINT_GROUP: Final = "dew.providers"
ACCEPTS: Final = frozenset({"streaming", "shuffle_buffer", "dataset"})

hookspec = pluggy.HookspecMarker("dew")
hookimpl = pluggy.HookimplMarker("dew")


@attrs.frozen(kw_only=True)
class LoadRequest:
    """What `dew.data.load` was asked for, checked.

    Args:
        name: what stands after the first `/` of `"prefix/name"`.
        batch: the global batch.
        options: an instance of the provider's options class; its defaults where the caller gave none.
        preprocess: as given to `load`. Core applies it to a record source; a stream applies it itself.
        seed: of the run.
        records: number of records as stated by the caller, for sources that do not know theirs.
        shuffle_buffer, streaming, dataset: non-default only for providers that accept them.
        validation: True while the validation split is opened.
        val_remainder, valid_field: how a pass ends, for a validation stream, which ends its passes itself.
        loading: how batches will be read.
    """

    name: str
    batch: int
    options: Any = None
    preprocess: Preprocess | None = None
    seed: int = 0
    records: int | None = None
    shuffle_buffer: int = 0
    streaming: bool = False
    dataset: Any = None
    validation: bool = False
    val_remainder: Remainder = "pad"
    valid_field: str = "valid"
    loading: Loading = attrs.field(factory=Loading)


OpenSplit: TypeAlias = "Callable[[LoadRequest, str], RecordSource | Callable[[DataPartition], Iterator[Batch]]]"
"""Opens one split: a record source, or (for streams without random access) a callable from a partition to an iterator.

Raises `SplitError` listing the splits there are when there is none of that name.
"""


@attrs.frozen(kw_only=True)
class ShowRequest:
    """What `dew peek` asks a provider's `show` to draw.

    Args:
        batch: the batch of one step.
        ids: the records that it holds, None where the stream cannot say.
        source: what was opened, None for a stream without random access.
        draws: row -> the draws that its record was read with, to tell what chance chose; None where none were.
        moving: moving pictures are wanted where the data moves.
    """

    batch: Batch
    ids: tuple[int, ...] | None = None
    source: RecordSource | None = None
    draws: "Callable[[int], np.random.Generator] | None" = None
    moving: bool = False


@attrs.frozen(kw_only=True)
class Picture:
    """One picture of a batch, encoded.

    Args:
        name: what it shows, such as the field's name; distinct within one answer.
        media_type: such as `"image/png"`, `"image/webp"`, `"image/svg+xml"`.
        data: the file's bytes.
        alt: what a reader who cannot see it should know.
    """

    name: str
    media_type: str
    data: bytes = attrs.field(repr=False)
    alt: str


def _accepts(_instance: object, _attribute: "attrs.Attribute[frozenset[str]]", value: frozenset[str]) -> None:
    if unknown := sorted(value - ACCEPTS):
        raise OptionsError(f"a provider can accept {sorted(ACCEPTS)}, got {unknown}")


def _target(_instance: object, attribute: "attrs.Attribute[str | None]", value: str | None) -> None:
    if value is not None and value.count(":") != 1:
        raise OptionsError(f'{attribute.name} must be "module:attribute", got {value!r}')


@attrs.frozen(kw_only=True)
class Provider:
    """One prefix of `dew.data.load`.

    Args:
        prefix: what stands before the `/`; the same as the entry point's name.
        summary: one line for `dew providers`.
        options: the provider's options class, or None. Its defaults stand in when the caller gives no options; where a
            field has none, `load` asks for it. Its `val_split` is the split to validate on when the caller names none.
        open: opens one split, see `OpenSplit`.
        api: the interface version that the plugin was written for.
        needs_preprocess: rows have a shape of their own, so `load` refuses to guess a `preprocess`.
        accepts: which of "streaming", "shuffle_buffer", "dataset" mean something to it.
        cli: "module:attribute" of a click command or group for `dew <prefix> ...`, imported only then.
        show: "module:attribute" of a function `ShowRequest -> Sequence[Picture]` for `dew peek`, imported only then.
    """

    prefix: str = attrs.field()
    summary: str
    options: type | None
    open: OpenSplit
    api: int = attrs.field(default=API_VERSION, validator=checks.count())
    needs_preprocess: bool = False
    accepts: frozenset[str] = attrs.field(default=frozenset(), converter=frozenset, validator=_accepts)
    cli: str | None = attrs.field(default=None, validator=_target)
    show: str | None = attrs.field(default=None, validator=_target)

    @prefix.validator  # pyright: ignore[reportAttributeAccessIssue, reportUntypedFunctionDecorator, reportUnknownMemberType]
    def _check_prefix(self, _attribute: "attrs.Attribute[str]", value: object) -> None:
        if not isinstance(value, str):
            raise OptionsTypeError(f"a provider's prefix must be a str, got {value!r} ({type(value).__name__})")
        if not value or "/" in value:
            raise OptionsError(f"a provider's prefix must be a word without '/', got {value!r}")


class ProviderHooks:
    """The hooks of a provider plugin, validated by pluggy."""

    @hookspec
    def dew_provider(self) -> Provider:  # pyright: ignore[reportReturnType]
        """The module's one provider."""
