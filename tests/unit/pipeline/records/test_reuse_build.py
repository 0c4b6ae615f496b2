"""Builds of the same inputs: what is an input, by value, and what is kept when."""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from project import Project

import aot_tune.pipeline.records.reuse_build as inputs_module
import aot_tune.pipeline.records.reuse_build as reuse_build
import aot_tune.pipeline.session as session_module
from aot_tune.bench.protocol.measurement_records import Policy
from aot_tune.pipeline.records.reuse_build import Repeats, build_key, recorded_digest
from aot_tune.pipeline.session import Session
from aot_tune.plan.library_plan import Request, make_plan
from aot_tune.search.budget import Budget
from aot_tune.support.progress import Progress

pytestmark = pytest.mark.slow

Patch = pytest.MonkeyPatch
Change = Callable[[Project, Patch], None]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: Patch) -> Project:
    """A project whose environment is this process's."""
    made = Project.make(tmp_path / "project")
    made.change("import Kernel", "import Baseline, Kernel")
    made.change("flops=N,", 'flops=N, baselines=(Baseline("numpy", "numpy", lambda xp, call: None),),')
    for name in [n for n in os.environ if n.startswith("AOT_TUNE_")]:
        monkeypatch.delenv(name)
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(reuse_build, "loaded_modules", lambda: ["jinja2"])  # of thousands of files that tests import
    return made


def opened(project: Project) -> tuple[Session, Repeats]:
    request = Request(name="tiny", prefix="tiny", header="tiny.h", templates=(str(project.templates),))
    plan, paths, _ = make_plan(request, os.environ)
    session = Session(plan, paths, Progress(io.StringIO()), Budget(plan.options.budget))
    return session, Repeats(session, paths)


def key(project: Project) -> str:
    session, repeats = opened(project)
    try:
        return build_key(session, repeats._paths)[0]
    finally:
        session.close()


def edit(name: str) -> Change:
    def change(project: Project, _: Patch) -> None:
        (project.templates / "twice" / name).open("a").write("\n")

    return change


def setting(name: str, value: str) -> Change:
    return lambda _, patch: patch.setenv(name, value)


def device(**given: object) -> Change:
    def change(_: Project, patch: Patch) -> None:
        real = session_module.devices
        patch.setattr(session_module, "devices", lambda *a: [msgspec.structs.replace(d, **given) for d in real(*a)])

    return change


def another_compiler(project: Project, patch: Patch) -> None:
    path = project.folder / "another-g++"
    path.write_text(project.compiler.path.read_text() + "# other bytes\n")
    path.chmod(0o755)
    patch.setenv("CXX", str(path))


def another_package(project: Project, patch: Patch) -> None:
    folder = project.folder.parent / "package"
    shutil.copytree(inputs_module.PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "render" / "cxx.py").open("a").write("\n")
    patch.setattr(inputs_module, "PACKAGE", folder)


CHANGES: dict[str, Change] = {
    "a template": edit("loop.cpp.j2"),
    "a file that nothing names": edit("notes.txt"),
    "the operator's text": edit("operator.py"),
    "a problem": lambda p, _: p.change("N=60000", "N=60001"),
    "what an operator takes from elsewhere": setting("SIZE", "30000"),
    "an option": setting("AOT_TUNE_FILTER", "twice/*"),
    "the effort": setting("AOT_TUNE_EFFORT", "quick"),
    "the threads": setting("AOT_TUNE_THREADS", "1"),
    "a variable that reaches compilers": setting("CPATH", "/nowhere"),
    "a variable of CUDA's": setting("CUDA_VISIBLE_DEVICES", "1"),
    "the compiler": another_compiler,
    "the package": another_package,
    "the driver": device(identity={"driver": "2"}),
    "the device of several": device(unit="GPU-1"),
    "the policy": lambda _, p: p.setattr(Session, "policy_of", lambda *_: Policy(seed=7)),
    "a baseline": lambda _, p: p.setattr(inputs_module, "baseline_versions", lambda _: {"numpy": "0"}),
    "Python": lambda _, p: p.setattr(inputs_module.sys, "version", "4"),
}


FREE: dict[str, Change] = {
    "jobs": setting("AOT_TUNE_JOBS", "1"),
    "the cache's mode": setting("AOT_TUNE_CACHE", "ro"),
    "the budget": setting("AOT_TUNE_BUDGET", "1000"),
    "the mode": setting("AOT_TUNE_MODE", "tune"),
    "other variables": setting("HOME", "/nowhere"),
}


def test_each_input_is_part_of_the_key_and_nothing_else(project: Project) -> None:
    """Nor is the place of the project, which is another one for each change."""
    project.change("problem(N=20000)", 'problem(N=int(__import__("os").environ.get("SIZE", "20000")))')
    before = key(project)
    for number, (name, change) in enumerate((*FREE.items(), *CHANGES.items())):
        moved = dataclasses.replace(project, folder=project.folder.parent / str(number))
        shutil.copytree(project.folder, moved.folder)
        with pytest.MonkeyPatch.context() as patch:
            change(moved, patch)
            assert (key(moved) == before) == (name in FREE), name


@pytest.fixture
def begun(project: Project) -> Iterator[tuple[Session, Repeats]]:
    session, repeats = opened(project)
    yield session, repeats
    session.close()


def kept(project: Project, begun: tuple[Session, Repeats]) -> list[Path]:
    """What is in the cache once a build's files are to be kept."""
    session, repeats = begun
    directory = project.folder / "build"
    directory.mkdir(exist_ok=True)
    (directory / "report.json").write_text("{}")
    repeats.keep(directory, [directory / "report.json"], {}, recorded_digest(session))
    room = project.folder / "cache" / "builds"
    assert not list((project.folder / "cache").glob("tmp/*"))
    return list(room.iterdir()) if room.is_dir() else []


def test_a_build_is_kept_for_this_user_alone(project: Project, begun: tuple[Session, Repeats]) -> None:
    (folder,) = kept(project, begun)
    assert {p.stat().st_mode & 0o077 for p in (folder, *folder.rglob("*"))} == {0}
    assert len(kept(project, begun)) == 1  # the same again


def test_what_changed_while_a_build_ran_is_not_kept(project: Project, begun: tuple[Session, Repeats]) -> None:
    edit("loop.cpp.j2")(project, pytest.MonkeyPatch())
    assert kept(project, begun) == []


def test_builds_that_may_be_cut_short_or_must_not_write_are_not_kept(project: Project, monkeypatch: Patch) -> None:
    (project.folder / "cache").mkdir(mode=0o700)
    for name, value in (("AOT_TUNE_BUDGET", "100"), ("AOT_TUNE_CACHE", "ro"), ("AOT_TUNE_MODE", "generic")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            one = opened(project)
            assert kept(project, one) == [], name
            one[0].close()


def test_an_operator_with_something_that_has_no_value_is_not_kept(project: Project) -> None:
    project.change("flops=N,", "flops=N, documentation=type('Text', (str,), {})('text'),")
    one = opened(project)
    assert kept(project, one) == []
    one[0].close()
