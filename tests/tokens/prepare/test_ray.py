"""Ray, where it is installed (`pip install "dew-core[ray]"`): the same bytes, also when its workers are killed."""

import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dew.data.errors import OptionsError
from dew.tokens.prepare import prepare

START = """
import sys, threading, time
import psutil, ray
from dew.data.errors import SourceError
from dew.tokens.prepare import prepare

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[1])
"""


def test_without_ray(tmp_path: Path, write_lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    path = write_lines(tmp_path / "a.jsonl", ["one"])
    with pytest.raises(OptionsError, match=r'runner="ray" needs the package ray: pip install "dew-core\[ray\]"'):
        prepare(path, tmp_path / "out", tokenizer="bytes", runner="ray")


@pytest.mark.nightly
class TestRay:
    @pytest.fixture
    def on_ray(self) -> Iterator[Callable[..., str]]:
        """Runs Python source in a process of its own that is connected to a cluster of its own."""
        pytest.importorskip("ray")

        # Ray's sockets lie in this directory, and the names of sockets are short.
        with tempfile.TemporaryDirectory(prefix="dew-ray-", dir="/tmp", ignore_cleanup_errors=True) as home:

            def run(source: str, *words: object) -> str:
                command = [sys.executable, "-c", START + textwrap.dedent(source) + "\nray.shutdown()", home]
                done = subprocess.run(
                    [*command, *map(str, words)], capture_output=True, text=True, timeout=300, check=False
                )
                assert done.returncode == 0, done.stderr
                return done.stdout

            yield run

    def test_the_same_bytes(
        self, on_ray: Callable[..., str], mixed: Path, tokenizer_dir: Path, tmp_path: Path, digests: Any
    ) -> None:
        source = """
            inputs, tokenizer, out = sys.argv[2:]
            done = prepare(inputs, out, tokenizer=tokenizer, eos=True, task_bytes=6000, runner="ray")
            print(done.ran == done.tasks, done.tokens == done.manifests["train"].tokens)
        """
        assert on_ray(source, mixed, tokenizer_dir, tmp_path / "ray") == "True True\n"
        prepare(mixed, tmp_path / "local", tokenizer=tokenizer_dir, eos=True, workers=0, task_bytes=6000)
        assert digests(tmp_path / "ray") == digests(tmp_path / "local")

    def test_killed_workers(
        self,
        on_ray: Callable[..., str],
        tokenizer_dir: Path,
        tmp_path: Path,
        digests: Any,
        texts: Any,
        write_lines: Any,
    ) -> None:
        source = """
            killed = []

            def kill():
                while len(killed) < 4:
                    for child in psutil.Process().children(recursive=True):
                        try:
                            if "ray::_do" in " ".join(child.cmdline()) and child.pid not in killed:
                                child.kill()
                                killed.append(child.pid)
                        except psutil.Error:  # it has just ended
                            pass
                    time.sleep(0.02)

            threading.Thread(target=kill, daemon=True).start()
            inputs, tokenizer, out = sys.argv[2:]
            prepare(inputs, out, tokenizer=tokenizer, eos=True, task_bytes=300_000, runner="ray")
            print("killed", len(killed), flush=True)
        """
        path = write_lines(tmp_path / "a.jsonl", texts(60_000, seed=4))
        said = on_ray(source, path, tokenizer_dir, tmp_path / "ray")  # among what Ray says of the dead
        killed = re.search(r"^killed (\d+)$", said, re.MULTILINE)
        assert killed is not None, said
        assert int(killed[1]) > 0
        prepare(path, tmp_path / "local", tokenizer=tokenizer_dir, eos=True, workers=0, task_bytes=300_000)
        assert digests(tmp_path / "ray") == digests(tmp_path / "local")

    def test_an_error_names_file_and_line(self, on_ray: Callable[..., str], tmp_path: Path, write_lines: Any) -> None:
        source = """
            try:
                prepare(*sys.argv[2:], tokenizer="bytes", runner="ray")
            except SourceError as error:
                print(error)
        """
        path = write_lines(tmp_path / "a.jsonl", ["one", None])
        assert f"{path}, line 2: the field 'text' is null" in on_ray(source, path, tmp_path / "out")
