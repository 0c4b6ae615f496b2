"""Builds that are killed, stopped or interrupted: nothing is left running, and the next build loses nothing."""

import contextlib
import ctypes
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from project import Project, descendants, read_until, start, wait_until_gone

pytestmark = pytest.mark.slow

_PR_SET_CHILD_SUBREAPER = 36
TUNED = "aot_tune/tiny/tuned"
"""What a build makes when it has tuned, before it links."""
KILLS = int(os.environ.get("AOT_TUNE_TEST_KILLS", "4"))
SOON = 10.0
"""Seconds within which all ends, also where other programs have the cores; a build that goes on takes minutes."""


@pytest.fixture(autouse=True)
def adopt() -> Iterator[None]:
    """Orphans become children of this process, where they can be seen."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    reap()


def reap() -> None:
    """Collect dead orphans; children that subprocess knows are not among them when this is called."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if state[0] == "Z" and int(state[1]) == os.getpid():
                    os.waitpid(int(entry.name), os.WNOHANG)


@pytest.fixture
def project(tuned_once: Any, tmp_path: Path) -> Project:
    """A copy of the project that was built before: its candidates are compiled, and so many problems are measured
    that a build is still at them when it is stopped, however fast the machine."""
    (tmp_path / "tmp").mkdir()
    found: Project = tuned_once.copied(tmp_path / "project", TMPDIR=str(tmp_path / "tmp"))
    found.change("problem(N=20000),", "*(problem(N=20000 + 100 * i) for i in range(200)),")
    return found


def quick(project: Project) -> None:
    """The first of the problems, for the build that ends."""
    project.change("range(200)", "range(2)")


def left_in(folder: Path) -> list[Path]:
    """What builds left in the folder of temporary files, beside the folder of locks and scratch that they keep."""
    kept = folder / f"aot_tune-{os.geteuid()}"
    found = [p for p in folder.rglob("*") if p not in (kept, kept / "scratch") and p.suffix != ".lock"]
    return [p for p in found if not is_probe(p)]


def is_probe(path: Path) -> bool:
    """Whether Python's tempfile wrote it, to see whether the folder may be written: a kill before it is removed."""
    named = re.fullmatch("[a-z0-9_]{8}", path.name) is not None
    return named and path.is_file() and path.read_bytes() in (b"", b"blat")


def test_kill_9_at_random_moments(tuned: Project, tmp_path: Path) -> None:
    """After every kill nothing is left soon; at the end the winners are those of a quiet build."""
    (tmp_path / "tmp").mkdir()
    want = tuned.winners()
    shutil.rmtree(tuned.folder / "build")
    tuned.env |= {"AOT_TUNE_CACHE_DIR": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "tmp")}
    tuned.configure()
    moments = random.Random(20240229)
    before = descendants(os.getpid())
    ended, whole = 0, 5.0
    for _ in range(KILLS):
        process, began = tuned.start(), time.monotonic()
        try:
            process.wait(moments.uniform(0.1, 1.0) * whole)
            whole = time.monotonic() - began  # or less was left to do
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        wait_until_gone(before, SOON)
        reap()
        ended += process.returncode == 0
    assert ended < KILLS
    said = tuned.build()
    assert tuned.winners() == want
    assert "damaged" not in said
    assert "Traceback" not in said
    assert list((tmp_path / "cache" / "tmp").iterdir()) == []
    assert left_in(tmp_path / "tmp") == []


def test_what_a_killed_tune_measured_is_kept_until_it_has_ended(project: Project) -> None:
    """Then all is measured again; what was measured before it is not used."""
    project.configure(AOT_TUNE_MODE="tune")
    process = project.start()
    read_until(process, "tried ")
    time.sleep(0.3)
    process.kill()
    assert "done in" not in process.communicate()[0]
    quick(project)
    project.configure(AOT_TUNE_MODE="tune")
    said = project.build()
    assert known_before(said) > 0
    assert "which did not end" in said
    (project.folder / "build" / "manifest.json").unlink()
    assert known_before(project.build()) == 0


def known_before(said: str) -> int:
    return int(said.split(" known from before", maxsplit=1)[0].rsplit(" ", 1)[-1])


def test_a_signal_to_the_tuner_ends_it_tidily(project: Project, tmp_path: Path) -> None:
    project.configure()
    before = descendants(os.getpid())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process = project.start()
        read_until(process, "tried ")
        process.send_signal(number)
        output, _ = process.communicate(timeout=SOON)
        assert process.returncode == 130
        assert "interrupted; what was measured is kept" in output
        assert "Traceback" not in output
        wait_until_gone(before, SOON)
        assert left_in(tmp_path / "tmp") == []


def builders(processes: dict[int, str], word: str) -> list[int]:
    return [p for p, command in processes.items() if Path(command.split(" ")[0]).name == word]


@pytest.mark.parametrize(("victim", "during"), [("ninja", "compiled"), ("cmake", "tried ")])
def test_kill_9_of_the_build_tool(project: Project, victim: str, during: str) -> None:
    """Neither passes anything on to its children: the tuner has to notice by itself."""
    if during == "compiled":
        project.change("(1, 4, 16, 64, 256)", "(1, 2, 3, 4)")
    project.cmake()
    before = descendants(os.getpid())
    process = start(["cmake", "--build", project.folder / "cmake"], project.environment())
    read_until(process, during)
    for pid in builders(descendants(os.getpid()), victim)[-1 if victim == "ninja" else 0 :][:1]:
        os.kill(pid, signal.SIGKILL)
    wait_until_gone({**before, process.pid: ""} if victim == "ninja" else before, SOON)
    process.communicate(timeout=SOON)
    wait_until_gone(before, SOON)
    reap()
    if victim == "ninja":
        quick(project)
        assert "known from before" in project.make_all("cmake", "--target", TUNED)


def test_the_terminal_interrupts_the_whole_group(project: Project) -> None:
    """Ctrl-C reaches every process of the foreground job at once."""
    project.cmake()
    before = descendants(os.getpid())
    process = start(["cmake", "--build", project.folder / "cmake"], project.environment())
    read_until(process, "tried ")
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=SOON)
    assert process.returncode != 0
    wait_until_gone(before, SOON)
    reap()


def test_a_shell_that_ends_leaves_its_job_running(project: Project) -> None:
    """`make &` in a script that ends is no reason to stop."""
    quick(project)
    project.cmake()
    before = descendants(os.getpid())
    log = project.folder / "log"
    script = f'cmake --build "{project.folder / "cmake"}" --target {TUNED} > "{log}" 2>&1 & exit 0'
    subprocess.run(["sh", "-c", script], env=project.environment(), check=True, start_new_session=True)
    assert "done in" not in (log.read_text() if log.exists() else ""), "it was no job any more when its shell ended"
    limit = time.monotonic() + 60
    while "done in" not in (log.read_text() if log.exists() else "") and time.monotonic() < limit:
        time.sleep(0.1)
    assert "done in" in log.read_text()
    wait_until_gone(before, 30)
    assert (project.folder / "cmake" / TUNED).is_file()
