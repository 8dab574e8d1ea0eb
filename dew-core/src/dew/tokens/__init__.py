"""Token corpora: written once, read as windows by any number of processes.

A corpus is a directory of plain `.npy` files, a receipt for each shard and one manifest; `docs/data.md` shows its use.
`TokenWriter` writes one, `TokenCorpus` reads it, `TokenWindows` makes a `Dataset` of it.
"""

from dew.tokens.corpus import TokenCorpus
from dew.tokens.manifest import Framing, Manifest, Shard, TokenizerInfo
from dew.tokens.options import TokenOptions
from dew.tokens.tokenizer import ByteTokenizer, Tokenizer
from dew.tokens.verify import verify_corpus
from dew.tokens.windows import TokenWindows, WindowSource
from dew.tokens.writer import TokenWriter, write_corpus

__all__ = [
    "ByteTokenizer",
    "Framing",
    "Manifest",
    "Shard",
    "TokenCorpus",
    "TokenOptions",
    "TokenWindows",
    "TokenWriter",
    "Tokenizer",
    "TokenizerInfo",
    "WindowSource",
    "verify_corpus",
    "write_corpus",
]
