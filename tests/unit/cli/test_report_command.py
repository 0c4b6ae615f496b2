"""`aot-tune report`: how it fits a terminal, what it writes as a page, and what it says of bad input."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

import msgspec
import pytest
from whole_report import PRODUCT, REPORT

from aot_tune.cli.main import main
from aot_tune.report.html_page import html_page
from aot_tune.report.report_text import format_report

ESCAPE = "\x1b["


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "report.json"
    file.write_bytes(msgspec.json.encode(REPORT))
    return file


def on_terminal(path: Path, columns: int, *arguments: str, **env: str) -> str:
    """What `aot-tune report` writes on a terminal of so many columns."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    child = os.fork()
    if child == 0:
        status = 99
        try:
            for number in (0, 1):
                os.dup2(inner, number)
            sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115 - pytest has replaced it
            for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
                os.environ.pop(name, None)
            os.environ.update(env, TERM="xterm-256color")
            status = main(["report", "--build", str(path), *arguments])
            sys.stdout.flush()
        finally:
            os._exit(status)
    os.close(inner)
    told = b""
    while True:
        try:
            part = os.read(outer, 1 << 16)
        except OSError:  # the other end is closed
            break
        told += part
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(outer)
    return told.decode().replace("\r\n", "\n")


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("columns", [40, 100])
def test_it_fits_the_terminal(path: Path, columns: int) -> None:
    told = on_terminal(path, columns, "--candidates")
    assert ESCAPE in told
    lines = plain(told).splitlines()
    assert max(map(len, lines)) <= columns
    words = " ".join(" ".join(lines).split())
    for row in PRODUCT.problems:
        assert row.problem in words
    for what in ("rows_2", "1.25", "4.10 ms", "SIGSEGV", "aot-tune try", "regret of dispatch", "5.0 % on 3 surveyed"):
        assert what in words, what


def test_wide_is_what_a_pipe_gets(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--build", str(path)]) == 0
    piped = capsys.readouterr().out
    assert piped == format_report(REPORT)
    assert on_terminal(path, 80, "--wide") == piped


def test_a_page_is_written_whole_or_not_at_all(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", "--build", str(path), "--html"]) == 0
    assert "ops-report.html" in capsys.readouterr().out
    assert Path("ops-report.html").read_text(encoding="utf-8") == html_page(REPORT)
    assert main(["report", "product", "--build", str(path), "--html", "one.html"]) == 0
    one = msgspec.structs.replace(REPORT, operators=(PRODUCT,))
    assert Path("one.html").read_text(encoding="utf-8") == html_page(one)
    capsys.readouterr()
    assert main(["report", "--build", str(path), "--html", "-"]) == 0
    assert capsys.readouterr().out == html_page(REPORT) + "\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.html", "ops-report.html", "report.json"]


def test_a_page_that_cannot_be_written(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder.html").mkdir()
    for name in ("absent/page.html", "report.json/page.html", "folder.html"):
        assert main(["report", "--build", str(path), "--html", str(tmp_path / name)]) == 1
        said = capsys.readouterr().err
        assert f"{tmp_path / name} cannot be written\n  why: " in said
        assert "fix: name a file in a folder that exists and that you may write to" in said
    assert main(["report", "--build", str(path), "--html", "product"]) == 1
    assert "fix: write operators before --html" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.html", "report.json"]
