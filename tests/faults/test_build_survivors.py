"""Candidates that all fail: what a build does then, and what it tells."""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from environments import run
from project import Project

pytestmark = pytest.mark.slow

WAYS = {
    "compile error": ('{{ store("y"', 'missing(); {{ store("y"', "compile-failed", "missing"),
    "wrong result": ('"2 * " ~', '"3 * " ~', "wrong-result", "y["),
    "crash": ("for (int t", "*reinterpret_cast<volatile int*>(0) = 1;\n  for (int t", "crashed", "SIGSEGV"),
    "exit": ("for (int t", "_exit(0);\n  for (int t", "no-result", ""),
    "failure": ("return 0;", "return 7;", "failed", "7"),
}


def make(folder: Path, forks: Callable[..., str]) -> Project:
    made = Project.make(folder / "project")
    made.runs = forks
    made.change("problem(N=20000), problem(N=60000)", "problem(N=20000),")
    made.change("{{ prelude() }}", "#include <unistd.h>\n{{ prelude() }}", "loop.cpp.j2")
    return made


@pytest.fixture
def project(tmp_path: Path, forks: Callable[..., str]) -> Project:
    return make(tmp_path, forks)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory, forks: Callable[..., str]) -> Callable[[str], tuple[Project, str]]:
    """A project whose candidates all fail in one way, and what its build said; built once for each way."""

    @functools.cache
    def failed_in(way: str) -> tuple[Project, str]:
        project = make(tmp_path_factory.mktemp("failed"), forks)
        project.change(*WAYS[way][:2], "loop.cpp.j2")
        project.configure()
        return project, project.build(status=1)

    return failed_in


@pytest.mark.parametrize("way", WAYS)
def test_no_survivor_fails_by_default_with_a_reason_for_each(
    failed: Callable[[str], tuple[Project, str]], way: str
) -> None:
    _, _, status, reason = WAYS[way]
    project, said = failed(way)
    end = said[said.index("aot-tune: ") :]
    assert "operator 'twice' on cpu-x86-64-v" in end
    assert "no candidate survived" in end
    assert end.count(f": {status}: ") + end.count(": the same; again: aot-tune try twice ") == 5
    assert reason in end
    assert "AOT_TUNE_NO_SURVIVOR=generic" in end
    assert ("does not end with `return` crashes" in end) == (status == "crashed")
    assert "Traceback" not in said
    assert not (project.folder / "build" / "manifest.json").exists()


@pytest.mark.parametrize("way", ["compile error", "wrong result"])
def test_the_command_beside_a_failure_does_it_again(failed: Callable[[str], tuple[Project, str]], way: str) -> None:
    old, new, status, reason = WAYS[way]
    project, said = failed(way)
    commands = re.findall(r"\bagain: aot-tune (.*)$", said, re.MULTILINE)
    assert len(set(commands)) == 5
    again = run(project.command(*shlex.split(commands[0])), env=project.environment(), cwd=project.folder, status=1)
    assert f"status    {status}" in again
    assert reason in again
    project.change(new, old, "loop.cpp.j2")
    again = run(project.command(*shlex.split(commands[0])), env=project.environment(), cwd=project.folder)
    assert "status    ok" in again


def test_the_generic_variant_alone_is_shipped_when_asked_for(project: Project) -> None:
    project.change(*WAYS["wrong result"][:2], "loop.cpp.j2")
    project.configure("--option", "AOT_TUNE_NO_SURVIVOR=generic")
    said = project.build()
    assert "no candidate survived" in said
    (variant,) = project.manifest()["operators"][0]["variants"]
    assert variant["generic"]
    report = json.loads((project.folder / "build" / "report.json").read_bytes())
    assert any("no candidate survived" in note for note in report["notes"])


@pytest.mark.parametrize(("way", "allowed"), [("compile error", "fail"), ("wrong result", "generic")])
def test_a_generic_variant_that_fails_always_fails_the_build(project: Project, way: str, allowed: str) -> None:
    """There would be calls without an answer, or with a wrong one."""
    old, new, status, _ = WAYS[way]
    project.change(old, new, "generic.cpp.j2")
    project.configure("--option", f"AOT_TUNE_NO_SURVIVOR={allowed}")
    said = project.build(status=1)
    end = said[said.index("aot-tune: ") :]
    assert "operator 'twice'" in end
    assert "generic" in end
    assert "missing" in end if way == "compile error" else status in end
    if way == "wrong result":
        assert re.search(r"To try again: aot-tune try twice generic_\w+ --target cpu-x86-64 --templates templates", end)


