"""What a corpus says of itself: one `manifest.json`, and one receipt for each shard.

The manifest is all that opening reads: sizes and hashes of every file, the tokenizer, the totals. Its `id` is the
sha256 of everything else in it, written as canonical JSON, so that any change is seen and a saved position can name its
data. Nothing in it depends on time, host or process: the same documents make the same bytes.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
import numpy as np

from dew.data import checks
from dew.data.errors import DamagedSourceError, OptionsError
from dew.tokens.entry import Entry, parse_object
from dew.tokens.npy import file_bytes

FORMAT: Final = "dew-tokens"
RECEIPT_FORMAT: Final = "dew-token-shard"
VERSION: Final = 1  # raised when a key changes what the files mean; unknown keys are hashed and otherwise ignored
MANIFEST: Final = "manifest.json"

TOKEN_DTYPES: Final = ("<u2", "<u4")
FILE_DTYPES: Final = {"docs": "<u8", "roles": "|u1", "origin": "<u8"}
MAX_VOCAB: Final = 1 << 31  # ids are int32 in a batch

_SHARD_NAME: Final = re.compile(r"shard-[0-9]{5,9}", re.ASCII)
_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


def dtype_for(vocab_size: int) -> str:
    """`"<u2"` if every id below `vocab_size` fits in 16 bits, else `"<u4"`."""
    return "<u2" if vocab_size - 1 <= np.iinfo(np.uint16).max else "<u4"


def _vocab_size(_instance: object, _attribute: "attrs.Attribute[int]", value: object) -> None:
    if checks.check_count("vocab_size", value) > MAX_VOCAB:
        raise OptionsError(f"vocab_size must be at most 2**31, since ids are int32 in a batch, got {value}")


@attrs.frozen(kw_only=True)
class TokenizerInfo:
    """Which tokenizer made the ids of a corpus.

    Args:
        vocab_size: one more than the largest id it can make, added tokens included.
        sha256: digest of its definition (for Hugging Face, of `tokenizer.json`), or None when unknown.
        name: what people call it.
        library, version: the code that made the ids; ids can change with its release.
        bos_id, eos_id, pad_id: ids of the begin, end and padding tokens, where it has them.
    """

    vocab_size: int = attrs.field(validator=_vocab_size)
    sha256: str | None = None
    name: str = ""
    library: str = ""
    version: str = ""
    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None

    def __attrs_post_init__(self) -> None:
        for name, value in (("bos_id", self.bos_id), ("eos_id", self.eos_id), ("pad_id", self.pad_id)):
            if value is not None and checks.check_count(name, value, 0) >= self.vocab_size:
                raise OptionsError(
                    f"{name} is {value}, but vocab_size is {self.vocab_size}: "
                    "count added tokens too, so that vocab_size is one more than the largest id"
                )
        if self.sha256 is not None and not _SHA256.fullmatch(self.sha256):
            raise OptionsError(f"sha256 must be 64 hexadecimal digits in lower case or None, got {self.sha256!r}")


@attrs.frozen(kw_only=True)
class Framing:
    """Whether every document begins with the begin token and ends with the end token."""

    bos: bool = False
    eos: bool = False


@attrs.frozen(kw_only=True)
class FileRecord:
    """Size and sha256 of one file."""

    bytes: int
    sha256: str


@attrs.frozen(kw_only=True)
class Shard:
    """One shard: whole documents, at least one, in files that share its name.

    Args:
        name: such as `shard-00000`.
        tokens, documents: what it holds.
        empty_documents: documents without tokens that were met and kept out.
        max_id: its largest id.
        files: "tokens", "docs" and perhaps "roles" and "origin" -> record of `<name>.<kind>.npy`. `origin` holds two
            numbers for each document: the input that it came from, and its row there.
    """

    name: str
    tokens: int
    documents: int
    empty_documents: int
    max_id: int
    files: Mapping[str, FileRecord]

    def file(self, kind: str) -> str:
        """Name of the file of `kind`, such as `shard-00000.tokens.npy`."""
        return f"{self.name}.{kind}.npy"

    def length(self, kind: str) -> int:
        """Number of elements in the file of `kind`."""
        return {"docs": self.documents + 1, "origin": 2 * self.documents}.get(kind, self.tokens)

    @property
    def receipt(self) -> str:
        """Name of the receipt: its commit mark, written after its files."""
        return f"{self.name}.json"


@attrs.frozen(kw_only=True)
class Manifest:
    """A whole corpus, as `manifest.json` states it.

    Args:
        id: sha256 of everything else.
        dtype: of the token files, `"<u2"` or `"<u4"`.
        tokens, documents: totals over the shards.
        empty_documents: those of the shards, and those met where no shard came of it.
        framing, tokenizer: how the ids were made.
        shards: in the order in which they are read as one stream.
        preparation: what `dew tokenize` says of its inputs and options, as JSON; None for a corpus written otherwise.
    """

    id: str
    dtype: str
    tokens: int
    documents: int
    empty_documents: int
    framing: Framing
    tokenizer: TokenizerInfo
    shards: tuple[Shard, ...]
    preparation: Mapping[str, Any] | None = None


def shard_name(number: int) -> str:
    """`shard-00000`, `shard-00001`, ..."""
    return f"shard-{number:05d}"


def is_receipt(name: str) -> bool:
    """Whether a file name is that of a shard's receipt."""
    return name.endswith(".json") and _SHARD_NAME.fullmatch(name.removesuffix(".json")) is not None


