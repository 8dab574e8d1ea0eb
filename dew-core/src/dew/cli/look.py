"""One step of a source, read once: what every form of `dew peek` shows."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from dew.cli.opening import Asked, dataset_stream
from dew.data.errors import CollateError, OptionsError

if TYPE_CHECKING:
    from dew.data.dataset import Batch, Dataset
    from dew.data.source import RecordSource
    from dew.data.stream import RecordStream, ValidationPass

SAMPLE: Final = 6
"""Values of a field that stand in the table."""
_LONGEST: Final = 80  # letters of one such value, and of a field's name

# Control characters, lone surrogates, and those that turn the direction of what follows.
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@attrs.frozen(kw_only=True)
class Look:
    """The batch of one step, and what is known of it.

    Args:
        step: which.
        rows: the global batch.
        batch: the fields, or those of one record where `alone` is not None.
        ids: the record of each row, None where the stream cannot say.
        alone: the one record that is shown, where the rows as they are stored form no batch.
        source: what was opened, None for a stream without random access.
        places: `[start, stop)` of the step in the order, None where there is none.
        epochs: of the first and the last place.
        state: the position from which a run reads this step next.
    """

    step: int
    rows: int
    batch: Mapping[str, Any]
    ids: tuple[int, ...] | None = None
    alone: int | None = None
    source: "RecordSource | None" = None
    places: tuple[int, int] | None = None
    epochs: tuple[int, int] | None = None
    state: Mapping[str, Any] | None = None

    @property
    def shown_ids(self) -> tuple[int, ...] | None:
        """The records of the rows that `batch` has."""
        return self.ids if self.alone is None else (self.alone,)


def look(dataset: "Dataset", asked: Asked, step: int) -> Look:
    """Step `step` of `dataset`, which `asked` has opened.

    Raises:
        OptionsError: the stream ends before it.
        CollateError: the records form no batch, and a `preprocess` was applied to them.
    """
    from dew.data.stream import RecordStream, ValidationPass

    stream = dataset_stream(dataset)
    try:
        if isinstance(stream, RecordStream):
            return _in_order(stream, asked, step)
        batch = _nth(stream, step)
        if isinstance(stream, ValidationPass):
            return _in_pass(stream, batch, step, dataset.batch)
        return Look(step=step, rows=dataset.batch, batch=batch)
    finally:
        if hasattr(stream, "close"):
            cast("Any", stream).close()


def _in_order(stream: "RecordStream", asked: Asked, step: int) -> Look:
    ids = tuple(int(record) for record in stream.ids(step))
    position = stream.position.at_step(step)
    start, stop = position.span(step)
    records = stream.order.records
    state = position.to_json()
    known = Look(
        step=step,
        rows=stop - start,
        batch={},
        ids=ids,
        source=stream.source,
        places=(start, stop),
        epochs=(start // records, (stop - 1) // records),
        state=state,
    )
    try:
        stream.set_state(state)
        return attrs.evolve(known, batch=next(stream))
    except CollateError:
        if not asked.stored_rows:
            raise
        return attrs.evolve(known, batch=stream.source[ids[0]], alone=ids[0])


def _in_pass(stream: "ValidationPass", batch: "Batch", step: int, rows: int) -> Look:
    """A pass reads in the source's own order, and fills its last batch up with record 0."""
    records = len(stream.source)
    ids = tuple(place if place < records else 0 for place in range(step * rows, (step + 1) * rows))
    places = (step * rows, min((step + 1) * rows, records))
    return Look(step=step, rows=rows, batch=batch, ids=ids, source=stream.source, places=places, epochs=(0, 0))


def _nth(stream: "Iterator[Batch]", step: int) -> "Batch":
    """Batch `step` of a stream that can only be read forwards."""
    for number, batch in enumerate(stream):
        if number == step:
            return batch
    raise OptionsError(f"step {step} was asked for, but the stream ended before it")


def flat(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Name and value of each field; of nested ones by `outer.inner`."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from flat(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def facts(value: Any) -> dict[str, Any]:
    """Shape, dtype, range and first values of a field, as JSON values."""
    import numpy as np

    array = np.asarray(value)
    ordered = array.dtype.kind in "biuf" and array.size > 0
    return {
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "min": plain(array.min()) if ordered else None,
        "max": plain(array.max()) if ordered else None,
        "sample": [plain(item) for item in array.reshape(-1)[:SAMPLE]],
    }


def plain(value: Any) -> Any:
    """A JSON value; a number that JSON cannot hold, or a value of another type, as its text."""
    own = value.item() if hasattr(value, "item") else value
    if isinstance(own, bool | int) or (isinstance(own, float) and math.isfinite(own)):
        return own
    return own if isinstance(own, str) else str(own)


def short(value: Any) -> str:
    """A number as people read it; nothing for None."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def shape_text(shape: list[int]) -> str:
    """As Python writes it: `(8, 65)`, `(8,)`."""
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def sample_text(found: Mapping[str, Any]) -> str:
    """The first values of `facts`, and whether there are more."""
    words = [cut(short(item), _LONGEST) for item in found["sample"]]
    return " ".join([*words, *(["..."] if math.prod(found["shape"]) > len(words) else [])])


def cut(text: str, most: int) -> str:
    """At most `most` letters of `text`, and how many there are where there are more."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} letters)"


def name_text(name: str) -> str:
    """The name of a field, which is data too: what acts on a terminal is written out, and a long one is cut."""
    return cut(visible(name), _LONGEST)


def visible(text: str) -> str:
    """`text` with what cannot be shown, or would act on a terminal or on the words around it, written out."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
