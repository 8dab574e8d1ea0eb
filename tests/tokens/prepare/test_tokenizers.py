"""Which tokenizer: where its definition and special ids come from, and what is refused."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dew.data.errors import DamagedSourceError, OptionsError, OptionsTypeError, SourceNotFoundError
from dew.tokens import ByteTokenizer
from dew.tokens.prepare.tokenizers import load_definition, plain

Change = Callable[[dict[str, Any]], None]


def changed(directory: Path, tokenizer_dir: Path, change: Change) -> Path:
    """A copy of the tokenizer whose definition `change` has altered."""
    values = json.loads((tokenizer_dir / "tokenizer.json").read_text())
    change(values)
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(values))
    return path


def test_what_a_corpus_records(tokenizer_dir: Path) -> None:
    import tokenizers

    definition = load_definition(tokenizer_dir)
    info = definition.info
    assert (info.bos_id, info.eos_id, info.pad_id, info.vocab_size) == (1, 2, 3, 340)
    assert info.sha256 == hashlib.sha256((tokenizer_dir / "tokenizer.json").read_bytes()).hexdigest()
    assert (info.library, info.version, info.name) == ("tokenizers", tokenizers.__version__, "")
    assert definition.control_ids().tolist() == [0, 1, 2, 3]
    assert definition.unknown_id() is None


def test_a_file_and_its_directory_are_the_same(tokenizer_dir: Path, tmp_path: Path) -> None:
    expected = load_definition(tokenizer_dir)
    assert load_definition(str(tokenizer_dir / "tokenizer.json")) == expected
    other = changed(tmp_path, tokenizer_dir, lambda values: None)
    assert load_definition(other, bos_token="<s>").info.bos_id == 1
    assert load_definition(other).info.bos_id is None


def test_a_tokenizer_in_memory(tokenizer_dir: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    info = load_definition(tokenizer, eos_token="</s>").info
    assert (info.bos_id, info.eos_id, info.vocab_size) == (None, 2, 340)


def test_tokens_can_be_named_by_the_caller(tokenizer_dir: Path) -> None:
    info = load_definition(tokenizer_dir, eos_token="<extra>").info
    assert (info.bos_id, info.eos_id) == (1, 0)
    with pytest.raises(OptionsError, match=r"has no token '<end>', which eos_token names; its special tokens are '<e"):
        load_definition(tokenizer_dir, eos_token="<end>")


def test_special_tokens_map_speaks_where_the_config_is_silent(tokenizer_dir: Path, tmp_path: Path) -> None:
    path = changed(tmp_path, tokenizer_dir, lambda values: None)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<pad>", "eos_token": "</s>"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": None}))
    info = load_definition(path).info
    assert (info.bos_id, info.eos_id) == (1, 2)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(OptionsError, match=r"tokenizer_config\.json is not JSON"):
        load_definition(path)


def test_the_largest_id_decides_and_not_the_number_of_tokens(tokenizer_dir: Path, tmp_path: Path) -> None:
    def change(values: dict[str, Any]) -> None:
        values["model"]["vocab"]["zz"] = 70_000

    assert load_definition(changed(tmp_path, tokenizer_dir, change)).info.vocab_size == 70_001


def test_dropout_is_refused(tokenizer_dir: Path, tmp_path: Path) -> None:
    path = changed(tmp_path, tokenizer_dir, lambda values: values["model"].update(dropout=0.1))
    with pytest.raises(OptionsError, match=r"splits words at random \(dropout 0\.1\), so its ids are never the same"):
        load_definition(path)
    load_definition(changed(tmp_path, tokenizer_dir, lambda values: values["model"].update(dropout=0.0)))


def test_unknown_ids(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({"[UNK]": 7, "a": 0}, unk_token="[UNK]"))
    assert load_definition(words).unknown_id() == 7
    pieces = Tokenizer(models.Unigram([("a", -1.0), ("<unk>", -2.0)], unk_id=1))
    assert load_definition(pieces).unknown_id() == 1


def test_bytes() -> None:
    assert load_definition("bytes").info == ByteTokenizer().info
    definition = load_definition(ByteTokenizer(bos=True))
    assert definition.info == ByteTokenizer(bos=True).info
    assert definition.control_ids().tolist() == [256, 257]
    with pytest.raises(OptionsError, match=r"special tokens have no text; make one with ByteTokenizer\(bos=True\)"):
        load_definition("bytes", eos_token="x")


def test_a_definition_for_engines_without_switches(tokenizer_dir: Path) -> None:
    definition = load_definition(tokenizer_dir)
    for parse_special, count in ((True, 4), (False, 0)):
        parts = json.loads(plain(definition, parse_special=parse_special))
        assert (parts["truncation"], parts["padding"], parts["post_processor"]) == (None, None, None)
        assert len(parts["added_tokens"]) == count


def test_another_tokenizer_in_its_place(tokenizer_dir: Path) -> None:
    definition = load_definition(tokenizer_dir)
    definition.check("here")
    other = type(definition)(definition.info, "{}")
    with pytest.raises(DamagedSourceError, match=r"here is not the tokenizer that this corpus was begun with"):
        other.check("here")


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ("./absent", SourceNotFoundError, r"there is no tokenizer at .*/absent; check the path"),
        ("absent.json", SourceNotFoundError, r"there is no tokenizer at .*/absent\.json"),
        ("a/b/c", SourceNotFoundError, r"there is no tokenizer at .*/a/b/c"),
        ("empty", OptionsError, r"empty holds no tokenizer\.json; .*save_pretrained"),
        ("text.json", OptionsError, r"text\.json is no tokenizer that tokenizers [\d.]+ reads: "),
        ("latin.json", OptionsError, r"latin\.json is no tokenizer\.json: 'utf-8' codec"),
        (5, OptionsTypeError, r"tokenizer must be a path, the name of a model, or a tokenizer, got 5 \(int\)"),
    ],
)
def test_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Any, kind: type[Exception], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.json").write_text('{"version": "1.0"}')
    (tmp_path / "latin.json").write_bytes(b'{"caf\xe9": 1}')
    with pytest.raises(kind, match=message):
        load_definition(source)


class TestHub:
    """Models by name, from a cache laid out as the hub's client leaves it, with the network switched off."""

    @pytest.fixture(autouse=True)
    def cache(self, tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.chdir(tmp_path)
        for commit, branch, files in (
            ("1" * 40, "main", ("tokenizer.json", "tokenizer_config.json")),
            ("2" * 40, "old", ("tokenizer.json",)),
        ):
            model = tmp_path / "hub" / "models--someone--model"
            (model / "refs").mkdir(parents=True, exist_ok=True)
            (model / "refs" / branch).write_text(commit)
            snapshot = model / "snapshots" / commit
            snapshot.mkdir(parents=True)
            for file in files:
                (snapshot / file).write_bytes((tokenizer_dir / file).read_bytes())

    def test_a_model(self, tokenizer_dir: Path) -> None:
        info = load_definition("someone/model").info
        assert (info.name, info.bos_id, info.eos_id) == ("someone/model", 1, 2)
        assert info.sha256 == load_definition(tokenizer_dir).info.sha256

    def test_a_revision(self) -> None:
        info = load_definition("someone/model@old").info
        assert (info.name, info.bos_id) == ("someone/model@old", None)

    def test_no_such_model(self) -> None:
        with pytest.raises((OptionsError, SourceNotFoundError), match=r"someone/other.* on the Hugging Face hub|hub"):
            load_definition("someone/other")
        with pytest.raises(
            SourceNotFoundError, match=r"there is no file or directory 'no name!', and no model of that"
        ):
            load_definition("no name!")
