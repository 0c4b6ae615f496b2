"""A project of one operator whose candidates fail in the ways that a test wants."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aot_tune.plan.library_plan import Request, make_plan, write_plan

OPERATOR = """
from aot_tune.spec import Buffer, Kernel, Operator, Parameter, Tensor, TritonFunction, ceildiv, dims, parameter
from aot_tune.spec import problem, target

(N,) = dims("N")
K = Parameter("K", (1, 2, 3))
grid = (ceildiv(N, 16),)
PARTS = Buffer("f32", N)
operator = Operator(
    name="twice", dims=("N",), tensors=(Tensor("x", (N,)), Tensor("y", (N,), output=True)), flops=N,
    reference=lambda xp, call: {"y": 2.0 * call.x}, workload=(problem(N=64),),
    kernels=(Kernel("generic", "twice/generic.cpp.j2", generic=True), KERNELS))
"""
GENERIC = """{{ prelude() }}
{{ no_workspace() }}
{{ kernel_signature("launch") }} {
  for (int64_t i = 0; i < {{ size("x", 0) }}; ++i) {{ store("y", ["i"], "2 * " ~ load("x", ["i"])) }}
  return 0;
}
"""
SOME_FAIL = GENERIC.replace(
    "  return 0;",
    """{% if K == 2 %}
  return "no number";
{% elif K == 3 %}
  {{ nothing_of_that_name }}
{% endif %}
  return 0;""",
)
FUNCTIONS = """
import triton
import triton.language as tl


@triton.jit
def right(x, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, at < N), at < N)


@triton.jit
def moved(x, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < N), at < N)


@triton.jit
def wrong(x, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 3 * tl.load(x + at, at < N), at < N)


@triton.jit
def past_the_end(x, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at))


@triton.jit
def assembly(x, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.inline_asm_elementwise("add.f32 $0, $1, $1;", "=r,r", [tl.load(x + at)], tl.float32, True, 1)
    tl.store(y + at, value, at < N)
"""


def project(tmp_path: Path, kernels: str, **files: str) -> Path:
    """A project of one operator; the folder of its templates."""
    folder = tmp_path / "templates" / "twice"
    folder.mkdir(parents=True)
    (folder / "operator.py").write_text(OPERATOR.replace("KERNELS", kernels))
    for name, text in {"generic": GENERIC, **files}.items():
        (folder / f"{name}.cpp.j2").write_text(text)
    (folder.parent / "functions.py").write_text(FUNCTIONS)
    return folder.parent


def planned(
    templates: Path, folder: Path, name: str = "ops", operators: Sequence[str] = ("twice",), **given: Any
) -> Path:
    """Plan a library into a folder: its options, the cache beside its templates, and what else is asked of it.

    Returns:
        The folder.
    """
    database = given.pop("database", "")
    options = {
        "AOT_TUNE_CACHE_DIR": str(templates.parent / "cache"),
        "AOT_TUNE_OPERATORS": ";".join(operators),
        **given,
    }
    asked = {"name": name, "database": database, "options": options}
    request = Request(prefix="mine", header="mine.h", templates=(str(templates),), **asked)
    write_plan(folder, *make_plan(request, os.environ))
    return folder
