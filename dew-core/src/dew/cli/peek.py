"""`dew peek SOURCE`: one batch as a table, as pictures, and as a page, with the records it holds."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from dew.cli.look import Look, facts, flat, look, name_text, sample_text, shape_text, short, visible
from dew.cli.opening import Asked, source_options
from dew.cli.output import console, listed, print_json, row, say, table
from dew.cli.program import is_program
from dew.data.errors import OptionsError

if TYPE_CHECKING:
    from dew.cli.statistics import Statistics
    from dew.cli.texts import RowText
    from dew.data.provider import Picture

_LETTERS = 240  # of a row's text in the terminal


@click.command(short_help="One batch of a source as a table, as pictures, as a page.")
@source_options
@click.option("--step", type=click.IntRange(min=0), default=0, show_default=True, help="The step to look at.")
@click.option("--out", metavar="FILE", help="Draw the step: FILE.png of images and clips, FILE.svg of packed tokens.")
@click.option("--webp", is_flag=True, help="Draw what moves in motion; FILE of --out is then a .webp.")
@click.option("--html", metavar="FILE", help="Write one page with all there is to see; it loads nothing.")
@click.option("--tokenizer", metavar="T", help="Show token ids as text; T as for dew tokenize.")
@click.option("--stats", is_flag=True, help="What the source counts of itself: sizes, formats, lengths.")
@click.option("--roles", metavar="MODEL", help="SOURCE is a file of conversations: colour a row's tokens by role.")
@click.option("--row", "number", type=click.IntRange(min=0), default=0, help="With --roles: which row [0].")
def peek(
    source: str,
    batch: int | None,
    split: str,
    seed: int,
    pairs: tuple[str, ...],
    as_json: bool,
    step: int,
    out: str | None,
    webp: bool,
    html: str | None,
    tokenizer: str | None,
    stats: bool,
    roles: str | None,
    number: int,
) -> None:
    """One batch of SOURCE: shapes, dtypes, ranges, records; with --out and --html also as pictures.

    SOURCE is written as for dew.data.load ("tokens/my-corpus"), or names a dataset of your own program
    ("train.py:data"), which brings its batch, seed and options.

    Or, with --roles and the directory of a model's tokenizer, one conversation of a .jsonl, .json or .parquet file:
    each token in the colour of its role, as dew.data.ChatMessages reads it. There, -o is an option of ChatMessages.
    """
    if roles is not None:
        from dew.cli.roles import show_roles

        if out is not None or webp or stats or tokenizer is not None:
            raise click.UsageError(
                "--out, --webp, --tokenizer and --stats show a batch, --roles shows one conversation"
            )
        show_roles(source, roles, number, pairs=pairs, as_json=as_json, html=html)
        return
    if webp and out is None and html is None:
        raise click.UsageError("--webp needs a file for what moves: --out FILE.webp or --html FILE")
    moving = webp or (out is not None and out.lower().endswith(".webp"))
    wanted = _Wanted(out=out, html=html, tokenizer=tokenizer, stats=stats, moving=moving)
    if wanted.alone and batch is None and not is_program(source):
        batch = 1  # to open the source; none is read
    asked = Asked(source=source, batch=batch, split=split, seed=seed, pairs=pairs)
    found = _peek(asked, step, wanted)
    if as_json:
        print_json(found.as_json(asked))
    else:
        found.print(asked)


@attrs.frozen(kw_only=True)
class _Wanted:
    """What to make of a step."""

    out: str | None
    html: str | None
    tokenizer: str | None
    stats: bool
    moving: bool

    @property
    def alone(self) -> bool:
        """Only statistics, which need no batch: the rows may form none."""
        return self.stats and self.out is None and self.html is None and self.tokenizer is None


@attrs.frozen(kw_only=True)
class _Found:
    """What there is to print."""

    seen: Look | None
    texts: "dict[str, list[RowText]]" = attrs.field(factory=dict[str, Any])
    statistics: "Statistics | None"
    written: list[str] = attrs.field(factory=list[str])

    def as_json(self, asked: Asked) -> dict[str, Any]:
        answer: dict[str, Any] = {"source": asked.source, "split": asked.split, "seed": _seed(asked)}
        if self.seen is not None:
            seen = self.seen
            answer |= {"batch": seen.rows, "step": seen.step, "ids": seen.ids, "alone": seen.alone}
            answer["fields"] = {name: facts(value) for name, value in flat(seen.batch)}
        if self.texts:
            answer["texts"] = {name: [row.text for row in rows] for name, rows in self.texts.items()}
        if self.statistics is not None:
            answer["statistics"] = self.statistics
        return answer | ({"written": self.written} if self.written else {})

    def print(self, asked: Asked) -> None:
        screen = console()
        if self.seen is not None:
            _print_batch(self.seen, self.texts)
        if self.statistics is not None:
            from dew.cli.statistics import print_statistics

            print_statistics(screen, self.statistics)
        for name in self.written:
            say(screen, f"wrote {name}")


def _peek(asked: Asked, step: int, wanted: _Wanted) -> _Found:
    for option, name in (("--out", wanted.out), ("--html", wanted.html)):
        if name is not None and not Path(name).parent.is_dir():
            raise OptionsError(f"{option} {name} cannot be written: there is no directory {Path(name).parent}")
    with asked.opened() as dataset:
        statistics = None
        if wanted.stats:
            from dew.cli.statistics import statistics_of

            statistics = statistics_of(dataset, asked.source)
        if wanted.alone:
            return _Found(seen=None, statistics=statistics)
        seen = look(dataset, asked, step)
        from dew.cli.texts import texts_of

        found = _Found(seen=seen, texts=texts_of(seen, wanted.tokenizer), statistics=statistics)
        return attrs.evolve(found, written=_write(seen, found, asked, wanted))


def _write(seen: Look, found: _Found, asked: Asked, wanted: _Wanted) -> list[str]:
    """The files that were asked for; returns their names."""
    if wanted.out is None and wanted.html is None:
        return []
    from dew.cli.pictures import pictures_of, write_bytes, write_pictures

    pictures = pictures_of(seen, asked.provider(), moving=wanted.moving)
    written = [] if wanted.out is None else write_pictures(pictures, wanted.out)
    if wanted.html is not None:
        made = _page(seen, found, asked, pictures)
        write_bytes(Path(wanted.html), made.encode(), option="--html")
        written.append(wanted.html)
    return written


def _page(seen: Look, found: _Found, asked: Asked, pictures: "list[Picture]") -> str:
    from dew.cli.pages import About, page

    note = None if seen.alone is None else " ".join(_alone(seen.alone))
    about = About(source=asked.source, split=asked.split, seed=_seed(asked), note=note)
    return page(seen, about, pictures=pictures, texts=found.texts, statistics=found.statistics)


def _seed(asked: Asked) -> int | None:
    """None for a program's dataset, which has its own."""
    return None if is_program(asked.source) else asked.seed


def _print_batch(seen: Look, texts: "dict[str, list[RowText]]") -> None:
    made = table(["field", "shape", "dtype", "min", "max", "sample"], right=["min", "max"])
    for name, value in flat(seen.batch):
        found = facts(value)
        shape = shape_text(found["shape"])
        row(
            made,
            name_text(name),
            shape,
            found["dtype"],
            short(found["min"]),
            short(found["max"]),
            visible(sample_text(found)),
        )
    screen = console()
    screen.print(made)
    if seen.alone is not None:
        for line in _alone(seen.alone):
            say(screen, line)
    for name, rows in texts.items():
        label = "row 0" if seen.ids is None else f"record {seen.ids[0]}"
        text = visible(" ".join(rows[0].text.split()))
        say(screen, f"{name_text(name)} of {label}: {text[:_LETTERS]}{'...' if len(text) > _LETTERS else ''}")
    say(screen, f"step {seen.step}, records {'unknown' if seen.ids is None else listed(seen.ids, 24)}")


def _alone(record: int) -> tuple[str, str]:
    return (
        f"As they are stored, the rows of this step form no batch, so this is record {record} alone:",
        "load the source with preprocess=, a function that makes the fields arrays of one shape.",
    )
