"""`aot-tune dev`: builds a project again after each edit, and stops at the first candidate that fails."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from aot_tune.cli.compile_commands import add_project
from aot_tune.plan.configure_project import build_command, configure_project, install_project, source_folder
from aot_tune.plan.library_plan import read_plan
from aot_tune.report.report_records import read_report
from aot_tune.report.report_text import format_time, speedup_text, tried_text
from aot_tune.support.errors import AotTuneError, BuildError
from aot_tune.support.interrupts import end_with_the_build
from aot_tune.support.storage import cache_location

_PAUSE, _SHARE = 0.25, 20
"""Seconds between two looks at the files, and at least so many times what a look takes."""
_SETTLES = 0.1
"""Seconds in which no file changes before a build begins."""
_TO_END = 5.0
"""Seconds that a build has to end after a signal, before it gets a stronger one."""
_LESS = ("AOT_TUNE_SURVEY=0", "AOT_TUNE_OLDER_CPUS=0", "AOT_TUNE_NO_SURVIVOR=stop")
"""What a round leaves out."""
_SOURCES = (
    ".py", ".j2", ".h", ".hpp", ".hh", ".cuh", ".inc", ".inl", ".c", ".cc", ".cpp", ".cxx", ".cu", ".cmake", ".toml",
    "CMakeLists.txt",
)  # fmt: skip
"""Names of files that authors edit."""
_Stamps = dict[str, tuple[int, int]]


def add_dev(commands: Any) -> None:
    """Add the command to the parser."""
    dev = commands.add_parser(
        "dev",
        help="build a project after each edit; stops at the first failure",
        description="Build a project in its folder build/dev, and again after each edit. A round compiles, verifies "
        "and times what is new, for this machine alone and without a survey, and links the module. It ends at the "
        "first candidate that fails, and at the next edit. Ctrl-C ends the command.",
    )
    add_project(dev)
    dev.add_argument(
        "-D", dest="define", action="append", default=[], metavar="NAME=VALUE",
        help="for the project's CMake, such as AOT_TUNE_FILTER='gemm/*'; may be repeated",
    )  # fmt: skip
    dev.set_defaults(run=_dev)


def _dev(given: argparse.Namespace) -> int:
    source = source_folder(given.directory)
    project = (given.directory if given.directory.is_dir() else given.directory.parent).resolve()
    rounds = _Rounds(source, project, [*_LESS, *given.define])
    with end_with_the_build():
        while True:
            if rounds.next():
                print("aot_tune: waiting for an edit; Ctrl-C ends this", flush=True)
                rounds.wait()


class _Rounds:
    """Builds of a project. Progress that an earlier one printed is not printed again."""

    def __init__(self, source: Path, project: Path, defines: Sequence[str]) -> None:
        self._source, self._project, self._defines = source, project, defines
        self._build = project / "build" / "dev"
        self._said = set[str]()
        self._roots = [project]
        self._stamps, self._looked = _stamps(self._roots), 0.0

    def next(self) -> bool:
        """Build once, and print what comes of it. False if an edit ended it."""
        begun = time.monotonic()
        try:
            plans = configure_project(self._source, self._project, self._build, {}, self._defines)
            self._watch(root for plan in plans for root in read_plan(plan)[1].templates)
            done = self._is_built([plan / "report.json" for plan in plans])
            if done:
                print(f"aot_tune: built in {time.monotonic() - begun:.1f} s; {self._installed()}", flush=True)
        except AotTuneError as error:
            print(f"aot-tune: {error}", flush=True)
            return True
        return done is not None

    def _watch(self, roots: Iterable[str]) -> None:
        """Watch template roots too that are outside of the project."""
        new = [Path(root) for root in roots if not any(Path(root).is_relative_to(r) for r in self._roots)]
        self._roots += new
        self._stamps |= _stamps(new)

    def wait(self) -> None:
        """Wait for an edit."""
        while not self._is_edited():
            time.sleep(_PAUSE)

    def _is_edited(self) -> bool:
        """Whether a file has changed since the last look. A line says which."""
        begun, before = time.monotonic(), self._stamps
        if begun < self._looked:
            return False
        stamps, last = _stamps(self._roots), before
        self._looked = time.monotonic() + _SHARE * (time.monotonic() - begun)
        while stamps not in (last, before):  # an editor may still write
            time.sleep(_SETTLES)
            stamps, last = _stamps(self._roots), stamps
        self._stamps = stamps
        edited = [os.path.relpath(n, self._project) for n, _ in sorted(self._stamps.items() ^ before.items())]
        if edited:
            print(f"\naot_tune: edited: {', '.join(dict.fromkeys(edited))}", flush=True)
        return bool(edited)

    def _is_built(self, reports: Sequence[Path]) -> bool | None:
        """Build, and print results and our errors: False after one, None after an edit. Raises other BuildErrors."""
        lines, failed, of_error = list[str](), False, False
        written, shown = _written(reports), ""
        with _running(build_command(self._build)) as process:
            for line in self._lines_of(process):
                if line is None:
                    return None
                lines.append(line)
                of_error = line.startswith("aot-tune: ") or (of_error and line[:1].isspace())
                failed |= of_error
                told = line.partition(" (")[0]  # in brackets are facts that change
                if of_error or (line.startswith("aot_tune: ") and told not in self._said):
                    print(line, flush=True)
                    self._said.add(told)
                if (now := _written(reports)) != written:  # before the library is linked
                    written, shown = now, _show(reports, shown)
        if process.returncode != 0 and not failed:
            raise BuildError("the build failed", why="\n       ".join(lines[-40:]), fix="correct what it reports")
        if not failed:
            _show(reports, shown)
        return not failed

    def _lines_of(self, process: subprocess.Popen[bytes]) -> Iterator[str | None]:
        """The lines that a process prints; None in the end if there was an edit meanwhile."""
        assert process.stdout is not None
        rest = b""
        while True:
            if not select.select([process.stdout], [], [], _PAUSE)[0]:
                if self._is_edited():
                    yield None
                continue
            data = os.read(process.stdout.fileno(), 1 << 16)
            *whole, rest = (rest + data).split(b"\n")
            yield from (line.decode(errors="replace") for line in whole)
            if not data:
                return

    def _installed(self) -> str:
        """Put the package below the build folder, its Python files as links. Returns how to import it."""
        site = self._build / "site"
        install_project(self._build, site, self._source)
        modules = sorted(site.rglob("*.abi3.so"))
        for package in {m.parent for m in modules}:
            for own in (self._project / package.name, self._project / "src" / package.name):
                for file in own.iterdir() if own.is_dir() else ():
                    with contextlib.suppress(FileExistsError):
                        (package / file.name).symlink_to(file)
        names = [".".join((*m.parent.relative_to(site).parts, m.name.partition(".")[0])) for m in modules]
        how = f"PYTHONSAFEPATH=1 PYTHONPATH={shlex.quote(str(site))} python -c 'import {', '.join(names)}'"
        return how if names else f"its files are below {site}"


@contextlib.contextmanager
def _running(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A build tool in a session of its own. With the block, it ends, and all that it started."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        try:
            yield process
            process.wait()
        finally:
            if process.poll() is None:
                any(_ends(process, number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL))


def _ends(process: subprocess.Popen[bytes], number: int) -> bool:
    """Send a signal to a process and all that it started. Returns whether they end soon."""
    os.killpg(process.pid, number)
    until = time.monotonic() + _TO_END
    while time.monotonic() < until:
        process.poll()
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(_PAUSE / 10)
    return False


def _written(reports: Sequence[Path]) -> dict[Path, int]:
    """When each report was written."""
    return {file: file.stat().st_mtime_ns for file in reports if file.is_file()}


def _show(reports: Sequence[Path], shown: str) -> str:
    """Print the results of reports, unless they are `shown` already. Returns them."""
    lines = []
    for part in (part for file in reports for part in read_report(file).operators):
        lines.append(f"{part.operator} on {part.target}: {tried_text(part)}")
        for row in part.problems:
            ratio = f"  {speedup_text(row)} x {row.baseline[0]}" if row.baseline else ""
            lines.append(f"  {row.problem}  {row.winner}  {format_time(row.ns)}{ratio}")
    text = "\n".join(lines)
    if text != shown:
        print(text, flush=True)
    return text


def _stamps(roots: Iterable[Path]) -> _Stamps:
    """Size and time of the files below folders that authors edit, by path. The cache and builds are not among them."""
    stamps: _Stamps = {}
    cache = cache_location(os.environ).root
    for folder, folders, names in itertools.chain.from_iterable(map(os.walk, roots)):
        if "CMakeCache.txt" in names or Path(folder) == cache:
            folders.clear()
            continue
        folders[:] = [f for f in folders if not f.startswith((".", "__pycache__"))]
        for file in (Path(folder, name) for name in names if name.endswith(_SOURCES)):
            with contextlib.suppress(OSError):
                stat = file.stat()
                stamps[str(file)] = stat.st_size, stat.st_mtime_ns
    return stamps
