"""Code and files of authors that never end, lie, or are gone: FAULTS.md, rows 54 to 58 and 61 to 65."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from environments import run
from project import Project

pytestmark = pytest.mark.slow

SOON = "import aot_tune.support.limited_code as limited; limited.SECONDS = 1.0; "
"""Deadlines of a test, for a build that is run by `python -c`."""


@pytest.fixture
def project(tmp_path: Path, forks: Callable[..., str]) -> Project:
    made = Project.make(tmp_path / "project")
    made.runs = forks
    return made


@pytest.fixture
def tuned(tuned_once: Any, tmp_path: Path, forks: Callable[..., str]) -> Project:
    """A copy of the project that was built and recorded."""
    made: Project = tuned_once.copied(tmp_path / "project")
    made.runs = forks
    return made


def configure(project: Project) -> str:
    """`aot-tune configure` whose deadlines are short; what it says."""
    argv = project.command("configure", "--name", "tiny", "--prefix", "tiny", "--header", "tiny.h")
    argv += ["--directory", str(project.folder / "build"), "--templates", str(project.templates)]
    code = f"{SOON}import sys; from aot_tune.cli.main import main; sys.exit(main(sys.argv[1:]))"
    at = argv.index("aot_tune.cli.main")
    return run([sys.executable, "-B", "-c", code, *argv[at + 1 :]], env=project.environment(), status=1)


@pytest.mark.parametrize(
    ("old", "new", "file", "words"),
    [
        (
            "operator = Operator(",
            "while 1:\n    try:\n        sum(range(10**6))\n    except Exception:\n        pass\noperator = Operator(",
            "operator.py",
            r"operator\.py does not end within",
        ),
        (
            "operator = Operator(",
            "lost = b'x' * (6 << 30)\noperator = Operator(",
            "operator.py",
            r"wants more than 4 GiB",
        ),
        (
            "{{ prelude() }}",
            "{{ prelude() }}{% for i in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}",
            "loop.cpp.j2",
            r"loop\.cpp\.j2:\d+: it is not rendered within 1 s",
        ),
        ("{{ prelude() }}", '{{ prelude() }}{{ "x" * 10 ** 10 }}', "loop.cpp.j2", r"loop\.cpp\.j2:\d+: .*4 GiB"),
    ],
)
def test_row_55_what_never_ends_is_told_with_its_file(
    project: Project, old: str, new: str, file: str, words: str
) -> None:
    project.change(old, new, file)
    begun = time.monotonic()
    said = configure(project)
    assert time.monotonic() - begun < 30
    assert re.search(words, said), said
    assert "fix: " in said


def test_row_55_an_exit_without_a_plan_is_told(project: Project) -> None:
    project.change("operator = Operator(", "import os; os._exit(0)\noperator = Operator(")
    said = " ".join(project.cmake(status=1).split())
    assert "the configure step ended without a plan" in said
    assert "os._exit in an operator.py" in said


def test_row_54_a_build_tool_that_is_killed_while_the_tuner_starts_takes_it_along(project: Project) -> None:
    """At each of these moments, before the tuner can have looked at anything."""
    project.configure()
    build = project.command("build", "--directory", project.folder / "build")
    tool = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
    for moment in (0.0, 0.1, 0.4):
        log = project.folder / f"log of {moment}"
        with log.open("w") as output:
            process = subprocess.Popen(  # a leader of a group, as a build front end is, over a build tool
                [sys.executable, "-S", "-c", tool, sys.executable, "-S", "-c", tool, *build],
                env=project.environment(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        while not (tools := _below(process.pid)) or not (tuners := _below(tools[0])):
            time.sleep(0.001)
        time.sleep(moment)
        assert process.poll() is None, f"it ended by itself within {moment} s: {log.read_text()}"
        os.kill(tools[0], signal.SIGKILL)
        deadline = time.monotonic() + 10  # most of which Python takes to start, where the machine is busy
        while not (gone := _has_ended(tuners[0])) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        process.wait()
        assert gone, f"it lives on 10 s after its build tool, which was killed after {moment} s"


def _below(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_row_57_a_config_that_is_gone_is_neither_recorded_nor_linked(tuned: Project) -> None:
    def configs(build: str) -> list[dict[str, int]]:
        return [v["config"] for v in tuned.manifest(build)["operators"][0]["variants"] if not v["generic"]]

    (best,) = {config["TIMES"] for config in configs("build")}
    left = ", ".join(str(n) for n in (1, 4, 16, 64, 256) if n != best)
    tuned.change('Parameter("TIMES", (1, 4, 16, 64, 256))', f'Parameter("TIMES", ({left}))')
    tuned.configure("--database", tuned.folder / "tuning", build="replayed", AOT_TUNE_MODE="replay")
    said = tuned.build("replayed")
    assert re.search(r"twice: 1 recorded candidates for \S+ have configs that their kernels no longer have", said)
    assert configs("replayed")
    assert best not in [config["TIMES"] for config in configs("replayed")]
    tuned.configure(AOT_TUNE_MODE="auto")
    tuned.build()
    (path,) = tuned.record().rglob("twice.jsonl")
    assert '"TIMES"' in path.read_text()
    assert not re.search(rf'"TIMES":{best}\b', path.read_text())


def test_row_63_destdir_is_refused_where_a_wheel_would_be_empty(project: Project) -> None:
    said = " ".join(project.cmake("-DSKBUILD_STATE=wheel", DESTDIR="/somewhere", status=1).split())
    assert "DESTDIR is '/somewhere'" in said
    assert "fix: unset DESTDIR" in said
    project.cmake(DESTDIR="/somewhere", build="other")  # without a wheel it is the user's own


def test_row_65_a_full_tmpdir_is_told_by_its_name(tuned: Project, tmp_path: Path) -> None:
    """The reference takes 160 kB, of which there is no room."""
    full = tmp_path / "full"
    full.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", full], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        tuned.change("N=20000", "N=20001")
        tuned.configure()
        said = tuned.build(status=1, TMPDIR=str(full))
    finally:
        subprocess.run(["umount", full], check=True)
    assert str(full) in said
    assert re.search(r"is full|No space left on device", said), said
    assert "mend `reference`" not in said
    assert "TMPDIR" in said or "free disk space" in said
