"""Packed batches as pictures: which positions of each row belong to which document, and whose words they are.

A picture is an SVG of plain rectangles, so that core needs no image library to draw it. Its words and its padding
follow the reader's choice of light or dark.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.provider import Picture, ShowRequest
from dew.tokens.chat.roles import ROLES

MOST_ROWS: Final = 64
"""Rows of a batch that are drawn."""

_SEGMENTS: Final = "_segment_ids"
_ROLES: Final = "_roles"

_TOP, _WIDTH, _ROW, _GAP, _PAD = 64, 900, 16, 5, 8  # pixels
_TOLD: Final = 3000  # runs, up to which each says what it is under the pointer
_LETTER: Final = 7  # pixels

CYCLE: Final = ("#6ea3e0", "#e8b04a", "#5bbf97", "#b79be0", "#e88a72", "#7cc6de")
"""Of documents in turn: light enough for black numbers, dark enough to stand on white."""

_OF_ROLES: Final = {
    "template": "#b4bac3",
    "system": "#b08ae0",
    "user": "#6aa8e6",
    "assistant": "#58b876",
    "tool": "#dfb43c",
    "developer": "#e2826f",
}
_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#333}.p{fill:#e4e7eb}.t{stroke:#c4c8d0}.n{fill:#000;font-size:11px}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.p{fill:#2e333c}.t{stroke:#4a505c}.n{fill:#000}}"
)


def show(request: ShowRequest) -> list[Picture]:
    """For each packed field of the batch a map of its documents, and of its roles where it has them.

    A packed field is `<name>_segment_ids`, (rows, S+1) integers with 0 for padding; its roles are `<name>_roles`.
    """
    pictures: list[Picture] = []
    for name, value in request.batch.items():
        segments = np.asarray(value)
        if not name.endswith(_SEGMENTS) or segments.ndim != 2 or segments.dtype.kind not in "iu" or not segments.size:
            continue
        field = name.removesuffix(_SEGMENTS)
        pictures.append(packing_map(segments, request.ids, field=field))
        roles = request.batch.get(field + _ROLES)
        if roles is not None and np.shape(roles) == segments.shape:
            pictures.append(role_map(np.asarray(roles), segments, request.ids, field=field))
    return pictures


def packing_map(segments: npt.NDArray[np.integer], ids: Sequence[int] | None = None, *, field: str = "text") -> Picture:
    """The documents of each row as an SVG; `segments` (rows, S+1) with 0 for padding, `ids` (rows,) record ids."""
    rows, width = segments.shape
    counts = [len(np.unique(row[row > 0])) for row in segments]
    filled = float((segments > 0).mean())
    said = (
        f"{rows} rows of {width} positions, {filled:.1%} filled, "
        f"{sum(counts)} segments ({min(counts)} to {max(counts)} a row)"
    )
    lines = [[_of_segment(run, number) for number, run in enumerate(_runs(row))] for row in segments[:MOST_ROWS]]
    colours = {f"c{number}": colour for number, colour in enumerate(CYCLE)}
    drawn = _Map(title=f"packing of {field}: {said}", width=width, rows=rows, colours=colours, legend={"p": "padding"})
    alt = f"Packing map of {field}: {said}. One bar a row, one colour a document, grey is padding."
    return _picture(f"{field} packing", drawn, lines, ids, alt)


def role_map(
    roles: npt.NDArray[np.integer],
    segments: npt.NDArray[np.integer],
    ids: Sequence[int] | None = None,
    *,
    field: str = "text",
) -> Picture:
    """Whose words each position is, as an SVG; `roles` and `segments` (rows, S+1)."""
    names = {number: name for name, number in ROLES.items()}
    merged = np.where(segments > 0, roles, -1)
    real = merged[merged >= 0]
    shares = {name: float((real == number).mean()) if real.size else 0.0 for number, name in names.items()}
    said = ", ".join(f"{name} {share:.1%}" for name, share in shares.items() if share)
    lines = [[_of_role(run, names) for run in _runs(row)] for row in merged[:MOST_ROWS]]
    colours = {f"r{number}": _OF_ROLES[name] for number, name in names.items()}
    legend = {f"r{number}": name for number, name in names.items() if shares[name]} | {"p": "padding"}
    title = f"roles of {field}: {said}"
    drawn = _Map(title=title, width=roles.shape[1], rows=len(roles), colours=colours, legend=legend)
    return _picture(f"{field} roles", drawn, lines, ids, f"Role map of {field}, by tokens: {said}. One bar a row.")


@attrs.frozen
class _Run:
    """Positions `[start, stop)` of a row that have the same `value`."""

    start: int
    stop: int
    value: int


@attrs.frozen
class _Bar:
    """A run as it is drawn: a class of the style sheet, what it says, and a number that stands in it."""

    start: int
    stop: int
    style: str
    said: str
    number: str = ""


@attrs.frozen(kw_only=True)
class _Map:
    """What a picture has besides its bars."""

    title: str
    width: int
    rows: int
    colours: Mapping[str, str]
    legend: Mapping[str, str]


def _runs(row: npt.NDArray[np.integer]) -> Iterator[_Run]:
    edges = [0, *(np.flatnonzero(row[1:] != row[:-1]) + 1).tolist(), len(row)]
    for start, stop in pairwise(edges):
        yield _Run(start, stop, int(row[start]))


def _of_segment(run: _Run, number: int) -> _Bar:
    where = f"positions {run.start} to {run.stop - 1}, {run.stop - run.start} tokens"
    if run.value <= 0:
        return _Bar(run.start, run.stop, "p", f"padding, {where}")
    return _Bar(run.start, run.stop, f"c{number % len(CYCLE)}", f"segment {run.value}, {where}", str(run.value))


def _of_role(run: _Run, names: Mapping[int, str]) -> _Bar:
    where = f"positions {run.start} to {run.stop - 1}, {run.stop - run.start} tokens"
    known = run.value in names
    name = names[run.value] if known else "padding" if run.value < 0 else f"role {run.value}"
    return _Bar(run.start, run.stop, f"r{run.value}" if known else "p", f"{name}, {where}")


def _picture(name: str, drawn: _Map, lines: Sequence[Sequence[_Bar]], ids: Sequence[int] | None, alt: str) -> Picture:
    labels = [f"row {row}" if ids is None or row >= len(ids) else f"record {ids[row]}" for row in range(len(lines))]
    told = sum(map(len, lines)) <= _TOLD
    left = 2 * _PAD + _LETTER * max(map(len, labels))
    scale = _WIDTH / drawn.width
    width, height = left + _WIDTH + 3 * _PAD, _TOP + len(lines) * (_ROW + _GAP) + _PAD
    style = _STYLE + "".join(f".{key}{{fill:{colour}}}" for key, colour in drawn.colours.items())
    body = [*_legend(drawn, left), *_axis(drawn.width, left, scale, height)]
    for number, (label, bars) in enumerate(zip(labels, lines, strict=True)):
        y = _TOP + number * (_ROW + _GAP)
        body.append(f'<text x="{left - _PAD}" y="{y + 12}" text-anchor="end">{label}</text>')
        body += [_rectangle(bar, left, y, scale, f"{label}: " if told else None) for bar in bars]
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img"><title>{escape(drawn.title)}</title><style>{style}</style>{"".join(body)}</svg>\n'
    )
    return Picture(name=name, media_type="image/svg+xml", data=svg.encode(), alt=alt)


def _legend(drawn: _Map, left: int) -> Iterator[str]:
    more = f" (the first {MOST_ROWS} rows are drawn)" if drawn.rows > MOST_ROWS else ""
    yield f'<text x="{left}" y="16">{escape(drawn.title + more)}</text>'
    x = left
    for style, name in drawn.legend.items():
        yield f'<rect class="{style}" x="{x}" y="25" width="12" height="12"/><text x="{x + 17}" y="35">{name}</text>'
        x += 34 + _LETTER * len(name)


def _axis(positions: int, left: int, scale: float, height: int) -> Iterator[str]:
    for position in range(0, positions, _tick(positions)):
        x = left + position * scale
        yield f'<text x="{x:.1f}" y="{_TOP - 8}" text-anchor="middle">{position}</text>'
        yield f'<path class="t" d="M{x:.1f} {_TOP - 5}V{height - _PAD}"/>'


def _tick(width: int) -> int:
    """1, 2 or 5 times a power of ten, so that there are five to twelve ticks."""
    step = 1
    while width / step > 12:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return step


def _rectangle(bar: _Bar, left: int, y: int, scale: float, told: str | None) -> str:
    x, wide = left + bar.start * scale, (bar.stop - bar.start) * scale
    drawn = max(wide - 0.6, 0.3)  # a hair between bars, so that two of one colour are two
    said = "" if told is None else f"<title>{told}{bar.said}</title>"
    made = f'<rect class="{bar.style}" x="{x:.2f}" y="{y}" width="{drawn:.2f}" height="{_ROW}">{said}</rect>'
    if bar.number and wide > _LETTER * (len(bar.number) + 1):
        made += f'<text class="n" x="{x + wide / 2:.1f}" y="{y + 12}" text-anchor="middle">{bar.number}</text>'
    return made
