"""Ids in Parquet and Arrow files become a corpus: a column of lists, each of them a document.

Such files are read well from begin to end and badly at random (milliseconds a document), so they are brought in once.
"""

import importlib
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from dew.data.errors import OptionsError, SourceError
from dew.data.storage import Storage
from dew.tokens.manifest import Manifest, TokenizerInfo
from dew.tokens.prepare.inputs import Input, Paths, find_inputs
from dew.tokens.prepare.tables import columns
from dew.tokens.tokenizer import Tokenizer
from dew.tokens.writer import SHARD_TOKENS, TokenWriter


def import_parquet(
    inputs: Paths,
    out: str | os.PathLike[str],
    *,
    column: str = "input_ids",
    tokenizer: Tokenizer | TokenizerInfo | None = None,
    vocab_size: int | None = None,
    bos: bool = False,
    eos: bool = False,
    shard_tokens: int = SHARD_TOKENS,
    overwrite: bool = False,
    input_options: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Write the lists of ids in a column as a corpus, a document each, in the order of files and rows.

    Args:
        inputs: `.parquet` and `.arrow` files, directories of them (also those that `datasets` saved), patterns, URLs.
        out: a directory or URL for the corpus.
        column: the column that holds the ids: lists of any integer type.
        tokenizer, vocab_size, bos, eos, shard_tokens, overwrite, options: as for `TokenWriter`; `bos` and `eos` add an
            id only where a document lacks it.
        input_options: for the file system of the inputs, as fsspec takes them.

    Raises:
        SourceError: no such column, a null, or an id that is not below the vocabulary's size; names file and row.
        DamagedSourceError: a file is not of its kind, or damaged.
        OptionsError: an argument cannot be used, pyarrow is not installed, or a finished corpus is at `out`.
    """
    found = find_inputs(inputs, options=input_options)
    for file in found.files:
        if file.kind not in ("parquet", "arrow"):
            raise OptionsError(
                f"{found.root.location(file.name)} holds text, not ids; make a corpus of it with `dew tokenize`"
            )
    with TokenWriter(
        out,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        bos=bos,
        eos=eos,
        shard_tokens=shard_tokens,
        overwrite=overwrite,
        options=options,
    ) as writer:
        for file in found.files:
            _add(writer, found.root, file, column)
    return writer.close()


def _add(writer: TokenWriter, storage: Storage, file: Input, field: str) -> None:
    compute: Any = importlib.import_module("pyarrow.compute")
    for first, rows in columns(storage, file, field, _check_ids):
        where = f"{storage.location(file.name)}, column {field!r}"
        if rows.null_count:
            row = first + int(np.argmax(rows.is_null().to_numpy(zero_copy_only=False)))
            raise SourceError(f"{where} has no list in row {row}, but null; drop such rows, or fill in an empty list")
        lengths = compute.list_value_length(rows).to_numpy(zero_copy_only=False).astype(np.int64)
        flat, ends = rows.flatten(), np.cumsum(lengths)
        if flat.null_count:
            place = int(np.argmax(flat.is_null().to_numpy(zero_copy_only=False)))
            row = first + int(np.searchsorted(ends, place, side="right"))
            raise SourceError(f"{where} has a null among the ids of row {row}; drop such rows")
        ids = flat.to_numpy(zero_copy_only=False)
        for row, (start, stop) in enumerate(zip((ends - lengths).tolist(), ends.tolist(), strict=True), first):
            try:
                writer.add(ids[start:stop])
            except SourceError as error:
                raise SourceError(f"{where}, row {row}: {error}") from error


def _check_ids(kind: Any, column: str) -> None:
    """Refuse a column that holds no lists of whole numbers."""
    types: Any = importlib.import_module("pyarrow").types
    lists = ("is_list", "is_large_list", "is_fixed_size_list", "is_list_view", "is_large_list_view")
    if not any(getattr(types, name)(kind) for name in lists if hasattr(types, name)):
        raise SourceError(f"{column} holds {kind} and not lists of ids; name another column, or tokenize its text")
    if not types.is_integer(kind.value_type):
        raise SourceError(f"{column} holds lists of {kind.value_type}, and ids are whole numbers; name another column")
