"""Prompts and completions as ids: what `Prompts` and `PreferencePairs` read of a row, in each of its forms.

A prompt is messages, a string, or ids. Where it ends is where the model begins to write, so a completion is encoded
apart from it, and the ids of the prompt are the same whatever follows.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import SourceError
from dew.tokens.chat.conversation import Conversation, RowRules
from dew.tokens.chat.renderer import ChatRenderer

if TYPE_CHECKING:
    from dew.tokens.chat.encoding import Encoded
    from dew.tokens.chat.roles import Painted

Form: TypeAlias = Literal["messages", "text", "ids"]
Ids: TypeAlias = npt.NDArray[np.uint32]

PROMPT, UNSCORED, SCORED = 0, 1, 3
"""Roles in a rendered corpus of completions: of the prompt, and of what follows it."""


def form_of(value: object, what: str) -> Form:
    """In which form something is given; `what` names it.

    Raises:
        SourceError: in none of them.
    """
    if isinstance(value, str):
        return "text"
    if isinstance(value, np.ndarray) and cast("npt.NDArray[Any]", value).dtype.kind in "iu":
        return "ids"
    if isinstance(value, Sequence | np.ndarray):
        items = list(cast("Sequence[Any]", value))
        if items and all(isinstance(item, Mapping) for item in items):
            return "messages"
        if items and all(isinstance(item, int | np.integer) and not isinstance(item, bool) for item in items):
            return "ids"
        if not items:
            raise SourceError(f"{what} is empty")
    raise SourceError(f"{what} is a list of messages, a string, or a list of ids, got {value!r:.80}")


@attrs.frozen
class PieceReader:
    """Reads prompts and completions with one renderer.

    Args:
        renderer: for messages.
        rules: for their rows.
        parse_special: whether control tokens in strings are tokens, as in prompts that were rendered before; else they
            are text.
        end: whether a completion that is a string ends with the end token.
    """

    renderer: ChatRenderer
    rules: RowRules
    parse_special: bool = False
    end: bool = True

    def prompt(self, value: Any, tools: Any, what: str = "the prompt") -> Ids:
        """Ids of a prompt, with the header of the turn that is to follow.

        Raises:
            SourceError: it is none, or is empty.
        """
        form = form_of(value, what)
        if form == "ids":
            return self.ids(value, what)
        if form == "text":
            found = self.renderer.encode([self._text(value)])[0].ids
        else:
            found = self.renderer.encode([self.rendered_prompt(value, tools)])[0].ids
        if not found.size:
            raise SourceError(f"{what} is empty: it has no tokens")
        return found

    def rendered_prompt(self, value: Any, tools: Any) -> "Painted":
        """Messages as the text that a model is to go on with.

        Raises:
            SourceError: the last one is the assistant's own.
        """
        conversation = Conversation(self.rules.messages(value), self.rules.tools(tools))
        if conversation.messages[-1]["role"] == "assistant":
            raise SourceError(
                "the prompt ends with a message of the assistant, which is to write the next one; leave it out, or put "
                "it into the completion"
            )
        return self.renderer.prompt(conversation)

    def ids(self, value: Any, what: str) -> Ids:
        """Ids as they are given.

        Raises:
            SourceError: one of them is none of the tokenizer's.
        """
        found = np.asarray(value)
        most = self.renderer.tokenizer.info.vocab_size
        if found.ndim != 1 or int(found.min()) < 0 or int(found.max()) >= most:
            raise SourceError(f"{what} has ids from {found.min()} to {found.max()}, the tokenizer has 0 to {most - 1}")
        return found.astype(np.uint32)

    def text_completion(self, value: str, what: str) -> tuple[Ids, npt.NDArray[np.uint8]]:
        """Ids of a completion that is a string, all of them scored, the end token too."""
        found = self.renderer.encode([self._text(value)], begin=False)[0].ids
        if not found.size:
            raise SourceError(f"{what} is empty: it has no tokens")
        end = self.renderer.tokenizer.info.eos_id
        if self.end and end is not None and found[-1] != end:
            found = np.append(found, np.uint32(end))
        return found, np.full(len(found), SCORED, np.uint8)

    def turn(self, prompt: Any, completion: Any, tools: Any, what: str) -> tuple[Ids, npt.NDArray[np.uint8]]:
        """Ids and roles of a prompt and a completion that are messages, both together.

        Raises:
            SourceError: the template writes the prompt in another way once it is answered, or nothing is scored.
        """
        before = self.rendered_prompt(prompt, tools)
        messages = [*self.rules.messages(prompt), *self.rules.messages(completion)]
        whole = self.renderer.painted(Conversation(messages, self.rules.tools(tools)))
        start = len(before.text)
        if not whole.text.startswith(before.text):
            at = next(i for i, (a, b) in enumerate(zip(before.text + "\0", whole.text + "\1", strict=False)) if a != b)
            raise SourceError(
                f"the template writes the prompt in another way when {what} follows: from character {at} on "
                f"{whole.text[at : at + 40]!r} and not {before.text[at : at + 40]!r}"
            )
        runs = tuple((max(a, start), b, SCORED) for a, b, role in whole.runs if b > start and role == SCORED)
        painted = attrs.evolve(whole, runs=runs, starts=(start,))
        apart, together = self.renderer.encode([before, painted])
        found = self._split(apart.ids, together, what)
        if not (found[1] == SCORED).any():
            raise SourceError(f"{what} has no token that the assistant writes")
        return found

    @staticmethod
    def _split(prompt: Ids, together: "Encoded", what: str) -> tuple[Ids, npt.NDArray[np.uint8]]:
        """Marks what follows the prompt, whose ids are compared one by one."""
        length = len(prompt)
        shared = together.ids[:length]
        if len(shared) < length or (shared != prompt).any():
            at = int(np.argmax(shared != prompt[: len(shared)])) if len(shared) else 0
            raise SourceError(f"{what}: token {at} of the prompt is another when it is encoded with what follows")
        roles = together.roles.copy()
        roles[length:][roles[length:] != SCORED] = UNSCORED
        return together.ids, roles

    def _text(self, value: str) -> "Painted":
        from dew.tokens.chat.roles import Painted

        literal = () if self.parse_special else tuple(self.renderer.typed_in(value))
        return Painted(value, (), (), literal=literal)
