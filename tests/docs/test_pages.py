"""Every Python block of README.md and docs/ runs, in order, one namespace a page; every link leads somewhere.

A block is what stands between ```python and ```; other blocks are shown, not run. The traceback of a failure shows the
page's own lines.
"""

import linecache
import re
import sys
import traceback
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,})(?P<language>.*)")
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")


def blocks(text: str) -> list[tuple[int, str, str]]:
    """`(number of its first line, language, code)` of every fenced block."""
    found: list[tuple[int, str, str]] = []
    opened: re.Match[str] | None = None
    start = 0
    code: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.fullmatch(line)
        if opened is None:
            if fence:
                opened, start, code = fence, number + 1, []
        elif fence and fence["ticks"] == opened["ticks"] and not fence["language"].strip():
            found.append((start, opened["language"].strip(), "".join(code)))
            opened = None
        else:
            code.append(line.removeprefix(opened["indent"]) + "\n")
    if opened:
        raise ValueError(f"the block that opens in line {start - 1} is never closed")
    return found


def run(page: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Runs the page's Python blocks with `folder` as the working directory."""
    monkeypatch.chdir(folder)
    module = types.ModuleType(f"page_{page.stem.lower()}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # classes defined on the page find their module
    for line, language, code in blocks(page.read_text()):
        if language == "python":
            exec(compile("\n" * (line - 1) + code, str(page), "exec", dont_inherit=True), module.__dict__)


def broken_links(page: Path) -> list[str]:
    """The page's relative links that lead to no file."""
    text = page.read_text()
    for _, _, code in blocks(text):
        text = text.replace(code, "")
    targets = [link["target"].partition("#")[0] for link in LINK.finditer(text)]
    return [target for target in targets if target and ":" not in target and not (page.parent / target).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run(page, monkeypatch, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == [], "links that lead nowhere"


def test_readme_shows_code() -> None:
    assert "python" in [language for _, language, _ in blocks((ROOT / "README.md").read_text())]


SAMPLE = """\
# A page

```python
from pathlib import Path
value = 1
Path("made-here").write_text("")
```

```sh
this is not run
```

1. In a list:

   ```python
   if value:
       value += 1
   ```

````
```python
nor is this
```
````

[there](page.md) [not there](nowhere.md#part) [elsewhere](https://example.invalid) [here](#a-page)

```python
assert value == 3, value
```
"""


def test_a_failing_block_is_shown_with_the_pages_own_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page, folder = tmp_path / "page.md", tmp_path / "work"
    page.write_text(SAMPLE)
    folder.mkdir()
    with pytest.raises(AssertionError, match=r"^2$") as caught:
        run(page, monkeypatch, folder)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    linecache.clearcache()
    assert (last.filename, last.lineno) == (str(page), 29)
    assert linecache.getline(last.filename, 29) == "assert value == 3, value\n"
    assert [path.name for path in folder.iterdir()] == ["made-here"]


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(SAMPLE)
    assert broken_links(page) == ["nowhere.md"]


def test_an_open_block_is_refused() -> None:
    with pytest.raises(ValueError, match="opens in line 2 is never closed"):
        blocks("text\n```python\nx = 1\n")
