"""What turns texts into ids: the reference and faster engines behind one small protocol, and a watch over them.

The reference is the package `tokenizers`. Another engine must make the same ids; a sample of every task is encoded by
both, and the first document that differs stops the run. An engine is named, never passed: workers make their own.
"""

import importlib
import importlib.util
from array import array
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import OptionsError, SourceError
from dew.tokens.prepare.longtexts import LONGEST, TextCutter
from dew.tokens.prepare.tokenizers import Definition, plain, reference, tokenizers_library

Encoded: TypeAlias = "tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]"

REFERENCE: Final = "hf"
_MULTIPLIER: Final = 0x9E3779B97F4A7C15  # spreads numbers over 64 bits
_RATE: Final = 1000
_FIRST: Final = 16

# Texts on which engines have been seen to differ, and what any of them may trip over.
_PROBES: Final = (
    "",
    " ",
    "\n\n \t  x\r\n",
    "It's we'll I'M 'S they've 'tis",
    "naïve e\u0301 \u00e9 ﬁ ǅ İ ß",
    "0 12 345 6789 10000000 \u0661\u0662",
    "中文字符 日本語テキスト 한국어 ไทย العربية \u200b\u200d\ufeff",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \ufffd\u2028\u2029\x00\x1b",
    "for(int i=0;i<10;++i){a[i]<<=2;} // ----====####    end",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!!!!!!!!!!!!!!!!!!!!!!!!",
)


