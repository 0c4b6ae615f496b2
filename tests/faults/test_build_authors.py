"""Code and files of authors that never end, lie, or are gone: FAULTS.md, rows 54 to 58 and 61 to 65."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from environments import run
from processes import becomes_true, is_alive, small_disk
from project import Project
from record_texts import rewrite

pytestmark = pytest.mark.slow

SOON = "import aot_tune.support.limited_code as limited; limited.SECONDS = 1.0; "
"""Deadlines of a test, for a build that is run by `python -c`."""


@pytest.fixture
def tuned(tuned_once: Any, tmp_path: Path, forks: Callable[..., str]) -> Project:
    """A copy of the project that was built and recorded."""
    made: Project = tuned_once.copied(tmp_path / "project")
    made.runs = forks
    return made


def record_of(project: Project) -> Path:
    (path,) = (project.folder / "tuning").rglob("twice.jsonl")
    return path


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
        gone = becomes_true(lambda pid=tuners[0]: not is_alive(pid), 10)  # Python's start, where the machine is busy
        process.kill()
        process.wait()
        assert gone, f"it lives on 10 s after its build tool, which was killed after {moment} s"


def _below(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def replay(project: Project, status: int | None = 0) -> str:
    shutil.rmtree(project.folder / "replayed", ignore_errors=True)
    said = project.configure(
        "--database", project.folder / "tuning", build="replayed", AOT_TUNE_MODE="replay", status=None
    )
    if "aot-tune: " in said:
        assert status != 0, said
        return said
    return said + project.build("replayed", status=status)


def scaled(measured: dict[str, Any]) -> None:
    """Times of a device that is a hundred thousand times as fast, in all that says them."""
    for name in {"screen", "final"} & measured.keys():
        measured[name] = [float(f"{ns * 1e-5:.5g}") for ns in measured[name]]
    for name in {"spread", "overhead"} & measured.keys():
        measured[name] = float(f"{measured[name] * 1e-5:.5g}")
    if "ns" in measured:
        measured["ns"] = float(f"{statistics.median(measured.get('final') or measured['screen']):.5g}")


def wrong(measured: dict[str, Any]) -> None:
    if "error" in measured:
        measured["error"] = 7.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (scaled, r"takes [\d.e-]+ ns, less than the [\d.]+ ns that the device's peaks allow"),
        (wrong, r"its error is 7\.5 tolerances, but its status is ok"),
    ],
)
def test_row_56_a_record_is_held_to_what_measurements_are_held_to(
    tuned: Project, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    def changed(text: str) -> str:
        lines = [json.loads(line) for line in text.splitlines()]
        for line in lines:
            for kind, fields in line.items():
                if kind == "measurement":
                    change(fields)
        return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)

    path = record_of(tuned)
    if change is wrong:  # which is seen before its digests are
        path.write_text(changed(path.read_text()))
    else:
        rewrite(path, changed)
    said = replay(tuned, status=1)
    assert re.search(words, " ".join(said.split())), said


def test_row_57_a_config_that_is_gone_is_neither_recorded_nor_linked(tuned: Project) -> None:
    project, path = tuned, record_of(tuned)
    assert "TIMES" in path.read_text()
    winner = next(v for v in project.manifest()["operators"][0]["variants"] if not v["generic"])
    times = winner["config"]["TIMES"]
    left = ", ".join(str(n) for n in (1, 4, 16, 64, 256) if n != times)
    project.change('Parameter("TIMES", (1, 4, 16, 64, 256))', f'Parameter("TIMES", ({left}))')
    said = replay(project)
    assert re.search(r"twice: 1 recorded candidates for \S+ have configs that their kernels no longer have", said)
    configs = [v["config"] for v in project.manifest("replayed")["operators"][0]["variants"] if not v["generic"]]
    assert configs
    assert times not in [c["TIMES"] for c in configs]
    project.configure(AOT_TUNE_MODE="auto")
    project.build()
    project.record()
    path = record_of(project)
    candidates = [json.loads(line) for line in path.read_text().splitlines() if '"TIMES"' in line]
    assert candidates
    assert not re.search(rf'"TIMES":{times}\b', path.read_text())


def test_row_61_dev_builds_after_each_edit_also_of_a_header_that_only_cpp_includes(project: Project) -> None:
    header, operator, loop = (
        project.folder / "include" / "factor.h",
        project.templates / "twice" / "operator.py",
        project.templates / "twice" / "loop.cpp.j2",
    )
    header.parent.mkdir()
    header.write_text("#define FACTOR 2\n")
    project.change("(1, 4, 16, 64, 256)", "(1,)")
    project.change("problem(N=20000), problem(N=60000)", "problem(N=20000),")
    for file in ("generic.cpp.j2", "loop.cpp.j2"):
        project.change("{{ prelude() }}", f'#include "{header}"\n{{{{ prelude() }}}}', file)
        project.change('"2 * " ~', '"FACTOR * " ~', file)
    lists = project.folder / "CMakeLists.txt"
    text = lists.read_text().replace("TEMPLATES templates", "TEMPLATES templates MODULE tiny_ops")
    lists.write_text(f"{text}aot_tune_install_library(tiny DESTINATION pkg)\n")
    (project.folder / "pkg").mkdir()
    (project.folder / "pkg" / "__init__.py").write_text("from .tiny_ops import twice\n")
    texts = {file: file.read_text() for file in (header, operator, loop)}
    report = project.folder / "build" / "dev" / "aot_tune" / "tiny" / "report.json"
    report.parent.mkdir(parents=True)
    report.write_text('{"schema": 1}')  # of another version, which a build replaces
    with Dev(project) as dev:
        said = dev.until("waiting for an edit")
        assert re.search(r"twice on cpu-\S+: tried 2 \(2 ok\)\n  N=20000  loop_\w+  \S+ [nu]s\n", said), said
        assert "survey" not in said
        (path,) = re.findall(r"PYTHONPATH=(\S+) python -c 'import pkg\.tiny_ops'", said)
        code = "import array, pkg, numpy as np; print(np.from_dlpack(pkg.twice(np.ones(3, 'f'))))"
        assert "[2. 2. 2.]" in run([sys.executable, "-c", code], env=project.environment(PYTHONPATH=path))
        assert "no work to do" in project.make_all("build/dev")
        loop.write_text(texts[loop].replace("{{ unroll(UNROLL) }}", "{{ unroll(UNROLL) }"))
        said = dev.until("waiting for an edit")
        assert re.search(r"\naot-tune: .*loop\.cpp\.j2:\d+: ", said), said
        loop.write_text(texts[loop])
        operator.write_text(f"raise RuntimeError('not yet')\n{texts[operator]}")
        said = dev.until("waiting for an edit")
        assert re.search(r"operator\.py\s+fails: RuntimeError: not yet\s+why: operator\.py:1: raise", said), said
        operator.write_text(texts[operator])
        loop.write_text(texts[loop].replace("for (int t = 0; t <", "for (volatile int t = 0; t * 0 <"))
        dev.until("edited: ")
        time.sleep(3)  # it may hang by now; at any other moment the edit counts, too
        loop.write_text(texts[loop])
        header.write_text("#define FACTOR 3\n")
        said = dev.until("waiting for an edit")
        assert re.search(r"edited: include/factor.h, templates/twice/loop.cpp.j2", said), said
        assert "timeout" not in said
        assert re.search(r"aot-tune: operator 'twice': (loop|generic)_\w+ .* fails: wrong-result\n  why: y\[", said), (
            said
        )
        assert re.search(r"aot-tune try twice \w+ --target \S+ --templates templates --problem N=", said), said
    assert "Traceback" not in dev.said


class Dev:
    """`aot-tune dev` on a project, in a `with` block that ends it."""

    def __init__(self, project: Project) -> None:
        self._project, self.said, self._read = project, "", 0

    def __enter__(self) -> Dev:
        project = self._project
        environment = project.environment(PYTHONUNBUFFERED="1")
        self._process = subprocess.Popen(
            project.command("dev", "."), cwd=project.folder, env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        return self

    def until(self, words: str) -> str:
        """What it says until some words, since they were last waited for."""
        assert self._process.stdout is not None
        new = ""
        for line in self._process.stdout:
            new, self.said = new + line, self.said + line
            if re.search(words, line):
                return new
        raise AssertionError(self.said)

    def __exit__(self, *_error: object) -> None:
        self._process.send_signal(signal.SIGINT)
        self.said += self._process.communicate(timeout=30)[0]
        assert self._process.returncode == 130


def test_row_63_destdir_is_refused_where_a_wheel_would_be_empty(project: Project) -> None:
    said = " ".join(project.cmake("-DSKBUILD_STATE=wheel", DESTDIR="/somewhere", status=1).split())
    assert "DESTDIR is '/somewhere'" in said
    assert "fix: unset DESTDIR" in said
    project.cmake(DESTDIR="/somewhere", build="other")  # without a wheel it is the user's own


def test_row_64_the_linkers_own_line_is_shown(tmp_path: Path) -> None:
    from aot_tune.compile.diagnostics import first_error

    source, member = tmp_path / "tls.c", tmp_path / "tls.o"
    source.write_text("__thread int mine; int get(void) { return mine; }\n")
    run(["gcc", "-c", "-fno-pic", "-ftls-model=local-exec", "-o", member, source])
    said = run(["gcc", "-shared", "-o", tmp_path / "it.so", member], status=1)
    told = first_error(said)
    assert re.search(r"ld: .*tls\.o.*(can not be used when making a shared object|recompile with -fPIC)", told), said
    assert re.search(r"\[.*(shared one|compile it with -fPIC).*\]", told)


def test_row_65_a_full_tmpdir_is_told_by_its_name(tuned: Project, tmp_path: Path) -> None:
    """The reference takes 160 kB, of which there is no room."""
    with small_disk(tmp_path / "full", "size=96k") as full:
        tuned.change("N=20000", "N=20001")
        tuned.configure()
        said = tuned.build(status=1, TMPDIR=str(full))
    assert str(full) in said
    assert re.search(r"is full|No space left on device", said), said
    assert "correct `reference`" not in said
    assert "TMPDIR" in said or "free disk space" in said


def test_row_74_escapes_are_shown() -> None:
    from aot_tune.bench.host.worker_process import Output

    output = Output()
    output.feed(b"\x1b[2J\x1b]0;title\x07right\x00\r\n" + b"x" * (1 << 20) + b"\n")
    text = output.text()
    assert "\x1b" not in text
    assert r"\x1b[2J\x1b]0;title\x07right\x00\r" in text
    assert len(text) < 80_000
    assert len(output.last_lines()) <= 300
