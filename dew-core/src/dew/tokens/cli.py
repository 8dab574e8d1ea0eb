"""`dew tokens`, and `info` of it: what a corpus holds, how long its documents are, and how well they would pack."""

import json
from collections.abc import Iterable
from typing import Any, Final

import attrs
import click
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dew.tokens.access import CorpusOptions
from dew.tokens.corpus import TokenCorpus
from dew.tokens.documents import PackedSource
from dew.tokens.foreign.corpus import ForeignCorpus
from dew.tokens.opening import open_corpus
from dew.tokens.packing import LONG, PackingReport
from dew.tokens.reader import TokenReader
from dew.tokens.upkeep import access_options, import_command, verify

_BAR: Final = 32
_MARGIN: Final = 12
_COLOURS: Final = ("cyan", "magenta", "green", "yellow", "blue", "red")
_GLYPHS: Final = "█▓"  # two, so that neighbouring segments differ without colours too
_PADDING: Final = "·"


@click.group()
def tokens() -> None:
    """Token corpora."""


tokens.add_command(verify)
tokens.add_command(import_command)


@tokens.command(short_help="What a corpus holds, and how its documents would pack.")
@click.argument("path")
@click.option("--split", default="train", show_default=True, help="The split to look at.")
@click.option("--pack", "seq_len", type=click.IntRange(min=1), metavar="S", help="Plan rows of S + 1 tokens.")
@click.option("--long", type=click.Choice(LONG), default="split", show_default=True, help="Too long documents.")
@click.option("--max-segments", type=click.IntRange(min=1), help="Most documents in a row.")
@click.option("--plans", help="Directory for the packing plan.")
@click.option("--rows", type=click.IntRange(min=0), default=8, show_default=True, help="Rows in the picture.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")
@access_options
def info(
    path: str,
    split: str,
    access: CorpusOptions,
    seq_len: int | None,
    long: Any,
    max_segments: int | None,
    plans: str | None,
    rows: int,
    as_json: bool,
) -> None:
    """What the corpus at PATH holds: counts, types, and the lengths of its documents.

    With --pack, also how its documents would fill rows, and a picture of some rows. A plan of over 2^20 documents is
    kept, so this makes it ahead of a run.
    """
    if seq_len is None and (long, max_segments, plans) != ("split", None, None):
        raise click.UsageError("--long, --max-segments and --plans belong to --pack")
    corpus = open_corpus(path, split, access)
    about = {"path": path, "split": split, **_about(corpus)}
    if about["documents"] is not None:
        about["lengths"] = _lengths(corpus)
    source = None
    if seq_len is not None:
        source = PackedSource(corpus, seq_len=seq_len, long=long, max_segments=max_segments, plans=plans)
    report = None if source is None else source.report()
    if as_json:
        packing = {} if report is None else {"packing": report.to_json()}
        click.echo(json.dumps(about | packing, allow_nan=False))
        return
    screen = Console(highlight=False, markup=False)
    _show_corpus(screen, about)
    if source is not None and report is not None:
        _show_packing(screen, report)
        _show_rows(screen, source, rows)


def _about(corpus: TokenReader) -> dict[str, Any]:
    if isinstance(corpus, ForeignCorpus):
        return _about_foreign(corpus)
    assert isinstance(corpus, TokenCorpus)
    manifest = corpus.manifest
    return {
        "format": "dew",
        "id": manifest.id,
        "documents": manifest.documents,
        "empty_documents": manifest.empty_documents,
        "tokens": manifest.tokens,
        "dtype": manifest.dtype,
        "shards": len(manifest.shards),
        "bytes": sum(record.bytes for shard in manifest.shards for record in shard.files.values()),
        "framing": attrs.asdict(manifest.framing),
        "tokenizer": attrs.asdict(manifest.tokenizer),
    }


def _about_foreign(corpus: ForeignCorpus) -> dict[str, Any]:
    """The same facts, None for those that the files do not hold."""
    names = {shard.tokenizer for shard in corpus.shards}
    return {
        "format": corpus.format.name,
        "id": corpus.id,
        "documents": corpus.documents if corpus.tells_documents else None,
        "empty_documents": corpus.empty_documents,
        "tokens": corpus.tokens,
        "dtype": corpus.dtype,
        "shards": len(corpus.shards),
        "bytes": sum(shard.bytes + shard.index_bytes for shard in corpus.shards),
        "framing": None,
        "tokenizer": {"name": names.pop()} if len(names) == 1 and names != {""} else None,
    }


