"""Candidates and operators that fail: what a build does then, and what it tells."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from environments import run
from project import Project

pytestmark = pytest.mark.slow

X = 'load("x", ["i"])'
WAYS = {
    "compile_error": ('{{ store("y"', 'missing(); {{ store("y"', "compile-failed", "missing"),
    "wrong_result": ('"2 * " ~', f'{X} ~ " != " ~ {X} ~ " ? 0.0f : 2 * " ~', "wrong-result", "y["),
    "crash": ("for (int t", "*reinterpret_cast<volatile int*>(0) = 1;\n  for (int t", "crashed", "SIGSEGV"),
    "exits": ("for (int t", "_exit(0);\n  for (int t", "no-result", ""),
    "failure": ("return 0;", "return 7;", "failed", "7"),
}
"""Operators of which no candidate survives: a change of the template, the status, and what the reason holds."""
BROKEN = {
    "compiles_not": ('{{ store("y"', 'missing(); {{ store("y"', "generic.cpp.j2"),
    "generic_wrong": ('"2 * " ~', '"3 * " ~', "generic.cpp.j2"),
    "reference_fails": ("2 * call.x", "2 * call.z", "operator.py"),
}
"""Operators that fail before their candidates count."""
SMALL = [
    ("problem(N=20000), problem(N=60000)", "problem(N=20000),", "operator.py"),
    ("(1, 4, 16, 64, 256)", "(1, 4)", "operator.py"),
    ("{{ prelude() }}", "#include <unistd.h>\n{{ prelude() }}", "loop.cpp.j2"),
]


def built(project: Project, *operators: str, option: str = "", status: int = 0) -> str:
    """What a build of some operators says, in a folder of its own."""
    arguments = ["--default", f"AOT_TUNE_OPERATORS={';'.join(operators)}"]
    shutil.rmtree(project.folder / "build", ignore_errors=True)
    project.configure(*arguments, *(["--option", f"AOT_TUNE_NO_SURVIVOR={option}"] if option else []))
    return project.build(status=status)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory, tuned_once: Any, forks: Callable[..., str]) -> Project:
    """A project of one good operator, of one with some bad configs, and of all those that are broken."""
    project: Project = tuned_once.copied(tmp_path_factory.mktemp("several") / "project")
    project.runs = forks
    project.add("good", *SMALL)
    for name, (old, new, _, _) in WAYS.items():
        project.add(name, *SMALL, (old, new, "loop.cpp.j2"))
    for name, change in BROKEN.items():
        project.add(name, *SMALL, change)
    half = "i < ({{" + ' dim("N") }}) / {{ 2 if TIMES == 1 else 1 }};'
    bad = "{% if TIMES == 16 %}#error sixteen\n{% endif %}{{ prelude() }}"
    project.add(
        "partly", SMALL[0], ("{{ prelude() }}", bad, "loop.cpp.j2"), ('i < {{ dim("N") }};', half, "loop.cpp.j2")
    )
    return project


@pytest.fixture(scope="module")
def failed(several: Project) -> str:
    """What the build of all of them said."""
    return built(several, status=1)


def told(said: str, name: str) -> str:
    end = said[said.index("aot-tune: ") :]
    found = re.search(rf"^ +(?:why: )?{name}: .*\n(?: +  (?:why|fix): .*\n(?: {{9,}}.*\n)*)*", end, re.MULTILINE)
    assert found, (name, end)
    return found[0]


def test_row_66_all_operators_that_fail_are_told_at_once_with_a_reason_for_each_candidate(
    several: Project, failed: str
) -> None:
    names = ", ".join(sorted([*WAYS, *BROKEN]))
    assert f"8 of 11 operators cannot be shipped: {names}" in failed
    for name, reason in {
        "compiles_not": "its generic kernel cannot be compiled",
        "generic_wrong": r"its generic kernel fails on 'N=20000'",
        "reference_fails": "'z'",
    }.items():
        assert re.search(reason, told(failed, name)), failed
    for way, (_, _, status, reason) in WAYS.items():
        text = told(failed, way)
        assert "no candidate survived" in text
        assert text.count(f": {status}: ") + text.count(f": the same; again: aot-tune try {way} ") == 2, text
        assert reason in text
    at_once = failed[: failed.index("measurements made")]
    assert re.search(r": wrong_result: loop_\w+ \(loop .*\) fails: wrong-result: y\[.*; again: aot-tune try ", at_once)
    assert re.search(r": compile_error: loop_\w+ \(loop .*\) fails: compile-failed: .*missing.*; again: ", at_once)
    assert "AOT_TUNE_NO_SURVIVOR=generic" in failed
    assert "fix: correct them, or leave them out of the library with AOT_TUNE_NO_SURVIVOR=leave-out" in failed
    assert "Traceback" not in failed
    assert not (several.folder / "build" / "manifest.json").exists()


@pytest.mark.usefixtures("failed")
def test_the_generic_variant_alone_is_shipped_when_asked_for(several: Project) -> None:
    assert "fails: wrong-result: " in built(several, "wrong_result", option="generic")
    (variant,) = several.manifest()["operators"][0]["variants"]
    assert variant["generic"]
    report = json.loads((several.folder / "build" / "report.json").read_bytes())
    assert any("no candidate survived" in note for note in report["notes"])


@pytest.mark.usefixtures("failed")
def test_row_66_those_that_fail_are_left_out_by_choice_and_a_bad_config_costs_only_itself(several: Project) -> None:
    said = built(several, option="leave-out")
    (names,) = re.findall(r"AOT_TUNE_NO_SURVIVOR=leave-out says: (.*)", said)
    assert set(names.split(", ")) == set(BROKEN)
    assert "its generic kernel fails on 'N=20000'" in said
    made = {o["name"]: o["variants"] for o in several.manifest()["operators"]}
    assert made.keys() == {"good", "partly", "twice", *WAYS}
    again = several.build()
    assert "LEFT OUT" in again, "what failed is tried again, and told again"
    winners = [v["config"] for v in made["partly"] if not v["generic"]]
    assert winners
    assert all(config["TIMES"] != 1 for config in winners), "half of its output would be of the candidate before"
    report = json.loads((several.folder / "build" / "report.json").read_bytes())
    (failures,) = (o["failures"] for o in report["operators"] if o["operator"] == "partly")
    assert {f["status"] for f in failures} == {"compile-failed", "wrong-result"}
    (error,) = {f["reason"] for f in failures if "TIMES=16" in f["candidate"]}
    assert "partly/loop.cpp.j2" in error


def test_row_66_what_is_good_was_measured_and_what_failed_is_done_again_by_its_command(
    several: Project, failed: str
) -> None:
    said = built(several, "good")
    known = re.search(r"(\d+) measurements made, (\d+) known from before", said)
    assert known, said
    assert int(known[2]) >= 3
    old, new, status, reason = WAYS["wrong_result"]
    commands = set(re.findall(r"\bagain: aot-tune (.* wrong_result .*)$", told(failed, "wrong_result"), re.MULTILINE))
    assert len(commands) == 2
    words = shlex.split(min(commands))
    assert re.fullmatch(r"N=\d+, NaN and infinities in x", words[-1]), words
    command = several.command(*words)
    again = run(command, env=several.environment(), cwd=several.folder, status=1)
    assert f"status    {status}" in again
    assert reason in again
    file = several.templates / "wrong_result" / "loop.cpp.j2"
    file.write_text(file.read_text().replace(new, old))
    assert "status    ok" in run(command, env=several.environment(), cwd=several.folder)
