"""Specifications and options: their names, their types, and the datasets that they make."""

from typing import Any, assert_type

from dew.data import (
    ByteTokenizer,
    ChatMessages,
    Dataset,
    HFOptions,
    ImageFolder,
    ImageOptions,
    PackedDocuments,
    PreferencePairs,
    Prompts,
    TFDSOptions,
    TokenOptions,
    TokenWindows,
)

# Every specification makes a dataset of a batch, by name alone.
assert_type(TokenWindows("corpus", seq_len=64, val=0.01).load(batch=8), Dataset)
assert_type(PackedDocuments("corpus", seq_len=64, long="truncate").load(batch=8), Dataset)
assert_type(ChatMessages("chats.jsonl", tokenizer="model", seq_len=64).load(batch=8), Dataset)
assert_type(Prompts("chats.jsonl", tokenizer="model", max_prompt=64).load(batch=8), Dataset)
assert_type(PreferencePairs("pairs.jsonl", tokenizer="model", seq_len=64).load(batch=8), Dataset)
assert_type(ImageFolder("photos", size=64).load(batch=8), Dataset)
TokenWindows("corpus", seq_len=64).load(8)  # error: reportCallIssue
TokenWindows("corpus", seq_len=64).load(batch="8")  # error: reportArgumentType
TokenWindows("corpus").load(batch=8)  # error: reportCallIssue
TokenWindows(seq_len=64)  # error: reportCallIssue
TokenWindows("corpus", 64)  # error: reportCallIssue
TokenWindows("corpus", seq_len=64, shuffle=True)  # error: reportCallIssue
PackedDocuments("corpus", seq_len=64, long="cut")  # error: reportArgumentType
ChatMessages("chats.jsonl", seq_len=64)  # error: reportCallIssue
ChatMessages("chats.jsonl", tokenizer="model", seq_len=64, target_roles=3)  # error: reportArgumentType
ImageFolder("photos", sise=64)  # error: reportCallIssue

# What a specification holds can be read, and not changed.
windows = TokenWindows("corpus", seq_len=64)
assert_type(windows.seq_len, int)
assert_type(windows.seed, int)
windows.seq_len = 128  # error: reportAttributeAccessIssue

# Options of each provider.
TokenOptions(seq_len=64, pack=True)
TokenOptions(64)  # error: reportCallIssue
TokenOptions(seqlen=64)  # error: reportCallIssue
TokenOptions(seq_len="64")  # error: reportArgumentType
HFOptions(token=True)
HFOptions(tokens=True)  # error: reportCallIssue
TFDSOptions(path="prepared", version="1.0.0")
TFDSOptions(check="never")  # error: reportArgumentType
ImageOptions(size=(64, 96), flip=0.5)
ImageOptions(fit="stretch")  # error: reportArgumentType

# A tokenizer without any library.
tokenizer = ByteTokenizer(bos=True)
assert_type(tokenizer.decode(tokenizer.encode("text")), str)
tokenizer.encode(b"bytes")  # error: reportArgumentType

# A misspelt name is no name.
from dew.data import TokenWindow as _Misspelt  # noqa: E402  # error: reportAttributeAccessIssue


def unused() -> Any:
    return _Misspelt