def _lengths(corpus: TokenReader) -> dict[str, Any]:
    """Smallest, mean and largest length, and documents and tokens of lengths from 2^k to 2^(k + 1) - 1."""
    least, most = corpus.tokens, 0
    documents, tokens = np.zeros(64, np.int64), np.zeros(64, np.int64)
    for lengths in corpus.document_lengths():
        least, most = min(least, int(lengths.min())), max(most, int(lengths.max()))
        _, exponents = np.frexp(lengths.astype(np.float64))
        documents += np.bincount(exponents - 1, minlength=64)
        tokens += np.bincount(exponents - 1, weights=lengths, minlength=64).astype(np.int64)
    ranges = [
        {"from": 1 << power, "to": (2 << power) - 1, "documents": int(documents[power]), "tokens": int(tokens[power])}
        for power in range(least.bit_length() - 1, most.bit_length())
    ]
    return {"min": least, "mean": corpus.tokens / corpus.documents, "max": most, "histogram": ranges}


def _show_corpus(screen: Console, about: dict[str, Any]) -> None:
    lengths, empty = about.get("lengths"), f"{about['empty_documents']:,} empty ones kept out"
    facts = {
        "corpus": about["id"][:12],
        "format": about["format"],
        "documents": "not known: neither the files nor --eos-id or --bos-id say where they end",
        "tokens": f"{about['tokens']:,} of {about['dtype']}, {about['bytes']:,} bytes in {about['shards']:,} shards",
        "tokenizer": _tokenizer_line(about["tokenizer"]),
        "framing": _framing_line(about["framing"]),
    }
    if lengths is None:
        _show_facts(screen, facts)
        return
    facts["documents"] = f"{about['documents']:,} ({empty})"
    facts["lengths"] = f"{lengths['min']:,} to {lengths['max']:,} tokens, {lengths['mean']:,.1f} on average"
    _show_facts(screen, facts)
    made = _table("tokens", "documents", "of the tokens", "")
    for entry in lengths["histogram"]:
        share = entry["tokens"] / about["tokens"]
        bar = "█" * round(_BAR * entry["documents"] / max(1, *(other["documents"] for other in lengths["histogram"])))
        made.add_row(f"{entry['from']:,} - {entry['to']:,}", f"{entry['documents']:,}", f"{share:.1%}", bar)
    screen.print(made)


def _tokenizer_line(tokenizer: dict[str, Any] | None) -> str:
    if tokenizer is None:
        return "not recorded"
    made_by = tokenizer["name"] or (tokenizer["sha256"] or "unknown")[:12]
    return f"{made_by}, {tokenizer['vocab_size']:,} ids" if "vocab_size" in tokenizer else made_by


def _framing_line(framing: dict[str, bool] | None) -> str:
    if framing is None:
        return "not recorded"
    ends = " and ".join(name for name, there in (("begin", framing["bos"]), ("end", framing["eos"])) if there)
    return f"every document has its {ends} token" if ends else "none"


def _show_packing(screen: Console, report: PackingReport) -> None:
    counts = report.counts
    lost = f"{counts.lost_targets:,} targets in {counts.truncated:,} truncated and {counts.dropped:,} dropped documents"
    facts = {
        "rows": f"{counts.rows:,} of {report.rules.width:,} tokens, {report.fill:.4%} full",
        "padding": f"{report.padding:,} tokens",
        "targets": f"{counts.targets:,}, {report.target_share:.4%} of the room for them",
        "segments": f"{report.mean_segments:.2f} a row, at most {max(report.segments):,}",
        "cut": f"{counts.cut:,} documents in several pieces",
        "lost": lost,
        "without a target": f"{counts.single:,} documents of one token",
    }
    _show_facts(screen, facts)


def _show_rows(screen: Console, source: PackedSource, count: int) -> None:
    """Some rows, spread evenly over all, a line each; a change of colour is a new document."""
    places = sorted({int(place) for place in np.linspace(0, len(source) - 1, count)})
    if not places:
        return
    columns = min(source.rules.width, max(_MARGIN, screen.width - _MARGIN))
    shown = ((np.arange(columns) + 0.5) * source.rules.width / columns).astype(np.int64)
    segments = source.take(np.array(places, np.int64))["text_segment_ids"][:, shown]
    for place, row in zip(places, segments.tolist(), strict=True):
        screen.print(Text.assemble(f"{place:>{_MARGIN - 2}} ", *_cells(row)), no_wrap=True, crop=True)


def _cells(segments: Iterable[int]) -> Iterable[tuple[str, str]]:
    for segment in segments:
        if segment:
            yield _GLYPHS[segment % len(_GLYPHS)], _COLOURS[segment % len(_COLOURS)]
        else:
            yield _PADDING, "dim"


def _show_facts(screen: Console, facts: dict[str, str]) -> None:
    for name, text in facts.items():
        screen.print(f"{name:<18}{text}", soft_wrap=True)
    screen.print()


def _table(*columns: str) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        made.add_column(Text(name), justify="right" if name else "left", no_wrap=True)
    return made
