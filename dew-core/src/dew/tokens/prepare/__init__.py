"""From text to token shards: exact, resumable, on one machine or a cluster. `docs/tokens.md` shows its use.

`prepare` makes a corpus of files, `prepare_texts` of strings in memory; `merge` finishes one that several machines
made; `find_origin` says which file and row a document came from. PyArrow, tokenizers and zstandard are imported when
they are needed: `pip install "dew-core[prepare]"`.
"""

from dew.tokens.prepare.engines import Encoded, Engine
from dew.tokens.prepare.job import Prepared, PrepareProgress, merge, prepare, prepare_texts
from dew.tokens.prepare.origins import Origin, find_origin

__all__ = [
    "Encoded",
    "Engine",
    "Origin",
    "PrepareProgress",
    "Prepared",
    "find_origin",
    "merge",
    "prepare",
    "prepare_texts",
]
