"""The headers that make tensors of a program's memory, and the numbers by which headers and libraries fit."""

import os
import re
import subprocess
from pathlib import Path

import linked
import pytest
from bundled import OPERATORS
from places import GOLDEN, ROOT, SHARED

from aot_tune.link.interfaces import ABI_VERSION
from aot_tune.render.template_functions import parameters
from aot_tune.support.installed_paths import RUNTIME

BASE = RUNTIME / "include" / "aot_tune" / "base.h"

REFUSED = """\
tensor: it needs 12 elements, and the container holds 10
tensor: it has 9 axes, and operators have at most 8
tensor: axis 1 has the extent -1
tensor: it has 2 extents and 1 strides: give one stride for each axis
tensor: axis 0 has the stride -1, which leads out of the container: pass a pointer to the first element
tensor: it reaches over more than 2^63 elements
tensor: its data is NULL: pass a pointer to its first element
tensor: its data is not aligned to the 4 bytes of an element
tensor: the product of its extents is above 2^63
tensor: transposed(0, 2) of 2 axes
"""

C_PROGRAM = r"""
#include <stdio.h>
#include "aot_tune/ops.h"
#include "aot_tune/tensor.h"
#if AOT_TUNE_VERSION < 100 || AOT_TUNE_ABI_VERSION < 1
#error "too old"
#endif
int main(void) {
  const float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {1, 0, 0, 1, 1, 1};
  float y[4];
  int64_t rows[2] = {2, 3}, columns[2] = {3, 2}, square[2] = {2, 2}, turned[2] = {1, 2};
  DLTensor left = aot_tune_tensor(a, AOT_TUNE_F32, aot_tune_cpu(), 2, rows, NULL);
  DLTensor right = aot_tune_tensor(b, AOT_TUNE_F32, aot_tune_cpu(), 2, columns, NULL);
  DLTensor out = aot_tune_tensor(y, AOT_TUNE_F32, aot_tune_cpu(), 2, square, turned);
  if (aot_tune_gemm(&left, &right, NULL, NULL, &out, 0, NULL) != AOT_TUNE_OK) return 1;
  printf("%g %g %g %g ", y[0], y[1], y[2], y[3]);
  printf("%d %d\n", (int)aot_tune_cuda(3).device_id, (int)aot_tune_rocm(0).device_type);
  return 0;
}
"""


def compiled(built: linked.Built, source: Path, program: Path, *flags: str, compiler: str = "g++") -> Path:
    folders = [f"-I{built.library.parent}", f"-I{RUNTIME / 'include'}", f"-Wl,-rpath,{built.library.parent}"]
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Wcast-qual", "-Werror"]
    argv = [compiler, *strict, *flags, *folders, str(source), str(built.library), "-o", str(program)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def output(program: Path, status: int = 0) -> str:
    env = {**os.environ, "AOT_TUNE_FORCE": "gemm:plain"}  # the other variants add to their results
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("flags", [["-std=c++17", "-fsanitize=undefined"], ["-std=c++23"]])
def test_views_of_cpp(built: linked.Built, tmp_path: Path, flags: list[str]) -> None:
    program = compiled(built, SHARED / "tensor_views.cpp", tmp_path / "views", *flags)
    said = output(program)
    assert said.startswith(REFUSED)
    assert said.removeprefix(REFUSED).startswith("gemm: tensor 'b': axis 0 has extent 2, wanted K = 3")


def test_what_does_not_compile(tmp_path: Path) -> None:
    """Elements without a dtype, and a container that would be gone."""
    made = "auto made = aot_tune::contiguous"
    for text, told in (
        (
            f"static struct Odd {{}} odd;\n{made}(&odd, {{1}});",
            "this type of elements has no dtype. Specialise aot_tune",
        ),
        (f"{made}(std::vector<float>(1), {{{{1}}}});", "error: "),
        (f"static std::vector<float> held(1);\n{made}(held, {{{{1}}}});", ""),
    ):
        (tmp_path / "odd.cpp").write_text(f"#include <aot_tune/tensor.hpp>\n#include <vector>\n{text}\n")
        argv = ["g++", "-std=c++17", f"-I{RUNTIME / 'include'}", "-fsyntax-only", str(tmp_path / "odd.cpp")]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) == bool(told), done.stderr
        assert told in done.stderr


@pytest.mark.parametrize("standard", ["c99", "gnu17"])
def test_views_of_c(built: linked.Built, tmp_path: Path, standard: str) -> None:
    source = tmp_path / "program.c"
    source.write_text(C_PROGRAM)
    program = compiled(built, source, tmp_path / "program", f"-std={standard}", compiler="gcc")
    assert output(program) == "4 10 5 11 3 10\n"  # stored by columns


def test_the_version_is_the_projects() -> None:
    text = BASE.read_text()
    (wanted,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    found = [re.findall(rf"^#define AOT_TUNE_VERSION_{part} (\d+)$", text, re.MULTILINE) for part in PARTS]
    assert ".".join(number for (number,) in found) == wanted
    assert re.findall(r"^#define AOT_TUNE_ABI_VERSION (\d+)$", text, re.MULTILINE) == [str(ABI_VERSION)]


PARTS = ("MAJOR", "MINOR", "PATCH")


def test_a_header_of_another_abi_is_refused(built: linked.Built, tmp_path: Path) -> None:
    """Two packages have each their base.h; the first on the include path serves both."""
    (tmp_path / "aot_tune").mkdir()
    text = re.sub(r"(AOT_TUNE_ABI_VERSION) \d+", r"\1 999", BASE.read_text())
    (tmp_path / "aot_tune" / "base.h").write_text(text)
    argv = ["gcc", f"-I{tmp_path}", f"-I{built.library.parent}", "-fsyntax-only", "-x", "c", "-"]
    done = subprocess.run(argv, input="#include <aot_tune/ops.h>\n", capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"aot_tune/ops.h is for version {ABI_VERSION} of aot_tune/base.h: put its own library first" in done.stderr


def test_functions_are_those_of_the_abi() -> None:
    """A program that was linked with libaot_tune_ops.so of this ABI goes on: what it calls has the same arguments.

    Where this fails for good reason, count AOT_TUNE_ABI_VERSION up, and run once more with UPDATE_GOLDEN=1.
    """
    lines = []
    for name, operator in sorted(OPERATORS.items()):
        lines.append(f"{name}({', '.join(parameters(operator))})")
        lines += [f"{name}.{a.name}: {' '.join(a.choices)}" for a in operator.attributes]
    golden = GOLDEN / f"abi_{ABI_VERSION}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        golden.write_text("\n".join(lines) + "\n")
    assert [line for line in golden.read_text().splitlines() if not any(have.startswith(line) for have in lines)] == []
