"""Token corpora: written once, read as windows by any number of processes.

A corpus is a directory of plain `.npy` files, a receipt for each shard and one manifest; `docs/data.md` shows its use.
`TokenWriter` writes one, `TokenCorpus` reads it, `TokenWindows` and `PackedDocuments` make a `Dataset` of it. Of
conversations, prompts and preference pairs `dew.tokens.chat` makes one (`docs/chat.md`).
"""

from dew.tokens.access import CorpusOptions
from dew.tokens.chat import ChatMessages, PreferencePairs, Prompts, loss_mask
from dew.tokens.corpus import TokenCorpus
from dew.tokens.documents import PackedDocuments, PackedSource
from dew.tokens.manifest import Framing, Manifest, Shard, TokenizerInfo
from dew.tokens.opening import open_corpus
from dew.tokens.options import TokenOptions
from dew.tokens.packing import PackingCounts, PackingReport, PackingRules, packing_report
from dew.tokens.tokenizer import ByteTokenizer, Tokenizer
from dew.tokens.verify import verify_corpus
from dew.tokens.windows import TokenWindows, WindowSource
from dew.tokens.writer import TokenWriter, write_corpus

__all__ = [
    "ByteTokenizer",
    "ChatMessages",
    "CorpusOptions",
    "Framing",
    "Manifest",
    "PackedDocuments",
    "PackedSource",
    "PackingCounts",
    "PackingReport",
    "PackingRules",
    "PreferencePairs",
    "Prompts",
    "Shard",
    "TokenCorpus",
    "TokenOptions",
    "TokenWindows",
    "TokenWriter",
    "Tokenizer",
    "TokenizerInfo",
    "WindowSource",
    "loss_mask",
    "open_corpus",
    "packing_report",
    "verify_corpus",
    "write_corpus",
]
