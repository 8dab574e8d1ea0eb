"""`dew peek --out` and `--stats`: maps of packed tokens, sheets of pictures, strips of clips, what a source counts."""

import io
import json
import sys
import types
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from dew.cli.peek import peek
from dew.cli.sheets import sheets
from dew.data import register, unregister
from dew.data.errors import OptionsError, ProviderError, SourceError
from dew.data.provider import Picture, Provider, ShowRequest, hookimpl
from dew.tokens.show import MOST_ROWS, packing_map, role_map, show

SVG = "{http://www.w3.org/2000/svg}"

PROGRAM = """
import numpy as np
from dew.data import from_records

y, x = np.mgrid[0:40, 0:64]
clips = np.stack([np.stack([np.stack([x + k, y + 10 * t, y * 0 + 9 * k], -1) for t in range(20)]) for k in range(6)])
segments = np.array([[1, 1, 2, 0], [1, 2, 3, 3]], np.int32)
video = from_records({"video": clips.astype(np.uint8), "label": np.arange(6)}, batch=3)
packed = from_records({"text": segments, "text_segment_ids": segments}, batch=2)
both = from_records({"text_segment_ids": segments, "answer_segment_ids": segments}, batch=2)
numbers = from_records({"x": np.arange(9)}, batch=3)
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(PROGRAM)
    return f"{tmp_path}/train.py"


def run(*words: object, fails: bool = False) -> Result:
    return CliRunner().invoke(peek, list(map(str, words)), catch_exceptions=fails)


def drawn(picture: Picture) -> ElementTree.Element:
    return ElementTree.fromstring(picture.data)


def bars(picture: Picture) -> list[str]:
    """What each bar of a map says."""
    return [
        title.text or "" for bar in drawn(picture).iter(f"{SVG}rect") if (title := bar.find(f"{SVG}title")) is not None
    ]


SEGMENTS = np.array([[1, 1, 2, 2, 2, 0], [1, 2, 2, 3, 3, 3]], np.int32)


def test_a_packing_map() -> None:
    picture = packing_map(SEGMENTS, (7, 4))
    assert picture.media_type == "image/svg+xml"
    assert bars(picture) == [
        "record 7: segment 1, positions 0 to 1, 2 tokens",
        "record 7: segment 2, positions 2 to 4, 3 tokens",
        "record 7: padding, positions 5 to 5, 1 tokens",
        "record 4: segment 1, positions 0 to 0, 1 tokens",
        "record 4: segment 2, positions 1 to 2, 2 tokens",
        "record 4: segment 3, positions 3 to 5, 3 tokens",
    ]
    assert "2 rows of 6 positions, 91.7% filled, 5 segments (2 to 3 a row)" in picture.alt
    widths = [
        float(bar.get("width", 0)) for bar in drawn(picture).iter(f"{SVG}rect") if bar.find(f"{SVG}title") is not None
    ]
    assert widths == pytest.approx([tokens * 150 - 0.6 for tokens in (2, 3, 1, 1, 2, 3)], abs=0.01)
    starts = [
        float(bar.get("x", 0)) for bar in drawn(picture).iter(f"{SVG}rect") if bar.find(f"{SVG}title") is not None
    ]
    assert np.diff(starts).tolist() == pytest.approx([300, 450, -750, 150, 300], abs=0.01)
    neighbours = [bar.get("class") for bar in drawn(picture).iter(f"{SVG}rect") if bar.find(f"{SVG}title") is not None]
    assert neighbours == ["c0", "c1", "p", "c0", "c1", "c2"]


def test_a_role_map() -> None:
    roles = np.array([[0, 3, 3, 1, 9, 0], [2, 2, 2, 2, 3, 3]], np.int32)
    picture = role_map(roles, SEGMENTS)
    assert bars(picture) == [
        "row 0: template, positions 0 to 0, 1 tokens",
        "row 0: assistant, positions 1 to 2, 2 tokens",
        "row 0: system, positions 3 to 3, 1 tokens",
        "row 0: role 9, positions 4 to 4, 1 tokens",
        "row 0: padding, positions 5 to 5, 1 tokens",
        "row 1: user, positions 0 to 3, 4 tokens",
        "row 1: assistant, positions 4 to 5, 2 tokens",
    ]
    assert "template 9.1%, system 9.1%, user 36.4%, assistant 36.4%" in picture.alt
    words = [element.text for element in drawn(picture).iter(f"{SVG}text")]
    assert {"template", "system", "user", "assistant", "padding", "row 0", "row 1"} <= set(words)
    assert "tool" not in words


def test_maps_of_large_batches_stay_bounded() -> None:
    many = np.tile(np.arange(1, 802, dtype=np.int32), (300, 1))
    picture = packing_map(many)
    assert f"the first {MOST_ROWS} rows are drawn" in picture.data.decode()
    assert len(list(drawn(picture).iter(f"{SVG}rect"))) == MOST_ROWS * 801 + 1
    assert bars(picture) == []  # too many to say each


def test_which_fields_are_packed() -> None:
    batch: dict[str, Any] = {"text_segment_ids": SEGMENTS, "text_roles": SEGMENTS, "x_segment_ids": SEGMENTS}
    assert [one.name for one in show(ShowRequest(batch=batch))] == ["text packing", "text roles", "x packing"]
    for other in (SEGMENTS[0], SEGMENTS.astype(np.float32), SEGMENTS[:0], {"nested": 1}):
        assert show(ShowRequest(batch={"text_segment_ids": other})) == []
    assert len(show(ShowRequest(batch={"text_segment_ids": SEGMENTS, "text_roles": SEGMENTS[:1]}))) == 1


def decoded(picture: Picture) -> Image.Image:
    return Image.open(io.BytesIO(picture.data))


def test_pictures_small_and_large() -> None:
    rng = np.random.default_rng(0)
    digits = rng.integers(0, 255, (3, 8, 10, 1)).astype(np.uint8)
    (picture,) = sheets(ShowRequest(batch={"digit": digits}))
    pixels = np.asarray(decoded(picture).convert("L"))
    assert np.array_equal(
        pixels[8 : 8 + 80 : 10, 8 : 8 + 100 : 10], digits[0, ..., 0]
    )  # magnified ten times, unblurred
    large = np.zeros((60, 400, 300, 3), np.uint8)
    (picture,) = sheets(ShowRequest(batch={"a": {"b": large}}, ids=tuple(range(60))))
    assert picture.name == "a.b"
    assert picture.alt.startswith("Contact sheet of a.b: the first 48 of 60 pictures of 300 by 400 pixels. record 0;")
    assert decoded(picture).width <= 1200
    other = {"mask": large[..., :2], "float": np.zeros((2, 4, 4, 3)), "flat": np.zeros((4, 4, 3), np.uint8)}
    assert sheets(ShowRequest(batch=other)) == []


def test_what_stands_under_a_picture() -> None:
    pixels = np.zeros((2, 9, 9, 3), np.uint8)
    batch = {"image": pixels, "valid": np.ones(2, bool), "label": np.array([3, 4]), "caption": np.array(["a\nb", "c"]),
             "third": np.array([5, 6])}  # fmt: skip
    (picture,) = sheets(ShowRequest(batch=batch, ids=(10, 11)))
    assert picture.alt.endswith("record 10: label 3: a b; record 11: label 4: c.")
    mixed = np.array([{"no": 1}, {"text": 2}], object)
    (picture,) = sheets(ShowRequest(batch={"image": pixels, "meta": mixed}))
    assert picture.alt.endswith("row 0; row 1.")


def test_clips(program: str, tmp_path: Path) -> None:
    ran = run(f"{program}:video", "--out", tmp_path / "strip.png")
    assert ran.output.endswith(f"wrote {tmp_path}/strip.png\n")
    ids = json.loads(run(f"{program}:video", "--json").stdout)["ids"]
    strip = np.asarray(Image.open(tmp_path / "strip.png"))
    # Eight of twenty frames of 64 by 40 pixels, twice as large; the second row begins under the first's labels.
    first = strip[8 + 18 : 8 + 18 + 80 : 2, 8 : 8 + 128 : 2]
    assert first[0, 0].tolist() == [ids[0], 0, 9 * ids[0]]
    assert first[0, 63].tolist() == [63 + ids[0], 0, 9 * ids[0]]
    last = strip[8 + 18, 8 + 7 * 136]
    assert last.tolist() == [ids[0], 190, 9 * ids[0]]


def test_clips_in_motion(program: str, tmp_path: Path) -> None:
    answer = json.loads(run(f"{program}:video", "--out", tmp_path / "clips.webp", "--json").stdout)
    assert answer["written"] == [f"{tmp_path}/clips.webp"]
    with Image.open(tmp_path / "clips.webp") as moving:
        assert moving.format == "WEBP"
        assert getattr(moving, "n_frames", 1) == 20
    run(f"{program}:video", "--webp", "--html", tmp_path / "page.html")
    assert "data:image/webp;base64," in (tmp_path / "page.html").read_text()


def test_one_picture_or_several(program: str, tmp_path: Path) -> None:
    run(f"{program}:packed", "--out", tmp_path / "map.svg")
    assert (tmp_path / "map.svg").read_bytes().startswith(b"<svg")
    ran = run(f"{program}:both", "--out", tmp_path / "two.svg")
    names = {"two-text-packing.svg", "two-answer-packing.svg"}
    assert {entry.name for entry in tmp_path.glob("two*")} == names
    assert ran.output.count("wrote ") == 2


@pytest.mark.parametrize(
    ("name", "out", "expected"),
    [
        ("numbers", "x.png", r"nothing to draw: no field is packed tokens.*dew-core\[images\]"),
        ("packed", "x.png", r"\.png holds none of: text packing \(image/svg\+xml\)"),
        ("packed", "x", r"no suffix holds none of: text packing"),
        ("packed", "no/x.svg", r"--out .*/no/x.svg cannot be written: there is no directory"),
        ("packed", "taken.svg", r"--out .*/taken.svg cannot be written: .*directory"),
    ],
)
def test_files_that_cannot_be_drawn(program: str, tmp_path: Path, name: str, out: str, expected: str) -> None:
    (tmp_path / "taken.svg").mkdir()
    with pytest.raises(OptionsError, match=expected):
        run(f"{program}:{name}", "--out", tmp_path / out)


def test_without_pillow_there_are_maps_but_no_sheets(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    run(f"{program}:packed", "--out", tmp_path / "map.svg")
    with pytest.raises(OptionsError, match="nothing to draw"):
        run(f"{program}:video", "--out", tmp_path / "strip.png")


@attrs.frozen
class Counted:
    """A source of pictures of unequal size, which counts them."""

    counts: Any

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": np.zeros((4 + index, 4, 3), np.uint8)}

    def statistics(self) -> Any:
        return self.counts


SIZES = {"size": {"4x4": 1, "5x4": 3}, "format": {"[bold]PNG": 1200}}


@pytest.fixture
def counted(request: pytest.FixtureRequest) -> Iterator[str]:
    """A provider `counted`, whose pictures are drawn by `dew_counted_show:draw` if the test says so."""
    counts, target, needs = getattr(request, "param", (SIZES, None, False))

    class Plugin:
        @hookimpl
        def dew_provider(self) -> Provider:
            return Provider(
                prefix="counted", summary="counted", options=None, show=target, needs_preprocess=needs,
                open=lambda request, split: Counted(counts) if counts else [{"x": n} for n in range(6)],
            )  # fmt: skip

    register(Plugin(), prefix="counted")
    yield "counted/x"
    unregister("counted")


def test_statistics_need_no_batch(counted: str) -> None:
    """The sizes are what somebody needs whose images form no batch yet."""
    ran = run(counted, "--stats")
    assert [line.split()[:2] for line in ran.output.splitlines() if "x4" in line] == [["4x4", "1"], ["5x4", "3"]]
    assert "[bold]PNG" in ran.output
    assert "1,200" in ran.output
    answer = json.loads(run(counted, "--stats", "--json").stdout)
    assert answer == {"source": "counted/x", "split": "train", "seed": 0, "statistics": SIZES}


@pytest.mark.parametrize("counted", [(SIZES, None, True)], indirect=True)
def test_statistics_on_a_page(counted: str, tmp_path: Path) -> None:
    """Beside the one record that can be shown of rows that form no batch."""
    run(counted, "--stats", "--batch", 2, "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert 'id="statistics"' in page
    assert "<bdi>5x4</bdi>" in page
    assert "width:33.3%" in page
    assert "this is record" in page
    assert "data:image/png;base64," in page


def test_sources_that_count_nothing(program: str) -> None:
    with pytest.raises(OptionsError, match=r"--stats was given, and .*:numbers has none: ColumnSource has no method"):
        run(f"{program}:numbers", "--stats")


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        ((["a"], None, False), r"Counted.statistics\(\) must return a mapping of .*, got list"),
        (
            ({"size": {"a": "many"}}, None, False),
            r"Counted.statistics\(\) must return .*, got \{'a': 'many'\} in 'size'",
        ),
    ],
    indirect=["counted"],
)
def test_statistics_of_another_kind(counted: str, expected: str) -> None:
    with pytest.raises(SourceError, match=expected):
        run(counted, "--stats")


@pytest.fixture
def shower(monkeypatch: pytest.MonkeyPatch) -> list[ShowRequest]:
    """The module `dew_counted_show`; what its `draw` was asked."""
    asked: list[ShowRequest] = []
    module = types.ModuleType("dew_counted_show")

    def draw(request: ShowRequest) -> list[Picture]:
        asked.append(request)
        kind = "image/webp" if request.moving else "image/png"
        return [Picture(name="one/of <two>", media_type=kind, data=b"drawn", alt="a <picture>")]

    vars(module).update(draw=draw, wrong=lambda request: ["picture"], html=lambda request: [
        Picture(name="x", media_type="text/html", data=b"<script>", alt="")])  # fmt: skip
    monkeypatch.setitem(sys.modules, "dew_counted_show", module)
    return asked


DRAWS = (None, "dew_counted_show:draw", False)


@pytest.mark.parametrize("counted", [DRAWS], indirect=True)
def test_a_provider_draws_itself(counted: str, shower: list[ShowRequest], tmp_path: Path) -> None:
    run(counted, "--batch", 2, "--step", 1, "--out", tmp_path / "x.png", "--html", tmp_path / "x.html")
    assert (tmp_path / "x.png").read_bytes() == b"drawn"
    (asked,) = shower
    assert asked.batch["x"].tolist() == list(asked.ids or ())
    assert asked.moving is False
    assert asked.source is not None
    page = (tmp_path / "x.html").read_text()
    assert 'alt="a &lt;picture&gt;" src="data:image/png;base64,ZHJhd24="' in page
    assert "one/of &lt;two&gt;" in page
    run(counted, "--batch", 2, "--out", tmp_path / "x.webp")
    assert shower[-1].moving is True


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        (
            (None, "dew_absent:draw", False),
            r"dew_absent:draw, which draws for .* failed to import: ModuleNotFoundError",
        ),
        ((None, "dew_counted_show:absent", False), r"failed to import: AttributeError"),
        ((None, "dew_counted_show:wrong", False), r"must return a list of Picture, got \['picture'\]"),
        ((None, "dew_counted_show:html", False), r"drew 'x' as 'text/html'.*image/"),
    ],
    indirect=["counted"],
)
def test_providers_that_cannot_draw(counted: str, shower: list[ShowRequest], expected: str, tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match=expected):
        run(counted, "--batch", 2, "--html", tmp_path / "x.html")


def test_a_corpus_draws_its_packing(dew: Any, demo: Any, tmp_path: Path) -> None:
    words = ("peek", demo.source, "--batch", 4, "-o", "seq_len=128", "-o", "pack=true", "--out", "packing.svg")
    answer = dew(*words, "--json").json
    assert answer["written"] == ["packing.svg"]
    titles = [title.text or "" for title in ElementTree.parse(tmp_path / "packing.svg").iter(f"{SVG}title")]
    assert {title.partition(":")[0] for title in titles[1:]} == {f"record {record}" for record in answer["ids"]}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--roles", "m", "--stats"], "--roles shows one conversation"),
        (["--roles", "m", "--out", "x.png"], "--roles shows one conversation"),
        (["--roles", "m", "--tokenizer", "t"], "--roles shows one conversation"),
        (["--batch", "2", "--webp"], "--out FILE.webp or --html FILE"),
    ],
)
def test_wrong_usage(words: list[str], expected: str) -> None:
    ran = run("chats.jsonl", *words)
    assert ran.exit_code == 2
    assert expected in " ".join(ran.output.split())