def test_one_bad_config_costs_only_itself(project: Project) -> None:
    project.change("{{ prelude() }}", "{% if TIMES == 16 %}#error sixteen\n{% endif %}{{ prelude() }}", "loop.cpp.j2")
    project.configure()
    project.build()
    report = json.loads((project.folder / "build" / "report.json").read_bytes())
    failures = report["operators"][0]["failures"]
    assert {f["status"] for f in failures} == {"compile-failed"}
    assert all("TIMES=16" in f["candidate"] for f in failures)
    assert "twice/loop.cpp.j2" in failures[0]["reason"]
    assert any(not v["generic"] for v in project.manifest()["operators"][0]["variants"])


def test_a_fast_wrong_candidate_never_wins(project: Project) -> None:
    """Half of the output is written: the rest would have been left from the candidate before."""
    project.change("i < {{", "i < ({{", "loop.cpp.j2")
    project.change('dim("N") }};', 'dim("N") }}) / (TIMES_IS_ONE ? 2 : 1);', "loop.cpp.j2")
    project.change("#include", "#define TIMES_IS_ONE {{ 1 if TIMES == 1 else 0 }}\n#include", "loop.cpp.j2")
    project.configure()
    project.build()
    report = json.loads((project.folder / "build" / "report.json").read_bytes())
    assert {f["status"] for f in report["operators"][0]["failures"]} == {"wrong-result"}
    winners = [v["config"] for v in project.manifest()["operators"][0]["variants"] if not v["generic"]]
    assert winners
    assert all(config["TIMES"] != 1 for config in winners)


BROKEN = {
    "compiles_not": ('{{ store("y"', 'missing(); {{ store("y"', "generic.cpp.j2"),
    "generic_wrong": ('"2 * " ~', '"3 * " ~', "generic.cpp.j2"),
    "reference_fails": ("2 * call.x", "2 * call.z", "operator.py"),
    "survives_not": ("return 0;", "return 7;", "loop.cpp.j2"),
}
"""FAULTS.md, row 66: an operator each that fails in a way of its own."""


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory, forks: Callable[..., str]) -> tuple[Project, str]:
    """A project of one good operator and of all those that are broken, and what its build said."""
    project = make(tmp_path_factory.mktemp("several"), forks)
    for name, change in BROKEN.items():
        project.add(name, change)
    project.configure()
    return project, project.build(status=1)


def test_row_66_all_operators_that_fail_are_told_at_once(several: tuple[Project, str]) -> None:
    project, said = several
    end = said[said.index("aot-tune: ") :]
    assert "4 of 5 operators cannot be shipped: " + ", ".join(sorted(BROKEN)) in end
    for name, reason in {
        "compiles_not": "its generic kernel cannot be compiled",
        "generic_wrong": r"its generic kernel fails on 'N=20000'",
        "reference_fails": "'z'",
        "survives_not": r"no candidate survived\n.*loop TIMES=",
    }.items():
        told = re.search(rf"^ +(?:why: )?{name}: .*\n(?: +  (?:why|fix): .*\n(?: {{9,}}.*\n)*)*", end, re.MULTILINE)
        assert told, (name, end)
        assert re.search(reason, told[0]), told[0]
    assert "fix: mend them, or leave them out of the library with AOT_TUNE_NO_SURVIVOR=leave-out" in end
    assert "Traceback" not in said
    assert not (project.folder / "build" / "manifest.json").exists()


def test_row_66_the_good_ones_are_measured_although_others_fail(several: tuple[Project, str]) -> None:
    """What was measured is known to the next build, which has the others mended."""
    project, _ = several
    for name, (old, new, path) in BROKEN.items():
        file = project.templates / name / path
        file.write_text(file.read_text().replace(new, old))
    project.configure(build="mended")
    said = project.build("mended")
    known = re.search(r"(\d+) measurements made, (\d+) known from before", said)
    assert known, said
    assert int(known[2]) >= 6
    assert {o["name"] for o in project.manifest("mended")["operators"]} == {"twice", *BROKEN}


def test_row_66_those_that_fail_are_left_out_by_choice(project: Project) -> None:
    for name in ("generic_wrong", "reference_fails"):
        project.add(name, BROKEN[name])
    project.configure("--option", "AOT_TUNE_NO_SURVIVOR=leave-out")
    said = project.build()
    assert "LEFT OUT of the library, as AOT_TUNE_NO_SURVIVOR=leave-out says: generic_wrong, reference_fails" in said
    assert "its generic kernel fails on 'N=20000'" in said
    assert [o["name"] for o in project.manifest()["operators"]] == ["twice"]
    again = project.build()
    assert "LEFT OUT" in again, "what failed is tried again, and told again"


def test_a_library_of_nothing_is_never_built(project: Project) -> None:
    project.change(*WAYS["wrong result"][:2], "generic.cpp.j2")
    project.configure("--option", "AOT_TUNE_NO_SURVIVOR=leave-out")
    assert "its generic kernel fails on 'N=20000'" in project.build(status=1)
