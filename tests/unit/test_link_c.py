"""The C interface under sanitizers: every error, nothing written when a call fails, no byte out of bounds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import linked
import pytest

from aot_tune.link import runtime_folder


@pytest.fixture(scope="module")
def program(built: linked.Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """link_calls.cpp with the library's sources, all but the kernels compiled with sanitizers."""
    target = tmp_path_factory.mktemp("sanitized") / "calls"
    runtime, out = runtime_folder(), built.library.parent
    flags = ["-std=c++17", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all"]
    flags += ["-fsanitize=address,undefined", *(f"-I{folder}" for folder in (out, runtime, runtime / "include"))]
    sources = [str(Path(__file__).with_name("link_calls.cpp")), built.made.dispatch]
    sources += [str(p) for p in sorted(runtime.glob("*.cpp"))]
    subprocess.run(["g++", *flags, *sources, built.made.archive, "-pthread", "-o", str(target)], check=True)
    return target


@pytest.mark.parametrize("level", ["", "2"])
def test_calls_under_sanitizers(program: Path, level: str) -> None:
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1:halt_on_error=1"}
    env.pop("AOT_TUNE_CPU_LEVEL", None)
    if level:
        env["AOT_TUNE_CPU_LEVEL"] = level
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "0 failures\n"
