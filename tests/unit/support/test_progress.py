"""What the build prints: lines of several threads stay whole, a count is one line that changes, or no flood."""

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from aot_tune.support.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def count(progress: Progress, clock: Clock) -> None:
    """100 candidates, one a second."""
    for done in range(1, 101):
        clock.now = float(done)
        progress.count("tried", done, 100, "best so far 1.00 ms", since=0.0)


def test_a_log_gets_a_line_every_thirty_seconds_of_the_whole_build() -> None:
    """It began 60 seconds before, and its later steps take another 40."""
    out, clock = io.StringIO(), Clock()
    progress = Progress(out, clock, spent=60.0)
    progress.later = lambda: 40.0
    count(progress, clock)
    progress.count("compiled", 1, 2, left=lambda by_count: None if by_count is None else 1.0)
    progress.later = lambda: 0.0
    progress.count("linked", 1, 3, left=lambda _: 4.0)
    progress.count("checked", 1, 3, left=lambda _: 400.0, most=70.0)
    assert out.getvalue().splitlines() == [
        "aot_tune: 1:01: tried 1 of 100, best so far 1.00 ms",  # no estimate: there is no ground for one
        "aot_tune: 1:31, about 2 min left: tried 31 of 100, best so far 1.00 ms",
        "aot_tune: 2:01, about 80 s left: tried 61 of 100, best so far 1.00 ms",
        "aot_tune: 2:31, about 50 s left: tried 91 of 100, best so far 1.00 ms",
        "aot_tune: 2:40: compiled 1 of 2",
        "aot_tune: 2:40, a few seconds left: linked 1 of 3",
        "aot_tune: 2:40, about 70 s left: checked 1 of 3",
    ]


class Screen:
    """A terminal of so many columns, and what was written to it."""

    def __init__(self, columns: int) -> None:
        self.ours, self.theirs = pty.openpty()
        subprocess.run(["stty", "cols", str(columns), "rows", "24"], stdin=self.theirs, check=True)

    def read(self) -> str:
        found = b""
        while True:
            try:
                more = os.read(self.ours, 65536)
            except OSError:  # nobody has the other side any more
                break
            if not more:
                break
            found += more
        return found.decode()


@pytest.mark.parametrize("columns", [40, 200])
def test_a_terminal_has_one_line_that_changes(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen, clock = Screen(columns), Clock()
    with os.fdopen(screen.theirs, "w", encoding="utf-8") as terminal:
        progress = Progress(terminal, clock)
        progress.line("one")
        count(progress, clock)
        progress.line("NOTE two")
        progress.count("compiled", 1, 9)
        progress.close()
    text = screen.read()
    changes = re.findall(r"\r\x1b\[K(aot_tune: \d:[^\r\n]*)", text)
    assert len(changes) == 101
    assert all(len(change) < columns for change in changes)
    shown = [re.split(r"\r\x1b\[K", line)[-1].rstrip("\r") for line in text.split("\n")]
    assert shown == ["aot_tune: one", "aot_tune: \x1b[31mNOTE\x1b[0m two", ""]


PROGRAM = """
import sys
from aot_tune.support.progress import Progress
progress = Progress()
progress.line("hello")
progress.close()
"""


@pytest.mark.parametrize(
    ("words", "shown"), [(["pip", "install"], True), (["pip", "install", "-v"], False), ([], False)]
)
def test_under_plain_pip_the_terminal_has_the_line(tmp_path: Path, words: list[str], shown: bool) -> None:
    """Pip keeps the output from the user; with -v it does not, and twice would be too much."""
    if words:
        program = tmp_path / words[0]
        program.write_text(
            "import subprocess, sys\n"
            "argv = [sys.executable, '-c', sys.stdin.read()]\n"
            "print(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)\n"
        )
        argv = [sys.executable, str(program), *words[1:]]
    else:
        argv = [sys.executable, "-"]
    pid, ours = pty.fork()
    if pid == 0:  # the child, whose controlling terminal is the new one
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
        done = subprocess.run(
            argv, input=PROGRAM, capture_output=True, text=True, check=False, env={**environ, "PYTHONPATH": str(ROOT)}
        )
        (tmp_path / "out").write_text(done.stdout + done.stderr)
        os._exit(0)
    screen = Screen.__new__(Screen)
    screen.ours = ours
    text = screen.read()
    os.waitpid(pid, 0)
    assert "aot_tune: hello\n" in (tmp_path / "out").read_text()
    assert ("aot_tune: hello" in text) == shown
