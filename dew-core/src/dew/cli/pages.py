"""`dew peek --html`: one self-contained page of one step.

The page loads nothing: its style and pictures are in it, and its content security policy forbids everything else,
scripts too. Whatever comes from the data is text, escaped, and isolated from the direction of the words around it.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

import attrs
import numpy as np

from dew.cli.look import Look, cut, facts, flat, name_text, plain, sample_text, shape_text, short, visible
from dew.cli.texts import Piece, RowText
from dew.data.provider import Picture
from dew.tokens.chat.roles import ROLES
from dew.tokens.chat.show import COLOURS
from dew.tokens.show import CYCLE

_POLICY: Final = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_MOST_ROWS: Final = 64  # rows of the batch that are listed
_MOST_IDS: Final = 48  # record ids that are shown unfolded
_MOST_VALUES: Final = 8
_MOST_LETTERS, _MOST_LETTERS_OF_A_PIECE = 600, 20_000
STYLE: Final = """
:root{color-scheme:light dark;--page:#fbfbfc;--card:#fff;--ink:#1c2026;--soft:#5b636f;--line:#dfe2e8;--mark:#1a66c9;
--zebra:#f4f5f8;--bar:#8db4e8}
@media(prefers-color-scheme:dark){:root{--page:#14161a;--card:#1b1e24;--ink:#e6e8ec;--soft:#a2aab6;--line:#333842;
--mark:#7db4ff;--zebra:#20242b;--bar:#3f6aa3}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
header,main,footer{max-width:76rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:1.75rem}
h1{font-size:1.45rem;line-height:1.25;margin:0 0 .35rem;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:0 0 .75rem}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:1rem 1.15rem;margin:1.1rem 0}
.kicker,footer,figcaption,.note,dt{color:var(--soft)}
.kicker{margin:0 0 .15rem;font-size:.85rem}
footer{font-size:.85rem;padding-bottom:2rem}
a{color:var(--mark)}
nav ul{display:flex;flex-wrap:wrap;gap:.25rem 1.1rem;list-style:none;padding:0;margin:.75rem 0 0}
:focus-visible{outline:3px solid var(--mark);outline-offset:2px;border-radius:4px}
dl{display:flex;flex-wrap:wrap;gap:.4rem 1.75rem;margin:0}
dl div{min-width:0}
dt{font-size:.8rem}
dd{margin:0;overflow-wrap:anywhere}
.wide{overflow-x:auto}
.wide+.wide{margin-top:1.1rem}
table{border-collapse:collapse;font-size:.9rem;min-width:100%}
caption{text-align:left;color:var(--soft);padding:0 0 .5rem}
th,td{text-align:left;vertical-align:top;padding:.35rem .9rem .35rem 0;border-bottom:1px solid var(--line)}
thead th{color:var(--soft);font-weight:600;white-space:nowrap}
th bdi{display:inline-block;max-width:24rem;overflow-wrap:break-word;white-space:normal}
tbody tr:nth-child(even){background:var(--zebra)}
td.text{min-width:16rem;max-width:36rem;overflow-wrap:anywhere}
td.values:not(.text),td code{white-space:nowrap}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;width:1%}
.role{color:#111;box-shadow:inset -1px 0 #fff;border-radius:2px}
code,pre,.values{font:.85rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre{margin:.75rem 0 0;padding:.75rem;background:var(--zebra);border-radius:6px;overflow:auto;max-height:28rem}
pre.flow{white-space:pre-wrap;overflow-wrap:anywhere;max-height:none}
figure{margin:0 0 1.25rem}
figure:last-child{margin-bottom:0}
img{display:block;height:auto;max-width:max(100%,44rem)}
figcaption{font-size:.85rem;margin-top:.4rem}
summary{cursor:pointer}
.bar{display:block;height:.7rem;margin-top:.35rem;border-radius:3px;background:var(--bar)}
td.track{width:45%;min-width:8rem}
"""


@attrs.frozen(kw_only=True)
class About:
    """What was asked for, in the order in which it is shown."""

    source: str
    split: str
    seed: int | None
    note: str | None = None


@attrs.frozen
class Section:
    """A part of the page: its anchor, its heading and its HTML."""

    anchor: str
    heading: str
    body: str


def page(
    seen: Look,
    about: About,
    *,
    pictures: Sequence[Picture] = (),
    texts: Mapping[str, Sequence[RowText]] | None = None,
    statistics: Mapping[str, Mapping[str, int]] | None = None,
) -> str:
    """The whole page."""
    sections = [
        Section("fields", "Fields", _fields(seen)),
        *([Section("pictures", "Pictures", "".join(map(_figure, pictures)))] if pictures else []),
        *([Section("text", "Text", _texts(seen, texts))] if texts else []),
        *([Section("statistics", "Statistics", _statistics(statistics))] if statistics else []),
        Section("rows", "Rows", _rows(seen)),
        Section("position", "Position", _position(seen)),
    ]
    return document(about.source, _summary(seen, about), sections)


def document(title: str, summary: str, sections: Sequence[Section]) -> str:
    """A page with a heading, a summary in HTML, links to its sections, and these."""
    links = "".join(f'<li><a href="#{one.anchor}">{one.heading}</a></li>' for one in sections)
    body = "".join(
        f'<section id="{one.anchor}" aria-labelledby="{one.anchor}-h"><h2 id="{one.anchor}-h">{one.heading}</h2>'
        f"{one.body}</section>"
        for one in sections
    )
    nav = f'<nav aria-label="On this page"><ul>{links}</ul></nav>' if len(sections) > 1 else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{text(title)} - dew peek</title><style>{STYLE}</style></head>\n"
        f'<body><header><p class="kicker">dew peek</p><h1>{said(title)}</h1>{summary}{nav}</header>\n'
        f"<main>{body}</main>\n<footer>Written by <code>dew peek</code>. Nothing on this page is loaded from elsewhere."
        "</footer></body></html>\n"
    )


def text(value: object) -> str:
    """Text of the data as HTML: escaped, with what cannot be shown written out."""
    return escape(visible(str(value)))


def said(value: object) -> str:
    """The same, isolated: its direction does not reach the words around it."""
    return f"<bdi>{text(value)}</bdi>"


def facts_list(entries: Mapping[str, object]) -> str:
    """Pairs of a word and a value."""
    return (
        "<dl>"
        + "".join(f"<div><dt>{word}</dt><dd>{said(value)}</dd></div>" for word, value in entries.items())
        + "</dl>"
    )


def _summary(seen: Look, about: About) -> str:
    entries: dict[str, object] = {"step": seen.step, "global batch": f"{seen.rows} rows", "split": about.split}
    if seen.source is not None:
        entries["records in the split"] = f"{len(seen.source):,}"
    if seen.epochs is not None:
        first, last = seen.epochs
        entries["epoch"] = first if first == last else f"{first} to {last}"
    if about.seed is not None:
        entries["seed"] = about.seed
    note = "" if about.note is None else f'<p class="note">{text(about.note)}</p>'
    return facts_list(entries) + note


def _scrolled(label: str, body: str) -> str:
    """What may be wider than the page, reached by keyboard too."""
    return f'<div class="wide" tabindex="0" role="region" aria-label="{escape(label)}">{body}</div>'


def _fields(seen: Look) -> str:
    rows: list[str] = []
    for name, value in flat(seen.batch):
        found = facts(value)
        rows.append(
            f'<tr><th scope="row">{said(name_text(name))}</th><td><code>{shape_text(found["shape"])}</code></td>'
            f"<td><code>{text(found['dtype'])}</code></td>"
            f'<td class="number">{text(short(found["min"]))}</td><td class="number">{text(short(found["max"]))}</td>'
            f'<td class="text values">{said(sample_text(found))}</td></tr>'
        )
    head = _head(["field", "shape", "dtype", "min", "max", "first values"], numbers=("min", "max"))
    what = "One record, as it is stored" if seen.alone is not None else "Every field of the batch"
    return _scrolled("Fields", f"<table><caption>{what}.</caption>{head}<tbody>{''.join(rows)}</tbody></table>")


def _head(columns: Sequence[str], numbers: Sequence[str] = ()) -> str:
    cells = "".join(
        f'<th scope="col"{" class=number" if name in numbers else ""}>{said(name_text(name))}</th>' for name in columns
    )
    return f"<thead><tr>{cells}</tr></thead>"


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.data).decode()
    image = f'<img alt="{text(picture.alt)}" src="data:{picture.media_type};base64,{data}">'
    return f"<figure>{_scrolled(picture.name, image)}<figcaption>{said(picture.name)}</figcaption></figure>"


def _texts(seen: Look, texts: Mapping[str, Sequence[RowText]]) -> str:
    """Each row's text, folded but for the first, in the colours of its documents or of its roles."""
    parts: list[str] = []
    for name, rows in texts.items():
        parts.append(f'<p class="note">{said(name)}, the first {len(rows)} rows; {_what_colours(rows)}</p>')
        for row in rows:
            record = f"record {_id(seen.ids, row.row)}" if seen.ids is not None else f"row {row.row}"
            spans = "".join(map(_piece, row.pieces))
            unfolded = "" if row.row else " open"
            parts.append(
                f'<details{unfolded}><summary>{record}</summary><pre class="flow" tabindex="0">{spans}</pre></details>'
            )
    return "".join(parts)


def _what_colours(rows: Sequence[RowText]) -> str:
    pieces = [piece for row in rows for piece in row.pieces]
    roles = sorted({piece.role for piece in pieces if piece.role is not None})
    if roles:
        return " ".join(_coloured(_role_name(role), *_role_colour(role)) for role in roles)
    if any(piece.segment is not None for piece in pieces):
        return "one colour a document, in the order of the packing map."
    return "windows of the corpus as they come."


def _piece(piece: Piece) -> str:
    words = text(cut(piece.text, _MOST_LETTERS_OF_A_PIECE))
    if piece.role is not None:
        return _coloured(words, *_role_colour(piece.role))
    if piece.segment is None:
        return f"<span>{words}</span>"
    return _coloured(words, CYCLE[(piece.segment - 1) % len(CYCLE)], f"segment {piece.segment}")


def _coloured(words: str, colour: str, title: str) -> str:
    return f'<span class="role" style="background:{colour}" title="{title}">{words}</span>'


def _role_name(role: int) -> str:
    return next((name for name, number in ROLES.items() if number == role), f"role {role}")


def _role_colour(role: int) -> tuple[str, str]:
    name = _role_name(role)
    return COLOURS.get(name, COLOURS["template"])[1], name


def _rows(seen: Look) -> str:
    """Each row: its record, and the first values of every field."""
    fields = [(name, value if seen.alone is None else [value]) for name, value in flat(seen.batch)]
    fields = [(name, value) for name, value in fields if np.ndim(value) or seen.alone is not None]
    count = min((len(value) for _, value in fields), default=0)
    ids = seen.shown_ids
    rows = [
        f'<tr><th scope="row" class="number">{row}</th><td class="number">{_id(ids, row)}</td>'
        + "".join(_cell(value[row]) for _, value in fields)
        + "</tr>"
        for row in range(min(count, _MOST_ROWS))
    ]
    caption = f"The first {len(rows)} of {count} rows." if count > len(rows) else f"All {count} rows."
    head = _head(["row", "record", *(name for name, _ in fields)], numbers=("row", "record"))
    return _scrolled("Rows", f"<table><caption>{caption}</caption>{head}<tbody>{''.join(rows)}</tbody></table>")


def _id(ids: Sequence[int] | None, row: int) -> str:
    return "unknown" if ids is None or row >= len(ids) else str(ids[row])


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return f'<td class="text">{said(cut(value, _MOST_LETTERS))}</td>'
    array = np.asarray(value)
    values = " ".join(short(plain(item)) for item in array.reshape(-1)[:_MOST_VALUES])
    if array.ndim == 0:
        return f'<td class="values">{said(cut(values, _MOST_LETTERS))}</td>'
    if array.ndim > 1 and array.dtype.kind in "biuf" and array.size > _MOST_VALUES:
        mean = short(float(array.mean()))
        values = f"{short(plain(array.min()))} to {short(plain(array.max()))}, mean {mean}"
        return f'<td class="values">{said(values)}<br><span class="note">{shape_text(list(array.shape))}</span></td>'
    return f'<td class="values">{said(cut(values, _MOST_LETTERS) + (" ..." if array.size > _MOST_VALUES else ""))}</td>'


def _statistics(statistics: Mapping[str, Mapping[str, int]]) -> str:
    return "".join(counts_table(name, counts) for name, counts in statistics.items())


def counts_table(name: str, counts: Mapping[str, int]) -> str:
    """Counts as a table with bars, the longest for the greatest."""
    most = max(counts.values(), default=0) or 1
    rows = "".join(
        f'<tr><th scope="row">{said(label)}</th><td class="number">{count:,}</td><td class="track">'
        f'<span class="bar" style="width:{100 * count / most:.1f}%"></span></td></tr>'
        for label, count in counts.items()
    )
    columns = (
        f'<thead><tr><th scope="col">{said(name)}</th><th scope="col" class="number">count</th><td></td></tr></thead>'
    )
    return _scrolled(name, f"<table>{columns}<tbody>{rows}</tbody></table>")


def _position(seen: Look) -> str:
    entries: dict[str, object] = {}
    if seen.places is not None:
        entries["places in the order"] = f"{seen.places[0]} to {seen.places[1] - 1}"
    state = ""
    if seen.state is not None:
        saved = text(json.dumps(seen.state, indent=2))
        state = (
            "<details><summary>The position as JSON: a run that restores it reads this step next</summary>"
            f'<pre tabindex="0">{saved}</pre></details>'
        )
    else:
        state = '<p class="note">This stream has no position of its own.</p>'
    return facts_list(entries) + "".join(_records(seen)) + state


def _records(seen: Look) -> Iterator[str]:
    ids = seen.ids
    if ids is None:
        yield "<p>Which records these are is not known: the stream has no order.</p>"
        return
    listed = f'<span class="values">{" ".join(map(str, ids))}</span>'
    if len(ids) <= _MOST_IDS:
        yield f"<p>Records: {listed}</p>"
    else:
        yield f"<details><summary>Records: {len(ids)}</summary><p>{listed}</p></details>"
