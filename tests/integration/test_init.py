"""A project that `aot-tune init` made builds a wheel at once, with options through pip; Python and C++ call it."""

import json
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest
from environments import ROOT, environment, run

from aot_tune.pipeline.try_one import Tried

CONFIG = f'include("{ROOT}/cmake/aot_tune_add_library.cmake")\n'
"""Stands in for the config of an installed aot_tune: the source tree's functions."""


@pytest.mark.slow
def test_a_new_project_builds_and_tests_itself(tmp_path: Path) -> None:
    env = environment(PYTHONPATH=str(ROOT), AOT_TUNE_CACHE_DIR=str(tmp_path / "cache"), AOT_TUNE_SURVEY="0")
    run([sys.executable, "-m", "aot_tune.cli.main", "init", "my_kernels"], env=env, cwd=tmp_path)
    project = tmp_path / "my_kernels"
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "aot_tuneConfig.cmake").write_text(CONFIG)
    argv: list[object] = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "--no-index"]
    argv += ["-C", f"cmake.define.aot_tune_DIR={tmp_path / 'config'}", "-w", tmp_path / "dist", project]
    argv += ["-C", "cmake.define.AOT_TUNE_EFFORT=quick"]
    log = run(argv, env={**env, "AOT_TUNE_EFFORT": "exhaustive"})
    assert ", effort quick\n" in log  # a CMake variable of one `pip install` beats the environment
    assert "measurements made" in log
    (wheel,) = (tmp_path / "dist").glob("my_kernels-0.1.0-cp310-abi3-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    env["PYTHONPATH"] = str(tmp_path / "installed")
    told = run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", project / "tests"], env=env, cwd=tmp_path
    )
    assert "13 passed" in told
    folder = run([sys.executable, "-m", "my_kernels", "--cmake-dir"], env=env, cwd=project).strip()
    assert folder == str(tmp_path / "installed" / "my_kernels" / "cmake")
    run(["cmake", "-S", "cpp", "-B", "build/cpp", f"-Dmy_kernels_DIR={folder}"], env=env, cwd=project)
    assert "12 24 36\n" in run(["cmake", "--build", "build/cpp"], env=env, cwd=project)
    env["PYTHONPATH"] = f"{ROOT}:{tmp_path / 'installed'}"
    command = [sys.executable, "-m", "aot_tune.cli.main"]
    report = json.loads(run([*command, "report", "--module", "my_kernels.ops", "--json"], env=env, cwd=tmp_path))
    part = next(part for part in report["operators"] if part["operator"] == "axpy")
    variant = part["problems"][0]["winner"]
    given = ["--templates", "templates", "--target", part["target"], "--problem", "N=4096", "--json"]
    said = run([*command, "try", "axpy", variant, *given], env=env, cwd=project)
    tried = msgspec.json.decode(said[said.rindex("\n{\n") :], type=Tried)
    assert (tried.candidate, tried.well, [p.problem for p in tried.problems]) == (variant, True, ["N=4096"])
    assert tried.problems[0].ns[variant] > 0
