"""C and C++ programs built against the installed wheel with nothing but CMake and a compiler."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from environments import ROOT, Venv, environment, obeying_modes, run

CONSUMER = ROOT / "examples" / "cpp_consumer"

C_PROGRAM = r"""
#include "aot_tune/ops.h"
#include <stdio.h>
int main(void) {
  float x[4] = {0, 0, 0, 0}, y[4];
  int64_t shape[2] = {1, 4};
  DLTensor in = {x, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, NULL, 0};
  DLTensor out = {y, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, NULL, 0};
  if (aot_tune_softmax(&in, &out, NULL) != AOT_TUNE_OK) return 1;
  printf("%g\n", y[3]);
  return y[3] == 0.25f ? 0 : 1;
}
"""


def without_python(tmp_path: Path) -> dict[str, str]:
    """An environment whose path holds CMake, a generator and a compiler, and no Python."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("cmake", "ninja", "g++", "gcc", "c++", "cc", "as", "ld", "ar", "ranlib", "nm", "pkg-config"):
        found = shutil.which(name)
        if found:
            (tools / name).symlink_to(found)
    return {"PATH": str(tools), "HOME": str(tmp_path)}


@pytest.mark.parametrize("how", ["aot_tune_DIR", "CMAKE_PREFIX_PATH"])
def test_the_consumer_example(venv: Venv, tmp_path: Path, how: str) -> None:
    """`aot_tune_DIR` points into site-packages; an environment's root on the prefix path leads there too."""
    env = without_python(tmp_path)
    place = venv.run("aot-tune", "--cmake-dir").strip() if how == "aot_tune_DIR" else venv.folder
    build = tmp_path / "build"
    cmake = ["cmake", "-G", "Ninja", "-S", CONSUMER, "-B", build, f"-D{how}={place}", "-DCMAKE_BUILD_TYPE=Release"]
    run(obeying_modes(cmake), env=env)
    run(["cmake", "--build", build], env=env)
    said = run([build / "consumer"], env={})
    assert "greatest error" in said
    assert "variant" in said
    assert "refused: gemm: " in said


def test_an_environment_that_is_active_is_found_by_itself(venv: Venv, tmp_path: Path) -> None:
    env = without_python(tmp_path)
    env["PATH"] = f"{venv.folder / 'bin'}:{env['PATH']}"
    run(["cmake", "-G", "Ninja", "-S", CONSUMER, "-B", tmp_path / "build"], env=env)


def test_a_version_that_is_not_there_is_told(venv: Venv, tmp_path: Path) -> None:
    lists = "cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\nfind_package(aot_tune 99 REQUIRED)\n"
    (tmp_path / "CMakeLists.txt").write_text(lists)
    argv = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={venv.folder}"]
    said = run(argv, env=environment(), status=1)
    assert "aot_tune" in said
    assert "99" in said


@pytest.mark.parametrize("program", ["gcc", "g++"])
def test_pkg_config(venv: Venv, tmp_path: Path, program: str) -> None:
    tool = shutil.which("pkg-config")
    if tool is None or shutil.which(program) is None:
        pytest.skip(f"there is no pkg-config or no {program} on this machine")
    package = venv.packages / "aot_tune"
    env = environment(PKG_CONFIG_PATH=str(package / "lib" / "pkgconfig"))
    flags = run([tool, "--cflags", "--libs", "aot_tune_ops"], env=env).split()
    source = tmp_path / ("program.c" if program == "gcc" else "program.cpp")
    source.write_text(C_PROGRAM)
    out = tmp_path / "program"
    rpath = f"-Wl,-rpath,{package / 'lib'}"
    run([program, "-Wall", "-Wextra", "-Werror", "-pedantic", source, *flags, rpath, "-o", out], env=env)
    assert run([out], env={}).strip() == "0.25"


def test_cmake_alone_knows_the_version(tmp_path: Path) -> None:
    """Without pip, as C++ developers build: `find_package(aot_tune 0.1)` asks for it."""
    search = os.pathsep.join(p for p in sys.path if p)
    env = environment(AOT_TUNE_MODE="generic", AOT_TUNE_CACHE_DIR=str(tmp_path / "cache"), PYTHONPATH=search)
    argv = ["cmake", "-G", "Ninja", "-S", ROOT, "-B", tmp_path / "build", f"-DPython_EXECUTABLE={sys.executable}"]
    run(argv, env=env)
    (wanted,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert f'set(PACKAGE_VERSION "{wanted}")' in (tmp_path / "build" / "aot_tuneConfigVersion.cmake").read_text()