class Engine(Protocol):
    """Encodes many texts at once, in the calling thread."""

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Ids of all `texts`, (n,) uint32, and where each begins and ends in them, (k + 1,) int64.

        Nothing is added, cut or padded.
        """
        ...


@attrs.frozen
class EngineName:
    """An engine as a corpus records it."""

    name: str
    version: str


class HuggingFaceEngine:
    """The package `tokenizers`: the reference."""

    def __init__(self, definition: Definition, *, parse_special: bool) -> None:
        self._tokenizer = reference(definition, parse_special=parse_special)
        active = [token for token in definition.added if parse_special or not token.get("special")]
        self._cutter = TextCutter(self._tokenizer, {**definition.parts, "added_tokens": active})

    def encode(self, texts: Sequence[str]) -> Encoded:
        """As `Engine.encode`."""
        ids: list[npt.NDArray[np.uint32]] = []
        lengths: list[int] = []
        short: list[str] = []
        for text in texts:
            if len(text) <= LONGEST:
                short.append(text)
                continue
            self._encode(short, ids, lengths)
            short = []
            parts: list[int] = []
            for part in self._cutter.parts(text):
                self._encode([part], ids, parts)
            lengths.append(sum(parts))
        self._encode(short, ids, lengths)
        return np.concatenate([np.empty(0, np.uint32), *ids]), _offsets(lengths)

    def _encode(self, texts: list[str], ids: list[npt.NDArray[np.uint32]], lengths: list[int]) -> None:
        if texts:
            found = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
            lengths += map(len, found)
            ids.append(np.frombuffer(b"".join([array("I", of_text).tobytes() for of_text in found]), np.uint32))


class ByteEngine:
    """`ByteTokenizer`: the bytes of UTF-8."""

    def encode(self, texts: Sequence[str]) -> Encoded:
        """As `Engine.encode`."""
        parts = [text.encode() for text in texts]
        return np.frombuffer(b"".join(parts), np.uint8).astype(np.uint32), _offsets([len(part) for part in parts])


class GigatokenEngine:
    """The package `gigatoken`."""

    def __init__(self, definition: Definition, *, parse_special: bool) -> None:
        module = _package("gigatoken")
        self._tokenizer = module.Tokenizer.from_json(plain(definition, parse_special=parse_special))

    def encode(self, texts: Sequence[str]) -> Encoded:
        """As `Engine.encode`."""
        layout = self._tokenizer.encode_batch(list(texts), parallel=False).layout
        offsets = np.asarray(layout.offsets.data, np.int64)
        return np.asarray(layout.content.data, np.uint32)[offsets[0] : offsets[-1]], offsets - offsets[0]


class FastokensEngine:
    """The package `fastokens`."""

    def __init__(self, definition: Definition, *, parse_special: bool) -> None:
        module = _package("fastokens")
        self._tokenizer = module.Tokenizer.from_json_str(plain(definition, parse_special=True))
        self._as_text = not parse_special

    def encode(self, texts: Sequence[str]) -> Encoded:
        """As `Engine.encode`."""
        ids, offsets = self._tokenizer.encode_batch_flat(list(texts), split_special_tokens=self._as_text)
        return np.frombuffer(ids, np.uint32), np.frombuffer(offsets, np.uint64).astype(np.int64)


_ENGINES: Final = {"hf": HuggingFaceEngine, "gigatoken": GigatokenEngine, "fastokens": FastokensEngine}


class WatchedEngine:
    """An engine of which a sample is encoded by the reference too.

    Args:
        engine: the engine.
        name: what people call it.
        reference: what is right; None when the engine is the reference itself.
        definition: the tokenizer, for the texts that all engines are tried on first.

    Raises:
        SourceError: they differ on one of these texts.
    """

    def __init__(self, engine: Engine, name: str, reference: Engine | None, definition: Definition) -> None:
        self._engine = engine
        self._name = name
        self._reference = reference
        if reference is not None:
            added = [token["content"] for token in definition.added]
            probes = [*_PROBES, *(f"a {token} b{token}{token}\n{token}" for token in added)]
            self._compare(probes, *self.encode(probes), [f"a text to try engines on ({text!a})" for text in probes])

    def encode(self, texts: Sequence[str]) -> Encoded:
        """As `Engine.encode`.

        Raises:
            SourceError: what the engine returns is not that.
        """
        ids, offsets = self._engine.encode(texts)
        if len(offsets) != len(texts) + 1 or offsets[0] != 0 or offsets[-1] != len(ids) or (np.diff(offsets) < 0).any():
            raise SourceError(
                f"the engine {self._name!r} returned {len(ids)} ids and {len(offsets)} offsets for {len(texts)} texts; "
                "offsets rise from 0 to the number of ids, one more than there are texts"
            )
        return ids, offsets

    def check(self, texts: Sequence[str], first: int, encoded: Encoded, places: "Places") -> None:
        """Encode those of `texts` that are in the sample by the reference; they are documents `first` on of a task.

        The sample is the first 16 documents of the task, and about one in a thousand of the others.

        Raises:
            SourceError: the first document that differs, named by `places`.
        """
        if self._reference is None:
            return
        picked = [at for at in range(len(texts)) if first + at < _FIRST or _in_sample(first + at)]
        if not picked:
            return
        ids, offsets = encoded
        lengths = np.diff(offsets)[picked]
        of_picked = [ids[offsets[at] : offsets[at + 1]] for at in picked]
        some = np.concatenate([np.empty(0, np.uint32), *of_picked])
        self._compare([texts[at] for at in picked], some, _offsets(lengths), [places(at) for at in picked])

    def _compare(
        self, texts: Sequence[str], ids: npt.NDArray[np.uint32], offsets: npt.NDArray[np.int64], names: Sequence[str]
    ) -> None:
        assert self._reference is not None
        expected, bounds = self._reference.encode(texts)
        if np.array_equal(ids, expected) and np.array_equal(offsets, bounds):
            return
        for at, name in enumerate(names):
            found = ids[offsets[at] : offsets[at + 1]]
            right = expected[bounds[at] : bounds[at + 1]]
            if not np.array_equal(found, right):
                shared = min(len(found), len(right))
                different = np.flatnonzero(found[:shared] != right[:shared])
                first = int(different[0]) if different.size else shared
                raise SourceError(
                    f"the engine {self._name!r} differs from the reference on {name}: at token {first} it has "
                    f"{found[first : first + 4].tolist()}, tokenizers has {right[first : first + 4].tolist()}; "
                    "use engine='hf' (--engine hf)"
                )


class Places(Protocol):
    """Names a document for a message."""

    def __call__(self, at: int, /) -> str:
        """Where document `at` of a batch stands."""
        ...


def engine_name(name: str, definition: Definition) -> EngineName:
    """What a corpus records of the engine `name`.

    Raises:
        OptionsError: there is no such engine, its package is not installed, or it cannot be had for bytes.
    """
    if definition.text is None:
        if name != REFERENCE:
            raise OptionsError(f"the byte tokenizer has no engines to choose from, got engine={name!r}")
        return EngineName("bytes", definition.info.version)
    if name == REFERENCE:
        return EngineName(name, tokenizers_library().__version__)
    if ":" in name:
        return EngineName(name, "")
    if name not in _ENGINES:
        raise OptionsError(
            f"there is no engine {name!r}; there are {', '.join(_ENGINES)}, and your own as 'package.module:factory'"
        )
    _package(name)
    from importlib.metadata import version

    return EngineName(name, version(name))


def make_engine(name: str, definition: Definition, *, parse_special: bool) -> WatchedEngine:
    """The engine `name` under watch; `name` may be `"package.module:factory"`, called like the classes here.

    Raises:
        OptionsError: it cannot be made, or not for this tokenizer.
        SourceError: its ids are not those of the reference.
    """
    if definition.text is None:
        return WatchedEngine(ByteEngine(), "bytes", None, definition)
    right = HuggingFaceEngine(definition, parse_special=parse_special)
    if name == REFERENCE:
        return WatchedEngine(right, name, None, definition)
    try:
        made: Engine = _factory(name)(definition, parse_special=parse_special)
    except OptionsError:
        raise
    except Exception as error:
        raise OptionsError(
            f"the engine {name!r} cannot be made for this tokenizer: {type(error).__name__}: {error}; "
            "use engine='hf' (--engine hf)"
        ) from error
    return WatchedEngine(made, name, right, definition)


def _factory(name: str) -> Any:
    if name in _ENGINES:
        return _ENGINES[name]
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _package(name: str) -> Any:
    if importlib.util.find_spec(name) is None:
        raise OptionsError(f"the engine {name!r} needs its package: pip install {name}; or use engine='hf'")
    return importlib.import_module(name)


def _offsets(lengths: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _in_sample(number: int) -> bool:
    return (number * _MULTIPLIER & (1 << 64) - 1) >> 32 < (1 << 32) // _RATE
