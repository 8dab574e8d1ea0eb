"""`dew tokens verify` and `dew tokens import`: whether a corpus is what was written, and ids that lie in tables."""

import json
from collections.abc import Callable
from typing import Any, Final

import click

from dew.data.storage import Storage
from dew.tokens.access import FORMATS, CorpusOptions
from dew.tokens.foreign.corpus import ForeignCorpus
from dew.tokens.importing import import_parquet
from dew.tokens.manifest import MANIFEST, TokenizerInfo
from dew.tokens.opening import open_corpus
from dew.tokens.reader import TokenReader
from dew.tokens.splits import splits_in
from dew.tokens.verify import verify_corpus
from dew.tokens.writer import SHARD_TOKENS

_PIECE: Final = 1 << 22

Command = Callable[..., Any]


def access_options(command: Command) -> Command:
    """The command with the options that say how files of another program are read; it gets them as `access`."""

    def called(
        *words: Any, format: str | None, dtype: str | None, eos_id: int | None, bos_id: int | None, **others: Any
    ) -> Any:
        return command(*words, access=CorpusOptions(format=format, dtype=dtype, eos_id=eos_id, bos_id=bos_id), **others)

    called.__doc__ = command.__doc__
    called.__name__ = command.__name__
    least_zero = click.IntRange(min=0)
    for option in (
        click.option("--bos-id", type=least_zero, metavar="ID", help="In its place, the id that begins each."),
        click.option("--eos-id", type=least_zero, metavar="ID", help="The id that ends each document in such files."),
        click.option("--dtype", metavar="TYPE", help="Type of the ids in headerless files, such as uint16."),
        click.option("--format", type=click.Choice(FORMATS), help="Who wrote the files; by default, Dew looks."),
    ):
        called = option(called)
    return called


@click.command(short_help="Read all of a corpus, and compare it with what was written.")
@click.argument("path")
@click.option("--split", default="train", show_default=True, help="Which files of another program.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")
@access_options
def verify(path: str, split: str, access: CorpusOptions, as_json: bool) -> None:
    """Read every byte of the corpus at PATH, or of each of its splits.

    A corpus of Dew's is compared with the hashes in its manifest and receipts. Files of other programs hold no hashes:
    their sizes, indexes and ids are checked. Exit code 1 where something differs.
    """
    storage, ours = Storage(path), access.format in (None, "dew")
    if ours and storage.exists(MANIFEST):
        done = [_verified(storage, "train")]
    elif ours and (names := splits_in(storage)):
        done = [_verified(storage.child(name), name) for name in names]
    else:
        done = [_scanned(open_corpus(path, split, access), split)]
    if as_json:
        click.echo(json.dumps(done, allow_nan=False))
        return
    for facts in done:
        click.echo(
            f"{facts['split']}: {facts['checked']}; {facts['tokens']:,} tokens, the largest id is {facts['max_id']}; "
            f"corpus {facts['id'][:12]}"
        )


def _verified(storage: Storage, split: str) -> dict[str, Any]:
    manifest = verify_corpus(storage)
    return {
        "split": split,
        "id": manifest.id,
        "tokens": manifest.tokens,
        "documents": manifest.documents,
        "max_id": max(shard.max_id for shard in manifest.shards),
        "checked": "every file has the hash that the manifest states",
    }


def _scanned(corpus: TokenReader, split: str) -> dict[str, Any]:
    """Reads every id, which refuses one that is none, and where documents end."""
    pieces = range(0, corpus.tokens, _PIECE)
    largest = max(int(corpus.read(first, min(first + _PIECE, corpus.tokens)).max()) for first in pieces)
    known = not isinstance(corpus, ForeignCorpus) or corpus.tells_documents
    return {
        "split": split,
        "id": corpus.id,
        "tokens": corpus.tokens,
        "documents": len(corpus.offsets) - 1 if known else None,
        "max_id": largest,
        "checked": "sizes, indexes and ids are as they must be; there are no hashes to compare with",
    }


@click.command("import", short_help="Make a corpus of ids in Parquet or Arrow files.")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUTS...")
@click.option("--out", required=True, help="The corpus: a directory or URL of its own.")
@click.option("--vocab-size", type=click.IntRange(min=1), required=True, help="One more than the largest id there is.")
@click.option("--column", default="input_ids", show_default=True, help="The column that holds the ids.")
@click.option("--bos-id", type=click.IntRange(min=0), help="Begin each document with it, where it does not yet.")
@click.option("--eos-id", type=click.IntRange(min=0), help="End each document with it, where it does not yet.")
@click.option(
    "--shard-tokens", type=click.IntRange(min=1), default=SHARD_TOKENS, show_default=True, help="Tokens in a shard."
)
@click.option("--overwrite", is_flag=True, help="Replace a finished corpus.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")
def import_command(
    inputs: tuple[str, ...],
    out: str,
    vocab_size: int,
    column: str,
    bos_id: int | None,
    eos_id: int | None,
    shard_tokens: int,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Make a corpus of the lists of ids in INPUTS: .parquet and .arrow files, directories, patterns, or URLs.

    Each row is a document, in the order of files and rows. Count added tokens in --vocab-size: it decides whether ids
    take 2 bytes or 4, and a larger id is refused.
    """
    manifest = import_parquet(
        list(inputs),
        out,
        column=column,
        tokenizer=TokenizerInfo(vocab_size=vocab_size, bos_id=bos_id, eos_id=eos_id),
        bos=bos_id is not None,
        eos=eos_id is not None,
        shard_tokens=shard_tokens,
        overwrite=overwrite,
    )
    facts = {
        "out": out,
        "id": manifest.id,
        "tokens": manifest.tokens,
        "documents": manifest.documents,
        "empty_documents": manifest.empty_documents,
        "dtype": manifest.dtype,
        "shards": len(manifest.shards),
    }
    if as_json:
        click.echo(json.dumps(facts, allow_nan=False))
        return
    click.echo(
        f"{manifest.tokens:,} tokens of {manifest.dtype} in {manifest.documents:,} documents "
        f"({manifest.empty_documents:,} empty ones kept out) are in {out}; corpus {manifest.id[:12]}"
    )
