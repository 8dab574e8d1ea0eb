"""The demo's data: text that every Python installation carries, a tokenizer trained on it, and token shards."""

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from dew.tokens.manifest import Manifest, TokenizerInfo
from dew.tokens.writer import write_corpus

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VOCABULARY: Final = 2048
_SHARD_TOKENS: Final = 1 << 15  # a few shards, as a real corpus has; windows run over their borders
_END: Final = "<|endoftext|>"


def check_packages() -> None:
    """Refuses to start without the libraries that train the tokenizer and write the checkpoints."""
    for package, purpose in (("tokenizers", "trains a tokenizer"), ("orbax.checkpoint", "saves checkpoints")):
        if not _is_there(package):
            name = package.replace(".", "-")
            raise click.ClickException(
                f'dew demo {purpose}, and the package for it, {name}, is not installed: pip install "dew-core[demo]"'
            )


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # a parent is missing, or was taken out of sys.modules
        return False


def texts() -> list[str]:
    """The help topics of Python in the order of their names: 0.46 MB of English with code."""
    from pydoc_data.topics import topics

    return [topics[name] for name in sorted(topics)]


def train_tokenizer(documents: Sequence[str], path: Path) -> "Tokenizer":
    """A byte-level BPE of `VOCABULARY` ids trained on `documents` and saved at `path`; id 0 ends a document."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.save(str(path))
    return tokenizer


def write_tokens(documents: Sequence[str], tokenizer: "Tokenizer", definition: Path, path: Path) -> Manifest:
    """Token shards of `documents` in the directory `path`, each document ended by id 0; replaces those of a run before.

    `definition` is the file of the tokenizer: its digest goes into the corpus.
    """
    import tokenizers

    # Text that spells the end token is text.
    tokenizer.encode_special_tokens = True
    info = TokenizerInfo(
        vocab_size=tokenizer.get_vocab_size(),
        sha256=hashlib.sha256(definition.read_bytes()).hexdigest(),
        name="dew-demo",
        library="tokenizers",
        version=tokenizers.__version__,
        eos_id=tokenizer.token_to_id(_END),
    )
    ids = (encoding.ids for encoding in tokenizer.encode_batch(list(documents), add_special_tokens=False))
    return write_corpus(ids, path, tokenizer=info, eos=True, shard_tokens=_SHARD_TOKENS, overwrite=True)
