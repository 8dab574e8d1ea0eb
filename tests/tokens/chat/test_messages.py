"""ChatMessages: rendered once, packed whole, refused by name, found again."""

import json
import logging
import os
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dew.data import (
    DataPartition,
    DewWarning,
    Loading,
    OptionsError,
    OptionsTypeError,
    OverlapError,
    SourceError,
    SourceNotFoundError,
    check_batch,
    shift,
)
from dew.data.errors import PoolError, StorageError
from dew.testing import SourceSuite
from dew.tokens import TokenCorpus, TokenWriter, verify_corpus
from dew.tokens.chat import ChatMessages, ChatSource, artefact

Model = Callable[..., Path]
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "said", "hello", "to", "user", "it", "is", "what"]


def rows(count: int, *, seed: int = 0, longest: int = 20) -> list[dict[str, Any]]:
    """Conversations of one or two exchanges."""
    rng = random.Random(seed)

    def say() -> str:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, longest)))

    made: list[dict[str, Any]] = []
    for _ in range(count):
        messages = []
        for _ in range(rng.randrange(1, 3)):
            messages += [{"role": "user", "content": say()}, {"role": "assistant", "content": say()}]
        made.append({"messages": messages})
    return made


def write_jsonl(path: Path, data: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in data))
    return path


@pytest.fixture
def spec(model: Model, tmp_path: Path) -> Callable[..., ChatMessages]:
    made: list[Path] = []

    def make(data: Any, **options: Any) -> ChatMessages:
        if not made:
            made.append(model())
        wanted = {"tokenizer": made[0], "seq_len": 127, "renders": tmp_path / "renders", **options}
        return ChatMessages(data, **wanted)

    return make


Spec = Callable[..., ChatMessages]


def test_batches_are_whole_conversations_with_roles(spec: Spec) -> None:
    chats = spec(rows(60))
    dataset = chats.load(batch=4)
    with dataset.train(DataPartition()) as stream:
        batch = next(stream)
    check_batch(batch, "sft")
    assert batch["text_roles"].shape == (4, 128)
    assert not batch["text_roles"][batch["text_segment_ids"] == 0].any()
    mask = chats.loss_mask(batch)
    shifted = shift(batch)
    assert (mask == ((shifted["target_roles"] == 3) & shifted["target_mask"])).all()
    report = chats.prepare()
    source = chats.source()
    every = source.take(np.arange(len(source)))
    assert int(chats.loss_mask(every).sum()) == report.counts.targets
    assert int((every["text_segment_ids"] > 0).sum()) == report.counts.tokens
    assert (every["text_positions"] == 0).sum(where=every["text_segment_ids"] > 0) == report.counts.rows == 60
    assert "60 conversations (0 dropped" in str(report)


def test_every_conversation_is_there_once_as_it_is_alone(spec: Spec) -> None:
    data = rows(25)
    chats = spec(data)
    source = chats.source()
    renderer = chats.plan().renderer
    from dew.tokens.chat.conversation import RowRules

    alone = renderer.encode([renderer.painted(RowRules().conversation(row)) for row in data])
    expected = sorted((found.ids.tolist(), found.roles.tolist()) for found in alone)
    packed = []
    for index in range(len(source)):
        row = source[index]
        for segment in range(1, int(row["text_segment_ids"].max()) + 1):
            of_it = row["text_segment_ids"] == segment
            packed.append((row["text"][of_it].tolist(), row["text_roles"][of_it].tolist()))
            assert row["text_positions"][of_it].tolist() == list(range(int(of_it.sum())))
    assert sorted(packed) == expected


