"""What a build makes for older CPUs beside this machine's own target, for a short while."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from environments import run
from project import Project

from aot_tune.compile import native_targets

HERE = max((t for t in native_targets() if t.on_host), key=lambda t: t.level)
OLDER = "cpu-x86-64-v3"
pytestmark = pytest.mark.skipif(HERE.level < 4, reason="a CPU without AVX-512 has no older target beside its own")

ASK = """
import json
import numpy as np, ops
x = np.arange(20000, dtype=np.float32)
right = bool((np.from_dlpack(ops.twice(x)) == 2 * x).all())
print(json.dumps([right, ops.explain("twice", x), ops.is_tuned("twice", x)]))
"""


def asked(project: Project, level: str) -> tuple[bool, dict[str, Any], bool]:
    """Whether a result is right, what serves it, and whether that was measured, on CPUs of a level."""
    path = str(project.folder / "cmake")
    env = project.environment(PYTHONPATH=path, AOT_TUNE_CPU_LEVEL=level)
    return tuple(json.loads(run([sys.executable, "-c", ASK], env=env)))


def targets(project: Project, build: str = "build") -> list[str]:
    return sorted({v["target"] for o in project.manifest(build)["operators"] for v in o["variants"]})


@pytest.fixture(scope="module")
def project(tuned_once: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that is built by CMake with all defaults but those of the tests, and recorded."""
    folder = tmp_path_factory.mktemp("older") / "project"
    made = tuned_once.copied(folder, arguments="MODULE ops", AOT_TUNE_OLDER_CPUS="")
    said = made.cmake() + made.make_all()
    assert f"{OLDER} is for older CPUs, tuned last, for 40 s at most (AOT_TUNE_OLDER_CPUS)" in said
    assert f"{OLDER}, for older CPUs: " in said
    report = made.report("cmake/aot_tune/tiny")
    assert f"twice on {OLDER}: tried 2 (2 ok), kept 2" in report  # the config that won on this machine's own target
    assert f"twice on {HERE.name}: tried 6 (6 ok), kept 2" in report
    made.record()
    return made


@pytest.mark.parametrize(("level", "target"), [("", HERE.name), ("3", OLDER), ("2", "cpu-x86-64")])
def test_each_cpu_is_served_by_what_was_tuned_for_it(project: Project, level: str, target: str) -> None:
    right, told, tuned = asked(project, level)
    assert right
    assert (told["target"], told["kernel"]) == (target, "generic" if level == "2" else "loop")
    assert tuned == (level != "2")


def test_a_replay_has_them_too(project: Project) -> None:
    said = project.configure("--database", project.folder / "tuning", build="replay", AOT_TUNE_MODE="replay")
    project.build("replay")
    assert f"{OLDER} is for older CPUs, as far as records know it" in said
    tables = "cmake/aot_tune/tiny"
    assert project.manifest("replay")["operators"] == project.manifest(tables)["operators"]


def test_nothing_is_measured_again(project: Project) -> None:
    project.configure("--database", project.folder / "tuning", build="auto")
    said = project.build("auto", AOT_TUNE_CACHE_DIR=str(project.folder / "auto" / "cache"))
    counted = [line for line in said.splitlines() if "measurements made" in line]
    assert counted  # by records, the target for older CPUs measures nothing and tells nothing
    assert all(": 0 measurements made" in line for line in counted)


def test_it_can_be_switched_off(project: Project) -> None:
    """Under replay as well, where records have it; and it does not go with targets that are named."""
    for build, given in (
        ("off", {"AOT_TUNE_OLDER_CPUS": "0"}),
        ("none", {"AOT_TUNE_OLDER_CPUS": "0", "AOT_TUNE_MODE": "replay"}),
        ("named", {"AOT_TUNE_TARGETS": HERE.name}),
    ):
        said = project.configure("--database", project.folder / "tuning", build=build, **given)
        assert f"targets {HERE.name}\n" in said
        assert "older CPUs" not in said
    project.build("off")
    assert targets(project, "off") == ["cpu-x86-64", HERE.name]


def test_kernels_for_newer_cpus_alone_do_not_end_a_build(tuned_once: Project, tmp_path: Path) -> None:
    made = tuned_once.copied(tmp_path / "project", AOT_TUNE_OLDER_CPUS="40", AOT_TUNE_EFFORT="quick")
    wanted = "#ifndef __AVX512F__\n#error wants AVX-512\n#endif\n{{ no_workspace() }}"
    made.change("{{ no_workspace() }}", wanted, "loop.cpp.j2")
    made.configure()
    made.build()
    assert targets(made) == ["cpu-x86-64", HERE.name]
