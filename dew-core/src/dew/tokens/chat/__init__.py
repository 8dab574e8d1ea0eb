"""Conversations, prompts and preference pairs as training data, with the role of every token.

`ChatMessages`, `Prompts` and `PreferencePairs` make a `Dataset`; `docs/chat.md` shows their use. Rendering needs the
extra `dew-core[chat]`: the packages `tokenizers` and `jinja2`, and nothing that loads a model.
"""

from dew.tokens.chat.messages import ChatMessages, ChatReport, ChatSource
from dew.tokens.chat.pairs import PairSource, PreferencePairs
from dew.tokens.chat.prompts import Prompts, PromptSource
from dew.tokens.chat.renderer import ChatRenderer, ChatRules
from dew.tokens.chat.rendering import ChatCounts
from dew.tokens.chat.roles import ROLES, loss_mask
from dew.tokens.chat.tokenizer import ChatTokenizer, load_chat_tokenizer

__all__ = [
    "ROLES",
    "ChatCounts",
    "ChatMessages",
    "ChatRenderer",
    "ChatReport",
    "ChatRules",
    "ChatSource",
    "ChatTokenizer",
    "PairSource",
    "PreferencePairs",
    "PromptSource",
    "Prompts",
    "load_chat_tokenizer",
    "loss_mask",
]