def test_rendered_once(spec: Spec, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dew.tokens"):
        first = spec(rows(30)).source()
        again = spec(rows(30)).source()
    assert sum("rows rendered to" in record.getMessage() for record in caplog.records) == 1
    assert first.fingerprint() == again.fingerprint()
    assert first.identity() == again.identity()
    (folder,) = (tmp_path / "renders").iterdir()
    verify_corpus(folder)
    assert {path.suffix for path in folder.iterdir()} == {".json", ".npy"}
    assert np.load(folder / "shard-00000.roles.npy", mmap_mode="r").dtype == np.uint8


@pytest.mark.parametrize(
    "change",
    [
        {"seq_len": 128},
        {"target_roles": ("user", "assistant")},
        {"variables": {"x": 1}},
        {"date": "2026-01-31"},
        {"template": "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"},
        {"long": "drop"},
        {"arguments": "text"},
        {"role_names": {"human": "user"}},
    ],
)
def test_other_rules_are_another_render(spec: Spec, tmp_path: Path, change: dict[str, Any]) -> None:
    spec(rows(5)).source()
    spec(rows(5), **change).source()
    assert len(list((tmp_path / "renders").iterdir())) == 2


def test_other_rows_are_another_render_and_another_place_is_not(spec: Spec, tmp_path: Path) -> None:
    data = rows(5)
    ids = {spec(data).plan().artefact.key(), spec(rows(5, seed=1)).plan().artefact.key()}
    assert len(ids) == 2
    one, two = write_jsonl(tmp_path / "one.jsonl", data), tmp_path / "elsewhere"
    two.mkdir()
    assert spec(one).plan().artefact.key() == spec(write_jsonl(two / "other.jsonl", data)).plan().artefact.key()


def test_the_same_tokens_are_the_same_data_whatever_file_they_came_from(spec: Spec, tmp_path: Path) -> None:
    data = rows(5)
    path = write_jsonl(tmp_path / "a.jsonl", data)
    one, two, three = spec(data).source(), spec(path).source(), spec(rows(5, seed=1)).source()
    assert one.fingerprint() == two.fingerprint() != three.fingerprint()


def test_a_damaged_render_is_made_again(spec: Spec, tmp_path: Path) -> None:
    before = spec(rows(5)).source()
    wanted = before[0]["text_roles"]
    before.close()
    (folder,) = (tmp_path / "renders").iterdir()
    data = bytearray((folder / "shard-00000.roles.npy").read_bytes())
    data[-3] ^= 1
    (folder / "shard-00000.roles.npy").write_bytes(data)
    with pytest.warns(DewWarning, match="the rows are rendered again"):
        after = spec(rows(5)).source()
    assert (after[0]["text_roles"] == wanted).all()
    verify_corpus(folder)


def test_an_error_leaves_nothing_behind(spec: Spec, tmp_path: Path) -> None:
    data = [*rows(70), {"messages": []}]
    with pytest.raises(SourceError, match="row 70: the conversation is empty"):
        spec(data).source()
    assert list((tmp_path / "renders").iterdir()) == []


def test_jsonl_json_parquet_and_directories_are_the_same_rows(spec: Spec, tmp_path: Path) -> None:
    data = rows(12)
    expected = spec(data).source()
    folder = tmp_path / "many"
    folder.mkdir()
    write_jsonl(folder / "a.jsonl", data[:5])
    (folder / "b.json").write_text(json.dumps(data[5:], indent=1))
    pq.write_table(pa.Table.from_pylist(data), tmp_path / "t.parquet")
    lines = tmp_path / "lines.jsonl"
    lines.write_text("\n\n".join(json.dumps(row) for row in data))
    for found in (folder, tmp_path / "t.parquet", lines):
        source = spec(found).source()
        assert len(source) == len(expected)
        for index in range(len(source)):
            for name, column in source[index].items():
                assert (column == expected[index][name]).all(), (found, name)


def test_keys_that_arrow_fills_in_are_none(spec: Spec, tmp_path: Path) -> None:
    """In Arrow every message has tool calls, and every call the arguments of all others."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% if m.tool_calls is defined %}{{ m.tool_calls | tojson }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    data: list[Any] = []
    for arguments in ({"city": "Bonn"}, {"days": 3}):
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        data.append(
            {"messages": [rows(1)[0]["messages"][0], {"role": "assistant", "content": "", "tool_calls": [call]}]}
        )
    pq.write_table(pa.Table.from_pylist(data), tmp_path / "calls.parquet")
    stored = pq.read_table(tmp_path / "calls.parquet").to_pylist()
    assert "days" in stored[0]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert "tool_calls" in stored[0]["messages"][0]
    options = {"template": template, "seq_len": 255}
    lines, table = spec(data, **options).source(), spec(tmp_path / "calls.parquet", **options).source()
    assert (lines[0]["text"] == table[0]["text"]).all()
    assert (spec(Split(stored), **options).source()[0]["text"] == lines[0]["text"]).all()


def test_two_that_render_at_once_make_one(spec: Spec, tmp_path: Path) -> None:
    chats = spec(rows(40))
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: chats.source()[0]["text"].tolist(), range(3)))
    assert found[0] == found[1] == found[2]
    assert len(list((tmp_path / "renders").iterdir())) == 1


def test_a_pool_does_not_render_what_one_process_should(spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefact, "_processes", lambda: 4)
    with pytest.raises(PoolError, match=r"not been rendered yet, and each of 4 processes would.*call prepare\(\) once"):
        spec(rows(4)).source()
    spec(rows(4)).prepare()
    assert len(spec(rows(4)).source()) >= 1


def test_nowhere_to_keep_it(spec: Spec, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"renders='.*file' cannot hold the rendered rows"):
        spec(rows(2), renders=str(tmp_path / "file")).source()


class Split:
    """A record source as another provider opens one."""

    def __init__(self, data: list[Any]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index]

    def __repr__(self) -> str:
        return "Split()"

    def fingerprint(self) -> str:
        return str(len(self.data))


def test_record_sources_are_read_by_their_rows(spec: Spec) -> None:
    data = rows(12)
    source, expected = spec(Split(data)).source(), spec(data).source()
    assert (source[0]["text"] == expected[0]["text"]).all()


def test_renders_lie_beside_a_local_file(spec: Spec, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "chats.jsonl", rows(3))
    spec(path, renders=None).source()
    assert [name.startswith("chat-") for name in os.listdir(tmp_path / ".dew-chats")] == [True]


def test_else_in_the_users_cache(spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    spec(rows(3), renders=None).source()
    assert len(list((tmp_path / "cache/dew/chats").iterdir())) == 1


def test_rows_without_a_target_are_counted_over_the_corpus(spec: Spec) -> None:
    """A template without generation tags, silent zeros elsewhere: here it is an error."""
    silent = {"messages": [{"role": "user", "content": "Hi"}]}
    data = [*rows(3), silent, *rows(2), silent]
    with pytest.raises(SourceError, match=r"row 3 has no token of a target role.*2 of 7 rows have none"):
        spec(data).source()
    assert len(spec(data, target_roles=("user",)).source()) >= 1


def test_tagged_templates_without_any_assistant_are_refused(spec: Spec) -> None:
    never = (
        "{% for m in messages %}{{ m.content }}"
        "{% if m.role == 'nobody' %}{% generation %}{% endgeneration %}{% endif %}{% endfor %}"
    )
    with pytest.raises(SourceError, match="4 of 4 rows have none"):
        spec(rows(4), template=never).source()


SHORT = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}
LONG = {
    "messages": [
        {"role": "user", "content": "the cat " * 3},
        {"role": "assistant", "content": "sat on a mat " * 3},
    ]
}


def test_long_conversations_are_never_split(spec: Spec) -> None:
    """Case C13: the first tokens stay, and roles with them."""
    whole = spec([LONG]).source()[0]
    length = int((whole["text_segment_ids"] > 0).sum())
    assert length > 33
    with pytest.raises(SourceError, match=rf"row 1 has {length} tokens, .* seq_len 31 has room for 32; 1 of 2 rows"):
        spec([SHORT, LONG], seq_len=31).source()
    for long, part in {"truncate_right": slice(32), "truncate_left": slice(length - 32, length)}.items():
        chats = spec([LONG], seq_len=31, long=long)
        row = chats.source()[0]
        assert (row["text"] == whole["text"][part]).all()
        assert (row["text_roles"] == whole["text_roles"][part]).all()
        assert {len(column) for column in row.values()} == {32}
        assert chats.prepare().counts.truncated == 1
    dropping = spec([LONG, SHORT, SHORT, SHORT], seq_len=31, long="drop")
    assert dropping.prepare().counts.dropped == 1
    assert dropping.prepare().packing.counts.documents == 3
    with pytest.raises(SourceError, match=r"no conversation is left: of 1 rows 1 are too long"):
        spec([LONG], seq_len=31, long="drop").source()
    with pytest.raises(OptionsError, match=r"long must be one of error, drop.*'split'; a conversation is never split"):
        spec([LONG], long="split")


def test_a_truncated_row_keeps_a_target_or_goes(spec: Spec) -> None:
    prompt = {"messages": [{"role": "user", "content": "the cat " * 30}, {"role": "assistant", "content": "sat"}]}
    chats = spec([prompt, SHORT, SHORT], seq_len=31, long="truncate_right")
    counts = chats.prepare().counts
    assert (counts.targetless, counts.truncated, counts.rows) == (1, 0, 3)
    kept = spec([prompt], seq_len=31, long="truncate_left").source()
    assert (kept[0]["text_roles"] == 3).any()


def test_the_end_of_turn_is_learnt_also_where_it_is_the_padding(spec: Spec, model: Model) -> None:
    """Padding is a place, never a token: with pad == eos the end of every turn is still scored."""
    chats = spec(rows(10), tokenizer=model(name="padded", pad_token="<|im_end|>"))
    source = chats.source()
    batch = source.take(np.arange(len(source)))
    end = chats.plan().renderer.tokenizer.info.eos_id
    assert end == chats.plan().renderer.tokenizer.info.pad_id
    turns = sum(message["role"] == "assistant" for row in rows(10) for message in row["messages"])
    assert int((chats.loss_mask(batch) & (batch["text"][:, 1:] == end)).sum()) == turns


def test_validation_is_other_conversations(spec: Spec) -> None:
    dataset = spec(rows(40), val=rows(10, seed=5)).load(batch=4)
    assert dataset.val is not None
    with dataset.val(DataPartition()) as batches:
        found = list(batches)
    assert "valid" in found[0]
    padding = found[-1]["text_roles"][~found[-1]["valid"]]
    assert not padding.any()
    with pytest.raises(OverlapError):
        spec(rows(40), val=rows(40)).load(batch=4)


def test_resumes_by_one_integer_on_any_process_count(spec: Spec) -> None:
    dataset = spec(rows(200)).load(batch=4)
    with dataset.train(DataPartition()) as stream:
        for _ in range(3):
            next(stream)
        state = stream.get_state()
        expected = next(stream)["text"]
    found = []
    for index in range(2):
        with dataset.train(DataPartition(index=index, count=2)) as stream:
            stream.set_state(state)
            found.append(next(stream)["text"])
    merged = np.stack(found, axis=1).reshape(expected.shape)
    assert (merged == expected).all()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"date": "today"}, OptionsError, "date must be a day as '2026-01-31', or None, got 'today'"),
        ({"date": 3}, OptionsTypeError, "date must be a day"),
        ({"role_names": {"human": "person"}}, OptionsError, "role_names says that 'human' is 'person'"),
        ({"role_names": "human"}, OptionsTypeError, "role_names must be a mapping"),
        ({"variables": {"x": {1}}}, OptionsError, "variables must hold JSON values"),
        ({"arguments": "dict"}, OptionsError, "arguments must be one of parsed, text, given, got 'dict'"),
        ({"template": 3}, OptionsTypeError, "template must be the name or the text of a template"),
        ({"target_roles": ("template",)}, OptionsError, "target_roles has 'template'"),
        ({"seq_len": 0}, OptionsError, "seq_len must be at least 1, got 0"),
    ],
)
def test_wrong_options(spec: Spec, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        spec(rows(1), **options)


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ({"messages": []}, OptionsTypeError, "conversations come from the path of a file or directory, a sequence"),
        (3, OptionsTypeError, r"got 3 \(int\)"),
        ("nowhere.jsonl", SourceNotFoundError, "there is no file or directory .*nowhere.jsonl; check the path"),
        ([], SourceError, "there are no conversations"),
        (
            [{"messages": [{"role": "user", "content": "x"}], "y": {1}}],
            SourceError,
            "row 0 holds what JSON cannot write",
        ),
    ],
)
def test_wrong_data(spec: Spec, data: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        spec(data).source()


def test_wrong_files(spec: Spec, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"messages": []}\n{"messages"\n')
    with pytest.raises(SourceError, match=r"row 0 \(.*x.jsonl\): the conversation is empty"):
        spec(tmp_path / "x.jsonl").source()
    (tmp_path / "y.jsonl").write_text('\n{"messages"\n')
    with pytest.raises(SourceError, match=r"y.jsonl, line 2 is no JSON"):
        spec(tmp_path / "y.jsonl").source()
    (tmp_path / "z.parquet").write_bytes(b"PAR1")
    with pytest.raises(SourceError, match=r"z.parquet is no Parquet file"):
        spec(tmp_path / "z.parquet").source()
    (tmp_path / "w.csv").write_text("a")
    with pytest.raises(OptionsError, match=r"w.csv is no .jsonl, .json or .parquet file"):
        spec(tmp_path / "w.csv").source()
    mixed, empty = tmp_path / "mixed", tmp_path / "empty"
    mixed.mkdir()
    empty.mkdir()
    with pytest.raises(SourceNotFoundError, match=r"empty holds no .jsonl, .json or .parquet file"):
        spec(empty).source()
    shutil.copy(tmp_path / "x.jsonl", mixed)
    shutil.copy(tmp_path / "z.parquet", mixed)
    with pytest.raises(OptionsError, match="holds both JSON and Parquet files"):
        spec(mixed).source()


def test_tokenizers_and_their_templates(model: Model, tmp_path: Path, chatml: str) -> None:
    with pytest.raises(SourceNotFoundError, match=r"there is no tokenizer at .*gone; check the path"):
        ChatMessages(rows(1), tokenizer=tmp_path / "gone", seq_len=9).plan()
    bare = model(None, name="bare")
    with pytest.raises(OptionsError, match=r"bare has no chat template.*pass its text as template="):
        ChatMessages(rows(1), tokenizer=bare, seq_len=9).plan()
    with pytest.raises(OptionsError, match=r"no chat template 'rag', it has none"):
        ChatMessages(rows(1), tokenizer=bare, seq_len=9, template="rag").plan()
    with pytest.raises(OptionsError, match=r"the chat template is none: line 1: "):
        ChatMessages(rows(1), tokenizer=bare, seq_len=9, template="{% for %}").plan()
    hidden = "{% macro a() %}{% generation %}{% endgeneration %}{% endmacro %}"
    with pytest.raises(OptionsError, match=r"has \{% generation %\} in a macro"):
        ChatMessages(rows(1), tokenizer=bare, seq_len=9, template=hidden).plan()
    named = model(chatml, name="named", templates={"tool_use": "T" + chatml, "rag": "R" + chatml})
    listed = [{"name": "default", "template": "D" + chatml}, {"name": "tool_use", "template": "T" + chatml}]
    in_config = model(None, name="in-config", chat_template=listed)
    single = model(None, name="single", chat_template="S" + chatml)
    tools = [{"type": "function", "function": {"name": "f"}}]
    for path, template, given, first in [
        (named, None, None, "<"),
        (named, None, tools, "T"),
        (named, "rag", tools, "R"),
        (in_config, None, None, "D"),
        (in_config, None, tools, "T"),
        (single, None, tools, "S"),
    ]:
        renderer = ChatMessages(rows(1), tokenizer=path, seq_len=9, template=template).plan().renderer
        from dew.tokens.chat.conversation import RowRules

        row = {**rows(1)[0], "tools": given}
        assert renderer.painted(RowRules().conversation(row)).text[0] == first


def test_a_name_on_the_hub_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SourceNotFoundError, match=r"no directory 'nobody/nothing', and no model of that name"):
        ChatMessages(rows(1), tokenizer="nobody/nothing", seq_len=9).plan()


def test_without_jinja2_the_extra_is_named(model: Model) -> None:
    code = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from dew.data import ChatMessages, OptionsError\n"
        f"try: ChatMessages([], tokenizer={str(model())!r}, seq_len=9).plan()\n"
        "except OptionsError as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "dew-core[chat]"' in found.stdout


def test_worker_processes_read_it(spec: Spec) -> None:
    alone = spec(rows(60)).load(batch=4)
    working = spec(rows(60), loading=Loading(workers=1)).load(batch=4)
    with alone.train(DataPartition()) as one, working.train(DataPartition()) as other:
        for _ in range(3):
            expected, found = next(one), next(other)
            assert all((expected[name] == found[name]).all() for name in expected)


def test_roles_are_of_a_corpus_that_has_them(tmp_path: Path) -> None:
    with TokenWriter(tmp_path / "plain", vocab_size=9) as writer:
        writer.add([1, 2])
        with pytest.raises(
            SourceError, match=r"document 1 has ids \(2,\) and roles \(2,\), and this corpus has no roles"
        ):
            writer.add([1, 2], np.zeros(2, np.uint8))
    with pytest.raises(SourceError, match="has no roles: shard-00000 has none; ChatMessages makes corpora that have"):
        ChatSource(TokenCorpus(tmp_path / "plain"), seq_len=8)
    with TokenWriter(tmp_path / "roles", vocab_size=9, roles=True, shard_tokens=3) as writer:
        writer.add([1, 2], np.array([0, 3], np.uint8))
        writer.add([3, 4, 5], np.array([2, 3, 3], np.uint8))
        writer.add([], np.zeros(0, np.uint8))
        with pytest.raises(SourceError, match=r"document 3 has ids \(2,\) and roles \(1,\).*a role for every id"):
            writer.add([1, 2], np.zeros(1, np.uint8))
        with pytest.raises(SourceError, match=r"and no roles"):
            writer.add([1, 2])
    verify_corpus(tmp_path / "roles")
    source = ChatSource(TokenCorpus(tmp_path / "roles"), seq_len=4)
    assert source[0]["text_roles"].tolist() == [0, 3, 2, 3, 3]
    with pytest.raises(OptionsError, match="roles=True with bos or eos"):
        TokenWriter(tmp_path / "no", vocab_size=9, roles=True, eos=True)


class TestChatSource(SourceSuite):
    """The conformance kit."""

    location = "renders"

    @pytest.fixture(autouse=True)
    def _source(self, spec: Spec) -> None:
        self.spec = spec(rows(40))

    def make_source(self) -> ChatSource:
        return self.spec.source()


def test_workers_read_it_too(spec: Spec) -> None:
    source = spec(rows(40)).source()
    copy = pickle.loads(pickle.dumps(source))
    other = source.open()
    for name, column in source[1].items():
        assert (column == copy[1][name]).all()
        assert (column == other[1][name]).all()
    other.close()


def test_a_hugging_face_split_is_a_record_source(spec: Spec) -> None:
    import datasets

    data = rows(12)
    split = datasets.Dataset.from_list(data)
    source, expected = spec(split).source(), spec(data).source()
    assert source.fingerprint() == expected.fingerprint()
