"""Reading a whole corpus to see whether it is what was written: every hash, count, id and receipt."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
import numpy as np

from dew.data.errors import DamagedSourceError, SourceNotFoundError
from dew.data.storage import Storage
from dew.tokens.corpus import read_manifest
from dew.tokens.manifest import FILE_DTYPES, Manifest, Shard, parse_receipt
from dew.tokens.npy import HEADER_BYTES
from dew.tokens.shards import check_file

_SHOWN: Final = 20


def verify_corpus(path: str | os.PathLike[str] | Storage, *, options: Mapping[str, Any] | None = None) -> Manifest:
    """Compare every byte of a corpus with its manifest and receipts; returns the manifest.

    Opening a corpus checks the manifest alone, and reading checks sizes and headers; this reads everything, at the
    speed of sha256, one file in memory at a time.

    Raises:
        SourceNotFoundError: nothing is stored at `path`.
        DamagedSourceError: something differs; the message lists what, up to 20 findings.
    """
    storage = path if isinstance(path, Storage) else Storage(path, options=options or {})
    storage = attrs.evolve(storage, cache=None)  # what is stored is to be read, not what was kept of it
    manifest = read_manifest(storage)
    findings = [finding for shard in manifest.shards for finding in _findings(storage, shard, manifest.dtype)]
    if findings:
        listed = "\n  ".join(findings[:_SHOWN])
        more = f"\n  and {len(findings) - _SHOWN} more" if len(findings) > _SHOWN else ""
        raise DamagedSourceError(
            f"{storage.location()} is not the corpus that was written, {len(findings)} findings:\n  {listed}{more}"
        )
    return manifest


def _findings(storage: Storage, shard: Shard, dtype: str) -> Iterator[str]:
    if finding := _receipt_finding(storage, shard, dtype):
        yield finding
    for kind, record in shard.files.items():
        name, file_dtype = shard.file(kind), FILE_DTYPES.get(kind, dtype)
        try:
            check_file(storage, name, record.bytes, file_dtype, shard.length(kind))
        except DamagedSourceError as error:
            yield str(error)
            continue
        data = storage.read(name)
        digest = hashlib.sha256(data).hexdigest()
        if digest != record.sha256:
            yield f"{storage.location(name)} has the sha256 {digest}, the manifest states {record.sha256}"
            continue
        values = np.frombuffer(data, file_dtype, offset=HEADER_BYTES)
        if kind == "tokens" and int(values.max()) != shard.max_id:
            yield f"{storage.location(name)} has the largest id {values.max()}, the manifest states {shard.max_id}"
        if kind == "docs" and (values[0] != 0 or values[-1] != shard.tokens or (values[1:] <= values[:-1]).any()):
            yield f"{storage.location(name)} does not rise from 0 to {shard.tokens} in {shard.documents} steps"


def _receipt_finding(storage: Storage, shard: Shard, dtype: str) -> str | None:
    where = storage.location(shard.receipt)
    try:
        receipt = parse_receipt(storage.read(shard.receipt), where)
    except SourceNotFoundError:
        return f"{where} is missing"
    except DamagedSourceError as error:
        return str(error)
    return None if receipt == (shard, dtype) else f"{where} states {receipt[0]}, the manifest states {shard}"
