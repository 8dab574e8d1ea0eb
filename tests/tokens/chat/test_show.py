"""`dew peek --roles`: every token of a conversation in the colour of its role."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from dew.cli import main
from dew.cli.peek import peek
from dew.data import OptionsError, SourceError
from dew.tokens.chat import ChatMessages
from dew.tokens.chat.show import tokens_of_row

Model = Callable[..., Path]
ROW = {
    "messages": [
        {"role": "user", "content": "Was heißt 猫 <b>?"},
        {"role": "assistant", "content": "Katze, das 🐈 [x]"},
    ]
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": [ROW["messages"][0]]}) + "\n" + json.dumps(ROW) + "\n")
    return path


def test_tokens_with_their_roles(model: Model, file: Path) -> None:
    tokens = tokens_of_row(ChatMessages(file, tokenizer=model(), seq_len=1), 1)
    texts = {role: "".join(token.text for token in tokens if token.role == role) for role in ("user", "assistant")}
    assert texts["user"] == "<|im_start|>user\nWas heißt 猫 <b>?<|im_end|>\n"
    assert texts["assistant"] == "Katze, das 🐈 [x]<|im_end|>"
    with pytest.raises(OptionsError, match="row 2 was asked for, there are 2"):
        tokens_of_row(ChatMessages(file, tokenizer=model(name="again"), seq_len=1), 2)


def test_the_command(model: Model, file: Path, tmp_path: Path) -> None:
    path = str(model())
    runner = CliRunner()
    shown = runner.invoke(peek, [str(file), "--roles", path, "--row", "1"])
    assert shown.exit_code == 0, shown.output
    assert "Katze, das 🐈 [x]<|im_end|>" in shown.output
    assert "assistant" in shown.output.splitlines()[-2]
    found = json.loads(runner.invoke(peek, [str(file), "--roles", path, "--row", "1", "--json"]).output)
    assert {token["role"] for token in found["tokens"]} == {"template", "user", "assistant"}
    page = tmp_path / "row.html"
    assert runner.invoke(peek, [str(file), "--roles", path, "--row", "1", "--html", str(page)]).output == ""
    written = page.read_text()
    words = re.sub(r"<[^>]*>", "", written)
    assert "Katze, das 🐈 [x]" in words
    assert "猫 &lt;b&gt;?" in words
    assert "<script" not in written
    assert written.count("#b3f0b3") == 1 + sum(token["role"] == "assistant" for token in found["tokens"])
    wrong = runner.invoke(peek, [str(file), "--roles", path, "-o", "sequence=3"])
    assert isinstance(wrong.exception, OptionsError)
    assert "there is no option 'sequence'; the options of conversations are template, variables" in str(wrong.exception)
    unwritable = runner.invoke(peek, [str(file), "--roles", path, "--html", str(tmp_path / "no" / "x.html")])
    assert isinstance(unwritable.exception, OptionsError)


def test_a_row_that_cannot_be_shown_is_named(model: Model, file: Path) -> None:
    file.write_text('{"messages": []}\n')
    shown = CliRunner().invoke(peek, [str(file), "--roles", str(model())])
    assert isinstance(shown.exception, SourceError)
    assert "row 0" in str(shown.exception)


def test_without_roles_a_batch_is_needed() -> None:
    shown = CliRunner().invoke(peek, ["tokens/x"])
    assert shown.exit_code == 2
    assert "Missing option '--batch'" in shown.output
    assert callable(main)
