"""What callers can get wrong in silence, in programs that use a linked library: FAULTS.md, rows 67 to 71."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from environments import ROOT, run
from project import Project

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The tiny project's library and Python module `ops`, whose operator is `twice`."""
    made = Project.make(tmp_path_factory.mktemp("calls") / "project", arguments="MODULE ops", AOT_TUNE_MODE="generic")
    made.cmake()
    made.make_all()
    return made


def call(project: Project, code: str, status: int = 0, **env: str) -> str:
    """What a program prints that imports the module."""
    where = {**project.env, "PYTHONPATH": str(project.folder / "cmake"), **env}
    return run([sys.executable, "-c", code], env=project.environment(**where), status=status)


def test_row_67_an_output_that_autograd_kept_is_told(project: Project) -> None:
    said = call(
        project,
        """
import ops, torch
factor, kept = torch.ones(4, requires_grad=True), torch.ones(4)
total = (factor * kept).sum()
ops.twice(torch.ones(4), y=kept)
total.backward()
""",
        status=1,
    )
    assert "modified by an inplace operation" in said


def test_row_68_an_array_that_nobody_may_write_is_no_output(project: Project) -> None:
    """As JAX's arrays, which come by capsules without a version and are immutable."""
    said = call(
        project,
        """
import ops, torch
from torch.utils.dlpack import to_dlpack
class Immutable:
    def __init__(self): self.kept = torch.zeros(4)
    def __dlpack_device__(self): return (1, 0)
    def __dlpack__(self, stream=None): return to_dlpack(self.kept)
given = Immutable()
print(ops.twice(given))
try:
    ops.twice(torch.ones(4), y=given)
finally:
    print("untouched", not given.kept.any())
""",
        status=1,
    )
    assert "untouched True" in said
    assert "output 'y' is passed by a DLPack capsule without a version" in said


REFUSED = {
    "with AD.dual_level(): ops.twice(AD.make_dual(x, x))": "'x' carries a forward-mode gradient",
    "torch.jit.trace(lambda given: ops.twice(given), (x,))": "torch traces this call",
    "torch.fx.experimental.proxy_tensor.make_fx(lambda given: ops.twice(given))(x)": "torch traces this call",
    "torch.vmap(ops.twice)(torch.ones(3, 4))": "ops.",
    "torch.func.grad(lambda given: ops.twice(given).sum())(x)": "ops.",
    "torch.func.jvp(ops.twice, (x,), (x,))": "ops.",
}


def test_row_69_derivatives_traces_and_transforms_are_refused(project: Project) -> None:
    program = f"""
import ops, torch, torch.fx.experimental.proxy_tensor
x, AD = torch.ones(4), torch.autograd.forward_ad
for code in {[*REFUSED]!r}:
    try:
        exec(code)
    except ops.Error as error:
        print(">>", f"ops.{{type(error).__name__}}: {{error}}".replace("\\n", " "))
    else:
        print(">> no error")
"""
    told = [line for line in call(project, program).splitlines() if line.startswith(">> ")]
    assert len(told) == len(REFUSED)
    for (code, words), line in zip(REFUSED.items(), told, strict=True):
        assert words in line, code


def test_row_70_a_result_that_is_null_is_an_error_code(project: Project, tmp_path: Path) -> None:
    source, program = tmp_path / "null.c", tmp_path / "null"
    source.write_text("""
#include <stdio.h>
#include "tiny.h"
int main(void) {
  float from[4] = {1, 2, 3, 4}, to[4];
  int64_t shape[1] = {4}, strides[1] = {1};
  DLTensor x = {from, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, strides, 0}, y = x;
  y.data = to;
  printf("%d %d ", tiny_twice_is_tuned(&x, &y, NULL) == AOT_TUNE_ERROR_NULL,
         tiny_twice_workspace(&x, &y, NULL) == AOT_TUNE_ERROR_NULL);
  printf("%s\\n", tiny_last_error());
  return tiny_twice(&x, &y, NULL);
}
""")
    build = project.folder / "cmake"
    folders = [f"-I{build / 'aot_tune' / 'tiny'}", f"-I{ROOT / 'aot_tune' / 'runtime' / 'include'}"]
    run(["gcc", *folders, "-o", program, source, build / "libtiny.so", f"-Wl,-rpath,{build}"])
    said = run([program])
    assert said.startswith("1 1 ")
    assert "NULL" in said


def test_row_71_bad_syntax_is_an_error_of_the_first_call(project: Project) -> None:
    for value in ("twice;loop", "tw*ce"):
        code = "import ops, numpy; ops.twice(numpy.ones(4, 'f4'))"
        said = call(project, code, status=1, AOT_TUNE_FORCE=value)
        assert "AOT_TUNE_FORCE" in said
        assert value in said