def make_manifest(
    *,
    dtype: str,
    framing: Framing,
    tokenizer: TokenizerInfo,
    shards: tuple[Shard, ...],
    empty_elsewhere: int = 0,
    preparation: Mapping[str, Any] | None = None,
) -> Manifest:
    """The manifest over `shards`, with totals and id computed; `empty_elsewhere`: empty documents without a shard."""
    manifest = Manifest(
        id="",
        dtype=dtype,
        tokens=sum(shard.tokens for shard in shards),
        documents=sum(shard.documents for shard in shards),
        empty_documents=sum(shard.empty_documents for shard in shards) + empty_elsewhere,
        framing=framing,
        tokenizer=tokenizer,
        shards=shards,
        preparation=preparation,
    )
    return attrs.evolve(manifest, id=_digest(_contents(manifest)))


def manifest_json(manifest: Manifest) -> bytes:
    """`manifest.json`, the same bytes for the same corpus."""
    return _pretty({**_contents(manifest), "id": manifest.id})


def receipt_json(shard: Shard, dtype: str) -> bytes:
    """The receipt of `shard`, the same bytes for the same shard."""
    return _pretty({"format": RECEIPT_FORMAT, "version": VERSION, "dtype": dtype, **attrs.asdict(shard)})


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Read and check `manifest.json`; `where` names it in errors.

    Raises:
        DamagedSourceError: it is not JSON, lacks a part, contradicts itself, was altered since it was written, or is of
            another version.
    """
    values = parse_object(data, where)
    entry = Entry(values, where)
    _check_format(entry, FORMAT)
    stated = entry.text("id")
    found = _digest({key: value for key, value in values.items() if key != "id"})
    if stated != found:
        raise DamagedSourceError(
            f"{where} was altered since it was written: it states the id {stated}, its contents have the id {found}; "
            "restore the file, or write the corpus again"
        )
    manifest = Manifest(
        id=stated,
        dtype=entry.text("dtype"),
        tokens=entry.integer("tokens"),
        documents=entry.integer("documents"),
        empty_documents=entry.integer("empty_documents"),
        framing=Framing(bos=entry.part("framing").flag("bos"), eos=entry.part("framing").flag("eos")),
        tokenizer=_tokenizer(entry.part("tokenizer")),
        shards=tuple(_shard(part) for part in entry.parts("shards")),
        preparation=entry.part("preparation").values if "preparation" in values else None,
    )
    _check_manifest(manifest, where)
    return manifest


def parse_receipt(data: bytes, where: str) -> tuple[Shard, str]:
    """The shard that a receipt describes, and its token dtype.

    Raises:
        DamagedSourceError: as for `parse_manifest`.
    """
    entry = Entry(parse_object(data, where), where)
    _check_format(entry, RECEIPT_FORMAT)
    shard, dtype = _shard(entry), entry.text("dtype")
    _check_dtype(dtype, where)
    _check_shard(shard, dtype, where)
    return shard, dtype


def _contents(manifest: Manifest) -> dict[str, Any]:
    values = attrs.asdict(manifest)
    del values["id"]
    if manifest.preparation is None:
        del values["preparation"]
    return {"format": FORMAT, "version": VERSION, **values}


def _digest(values: Mapping[str, Any]) -> str:
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _pretty(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False) + "\n").encode()


def _check_format(entry: Entry, expected: str) -> None:
    if (name := entry.text("format")) != expected:
        raise DamagedSourceError(
            f"{entry.where} has the format {name!r}, not {expected!r}: it is no part of a token corpus"
        )
    if (version := entry.integer("version")) != VERSION:
        raise DamagedSourceError(
            f"{entry.where} has version {version} of the format {expected!r}, this dew-core reads version {VERSION}; "
            "install a dew-core that reads it"
        )


def _tokenizer(entry: Entry) -> TokenizerInfo:
    try:
        return TokenizerInfo(
            vocab_size=entry.integer("vocab_size"),
            sha256=entry.optional_text("sha256"),
            name=entry.text("name"),
            library=entry.text("library"),
            version=entry.text("version"),
            bos_id=entry.optional_integer("bos_id"),
            eos_id=entry.optional_integer("eos_id"),
            pad_id=entry.optional_integer("pad_id"),
        )
    except OptionsError as error:
        raise DamagedSourceError(f"{entry.where}: {error}") from error


def _shard(entry: Entry) -> Shard:
    files = entry.part("files")
    return Shard(
        name=entry.text("name"),
        tokens=entry.integer("tokens"),
        documents=entry.integer("documents"),
        empty_documents=entry.integer("empty_documents"),
        max_id=entry.integer("max_id"),
        files={
            kind: FileRecord(bytes=part.integer("bytes"), sha256=part.text("sha256"))
            for kind, part in ((kind, files.part(kind)) for kind in files.names())
        },
    )


def _check_manifest(manifest: Manifest, where: str) -> None:
    _check_dtype(manifest.dtype, where)
    vocab_size = manifest.tokenizer.vocab_size
    if manifest.dtype == "<u2" and dtype_for(vocab_size) != "<u2":
        raise DamagedSourceError(
            f"{where} states dtype <u2, which cannot hold every id of a vocabulary of {vocab_size}"
        )
    for total in ("tokens", "documents", "empty_documents"):
        stated, found = getattr(manifest, total), sum(getattr(shard, total) for shard in manifest.shards)
        if stated != found and not (total == "empty_documents" and stated > found):
            raise DamagedSourceError(f"{where} states {stated} {total}, but its shards add up to {found}")
    if not manifest.shards:
        raise DamagedSourceError(f"{where} lists no shards; a corpus has at least one")
    names = [shard.name for shard in manifest.shards]
    if len(set(names)) != len(names):
        raise DamagedSourceError(f"{where} names a shard twice: {sorted({n for n in names if names.count(n) > 1})[:3]}")
    for shard in manifest.shards:
        _check_shard(shard, manifest.dtype, where)
        if shard.max_id >= vocab_size:
            raise DamagedSourceError(
                f"{where}: {shard.name} holds the id {shard.max_id}, but the tokenizer has ids 0 to {vocab_size - 1}"
            )


def _check_dtype(dtype: str, where: str) -> None:
    if dtype not in TOKEN_DTYPES:
        raise DamagedSourceError(f"{where} states dtype {dtype!r}, token files are {' or '.join(TOKEN_DTYPES)}")


def _check_shard(shard: Shard, dtype: str, where: str) -> None:
    if not _SHARD_NAME.fullmatch(shard.name):
        raise DamagedSourceError(
            f"{where} names a shard {shard.name!r}; a name is shard- and at least five digits, and never a path"
        )
    if not 1 <= shard.documents <= shard.tokens:
        raise DamagedSourceError(
            f"{where}: {shard.name} states {shard.documents} documents and {shard.tokens} tokens; "
            "every document of a shard has at least one token"
        )
    if not {"tokens", "docs"} <= set(shard.files) <= {"tokens", *FILE_DTYPES}:
        raise DamagedSourceError(f"{where}: {shard.name} lists the files {sorted(shard.files)}, not tokens and docs")
    for kind, record in shard.files.items():
        length = shard.length(kind)
        expected = file_bytes(FILE_DTYPES.get(kind, dtype), length)
        if record.bytes != expected:
            raise DamagedSourceError(
                f"{where} states {record.bytes} bytes for {shard.file(kind)}, {length} elements take {expected}"
            )
        if not _SHA256.fullmatch(record.sha256):
            raise DamagedSourceError(f"{where}: {shard.file(kind)} has no sha256, but {record.sha256[:80]!r}")
