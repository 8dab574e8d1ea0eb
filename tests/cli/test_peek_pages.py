"""`dew peek --html`: one page that loads nothing, says what the batch holds, and shows data as text whatever it is."""

import base64
import io
import json
import os
import re
import shutil
import subprocess
import textwrap
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import attrs
import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from dew.cli.opening import Asked
from dew.cli.pages import text
from dew.cli.peek import peek
from dew.data.dataset import DataPartition
from dew.data.stream import RecordStream

PROGRAM = """
import numpy as np
from dew.data import from_records

rng = np.random.default_rng(0)
y, x = np.mgrid[0:96, 0:192]
pixels = np.stack([np.stack([x, y * 2, (x + 20 * k) % 256], -1) for k in range(12)]).astype(np.uint8)
markup = "<script>document.title='no'</script><img src=http://127.0.0.1/x> & \\"quotes\\" \\u202ecod"
captions = np.array([f"{k} {markup}" for k in range(12)])
segments = np.array([[1] * 30 + [2] * 20 + [0] * 15, [1] * 65, [1] * 5 + [2] * 5 + [3] * 55] * 4, np.int32)
roles = np.where(segments > 0, np.array([0, 1, 2, 3, 3] * 13), 0).astype(np.int32)
tokens = rng.integers(1, 999, segments.shape).astype(np.int32)

data = from_records(
    {"image": pixels, "caption": captions, "label": np.arange(12, dtype=np.int32), "deep": {"ratio": np.ones((12, 2))},
     "text": tokens, "text_segment_ids": segments, "text_positions": segments, "text_roles": roles},
    batch=4,
    val={"image": pixels[:3] // 2, "caption": captions[:3], "label": np.arange(3, dtype=np.int32),
         "deep": {"ratio": np.ones((3, 2))}, "text": tokens[:3], "text_segment_ids": segments[:3],
         "text_positions": segments[:3], "text_roles": roles[:3]},
)
"""

VOID = {"meta", "img", "br"}
LOADING = {"script", "link", "iframe", "object", "embed", "base", "form", "audio", "video", "source", "frame", "svg"}


@attrs.define
class Page(HTMLParser):
    """The page, read strictly: every tag closed, nothing that loads or runs."""

    source: str
    open_tags: list[str] = attrs.field(factory=list)
    tags: list[tuple[str, dict[str, str]]] = attrs.field(factory=list)
    words: list[str] = attrs.field(factory=list)
    style: str = ""

    def __attrs_post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.source)
        self.close()
        assert self.open_tags == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag not in LOADING, tag
        given = {name: value or "" for name, value in attributes}
        assert len(given) == len(attributes)
        assert not [name for name in given if name.startswith("on")]
        self.tags.append((tag, given))
        if tag not in VOID:
            self.open_tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open_tags[-1:] == ["style"]:
            self.style += data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [given for name, given in self.tags if name == tag]

    def pictures(self) -> Iterator[tuple[str, bytes, str]]:
        """Media type, bytes and alternative text of each picture."""
        for image in self.all("img"):
            found = re.fullmatch(r"data:(image/[a-z+]+);base64,([A-Za-z0-9+/=]+)", image["src"])
            assert found is not None, image["src"][:80]
            yield found[1], base64.b64decode(found[2], validate=True), image["alt"]


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM))
    return f"{tmp_path}/train.py:data"


def run(*words: object) -> Result:
    return CliRunner().invoke(peek, list(map(str, words)), catch_exceptions=False)


@pytest.fixture
def page(program: str, tmp_path: Path) -> Page:
    assert run(program, "--html", tmp_path / "page.html", "--step", 2).output.endswith(f"wrote {tmp_path}/page.html\n")
    return Page((tmp_path / "page.html").read_text(encoding="utf-8"))


def test_nothing_is_loaded(page: Page) -> None:
    for tag, given in page.tags:
        for name, value in given.items():
            if name in ("src", "href", "srcset", "action", "style", "data", "poster", "background"):
                assert value.startswith(("data:image/", "#", "width:")), (tag, name, value[:80])
            elif name != "alt":  # what the data says
                assert "http" not in value, (tag, name, value)
    assert not re.search(r"url\(|@import|http|expression", page.style)
    (policy,) = [meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'")
    for kind, data, _ in page.pictures():
        if kind == "image/svg+xml":
            check_drawing(data)


def check_drawing(svg: bytes) -> None:
    """An SVG that only draws: its namespace is its only address."""
    for element in ElementTree.fromstring(svg).iter():
        assert element.tag.removeprefix("{http://www.w3.org/2000/svg}") in {
            "svg",
            "title",
            "style",
            "rect",
            "text",
            "path",
        }
        assert not any("href" in name or name.startswith("on") for name in element.attrib)
    assert svg.count(b"http") == 1
    assert b"url(" not in svg


def test_data_stays_text(page: Page) -> None:
    """Markup in captions is shown as it is written, and what turns the reading direction is written out."""
    assert "<script>document.title=" in page.text
    assert "<img src=http://127.0.0.1/" in page.text
    assert r"\u202ecod" in page.text
    assert "\u202e" not in page.source
    assert len(page.all("img")) == 3
    assert page.all("bdi")


def test_every_kind_of_text() -> None:
    assert text("a<b>&\"'") == "a&lt;b&gt;&amp;&quot;&#x27;"
    assert text("a\x00b\x1b[31m\ud800\u2066c\n\t") == r"a\x00b\x1b[31m\ud800\u2066c" + "\n\t"
    assert text("caf\u00e9 \u732b") == "caf\u00e9 \u732b"


def test_what_is_on_it(page: Page, program: str) -> None:
    with Asked(source=program).opened() as dataset:
        stream = dataset.train(DataPartition())
        assert isinstance(stream, RecordStream)
        with stream:
            ids = stream.ids(2).tolist()
            saved = re.search(r'<pre tabindex="0">(.*?)</pre>', page.source, re.DOTALL)
            assert saved is not None
            stream.set_state(json.loads(Page(saved[1]).text))
            batch = next(stream)
    assert batch["label"].tolist() == ids  # the position on the page leads to the step on the page
    assert f"Records: {' '.join(map(str, ids))}" in page.text
    for word in ("step 2", "4 rows", "epoch 0", "places in the order 8 to 11", "records in the split 12"):
        assert word.replace(" ", "") in page.text.replace(" ", ""), word
    for name, shape, dtype in (
        ("image", "(4, 96, 192, 3)", "uint8"), ("deep.ratio", "(4, 2)", "float64"), ("text", "(4, 65)", "int32"),
    ):  # fmt: skip
        assert f"{name}{shape}{dtype}" in page.text.replace("\n", "")
    sections = [given["id"] for given in page.all("section")]
    assert sections == ["fields", "pictures", "rows", "position"]
    assert [link["href"] for link in page.all("a")] == [f"#{name}" for name in sections]


def test_for_readers_of_every_kind(page: Page) -> None:
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == 1
    assert [given["aria-labelledby"] for given in page.all("section")] == [given["id"] for given in page.all("h2")]
    assert all(image["alt"] for image in page.all("img"))
    assert all(head["scope"] in ("col", "row") for head in page.all("th"))
    scrolled = [given for given in page.all("div") if given.get("class") == "wide"]
    assert scrolled
    assert all(given["tabindex"] == "0" and given["role"] == "region" and given["aria-label"] for given in scrolled)
    assert "prefers-color-scheme:dark" in page.style
    assert ":focus-visible" in page.style


def test_the_pictures_are_those_of_the_batch(page: Page, program: str) -> None:
    (roles, packing, sheet) = sorted(page.pictures(), key=lambda found: found[2], reverse=True)
    assert packing[2].startswith("Packing map of text: 4 rows of 65 positions, ")
    assert roles[2].startswith("Role map of text, by tokens: template 2")
    with Asked(source=program).opened() as dataset:
        batch = [next(stream) for stream in [dataset.train(DataPartition())] for _ in range(3)][2]
    drawn = np.asarray(Image.open(io.BytesIO(sheet[1])).convert("RGB"))
    assert np.array_equal(drawn[8 : 8 + 96, 8 : 8 + 192], batch["image"][0])  # 192 pixels fit, so nothing is scaled
    assert f"record {batch['label'][0]}: {batch['label'][0]} <script>" in sheet[2]


def test_a_validation_pass(program: str, tmp_path: Path) -> None:
    run(program, "--html", tmp_path / "val.html", "--split", "val")
    page = Page((tmp_path / "val.html").read_text(encoding="utf-8"))
    assert "Records: 0 1 2 0" in page.text  # filled up with record 0
    assert "This stream has no position of its own." in page.text
    assert json.loads(run(program, "--split", "val", "--json").stdout)["ids"] == [0, 1, 2, 0]


def test_long_words_and_names_stay_short(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(
        "import numpy as np\nfrom dew.data import from_records\n"
        "data = from_records({'caption': np.array(['A' * 5000] * 8), 'n' * 400: np.arange(8),"
        " 'red\\x1b[31m': np.arange(8)}, batch=4)\n"
    )
    shown = run(f"{tmp_path}/long.py:data", "--html", tmp_path / "long.html").output
    assert "A" * 5000 not in "".join(shown.split())
    assert "...(5000letters)" in "".join(shown.split())
    assert len(shown.splitlines()) < 100
    assert "\x1b" not in shown
    assert r"red\x1b[31m" in shown
    page = Page((tmp_path / "long.html").read_text(encoding="utf-8"))
    assert page.text.count("A" * 80 + "... (5000 letters)") == 4 + 4  # the field's first values, and each row's end
    assert page.text.count("n" * 80 + "... (400 letters)") == 2  # in the table of fields, and over the rows
    assert "th bdi{display:inline-block;max-width:24rem;overflow-wrap:break-word" in page.style


def test_a_page_that_cannot_be_written(program: str, tmp_path: Path) -> None:
    for words, expected in (
        (
            ["--html", tmp_path / "no" / "x.html"],
            f"--html {tmp_path}/no/x.html cannot be written: there is no directory",
        ),
        (["--html", tmp_path], f"--html {tmp_path} cannot be written: .*directory"),
    ):
        ran = CliRunner().invoke(peek, [program, *map(str, words)])
        assert re.search(expected, str(ran.exception)), ran.exception


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-breakpad",
    "--hide-scrollbars",
)  # fmt: skip


def chromium(home: Path, *words: str) -> str:
    """What Chromium printed, in a home of its own that is empty."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium), so no browser reads the page")
    home.mkdir()
    environment = {**os.environ, "TMPDIR": str(home), "HOME": str(home)}
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={home}/profile", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


def test_in_a_browser(page: Page, tmp_path: Path) -> None:
    """Scripts of the data do not run, and the page has its colours in light and in dark."""
    address = f"file://{tmp_path}/page.html"
    dom = chromium(tmp_path / "dom", "--dump-dom", address)
    assert "train.py:data - dew peek</title>" in dom
    assert "<script>" not in dom
    assert "&lt;script&gt;document.title=" in dom
    for scheme, corner in ((1, (251, 251, 252)), (0, (20, 22, 26))):
        shot = tmp_path / f"{scheme}.png"
        chromium(
            tmp_path / f"home{scheme}", f"--blink-settings=preferredColorScheme={scheme}", "--window-size=1280,1400",
            f"--screenshot={shot}", address,
        )  # fmt: skip
        pixels = np.asarray(Image.open(shot).convert("RGB"))
        assert tuple(pixels[2, 2]) == corner
        # The sheet, scaled or not, has colours that nothing else on the page has.
        assert (np.abs(pixels.astype(int) - [110, 163, 224]).max(-1) < 3).sum() > 200  # the first segment of a row
