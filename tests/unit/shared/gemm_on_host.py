"""Renders gemm and batched_gemm for CUDA and runs them on the host, for tests."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from bundled import OPERATORS as BUNDLED
from places import SHARED
from precompiled import include

from aot_tune.compile.cuda.gpu_targets import TARGETS
from aot_tune.render import Rendered, Renderer, candidate_for
from aot_tune.spec import Config, Kernel, Operator, Target
from aot_tune.spec.load_operators import bundled_templates

HOST = SHARED / "cuda_on_host"
ELEMENTS = {"f32": "float", "bf16": "__nv_bfloat16", "f16": "__half"}
TEMPLATES = bundled_templates()
OPERATORS = {name: BUNDLED[name] for name in ("gemm", "batched_gemm")}
TARGET = {t.name: t for t in TARGETS}
HOPPER, BLACKWELL = TARGET["cuda-sm_90a"], TARGET["cuda-sm_100"]


def config_like(kernel: Kernel, target: Target, wanted: Config) -> dict[str, int | bool | str]:
    """The first config of a kernel that has the wanted values.

    Hopper runs all configs of Blackwell, but a build for it tries few of them.
    """
    others = kernel.configs(BLACKWELL.facts) if target is HOPPER else ()
    return next(c for c in (*kernel.configs(target.facts), *others) if all(c[n] == v for n, v in wanted.items()))


def render(op: Operator, kernel: Kernel, target: Target, wanted: Config, dtype: str = "") -> Rendered:
    """The first config of a kernel that has the wanted values, as source."""
    config = config_like(kernel, target, wanted)
    dtypes = {"T": dtype} if dtype else None
    return Renderer([TEMPLATES]).render(op, candidate_for(op, kernel, config, target, None, dtypes), target)


def build_for_host(
    folder: Path, rendered: Rendered, change: Callable[[str], str] = lambda s: s, check: str = "check_gemm.cpp"
) -> Path:
    """Compile a rendered kernel and its check with the host's compiler; `change` alters the source first.

    Without a `check`, the altered source has one.
    """
    source = re.sub(
        r"extern __shared__ __align__\(\d+\) unsigned char (\w+)\[\];",
        r"unsigned char* const \1 = host::shared_memory();",
        change(rendered.source),
    )
    (folder / "check.cpp").write_text(source + ((HOST / check).read_text() if check else ""))
    names = {"LAUNCH": f"{rendered.symbol}_launch", "WORKSPACE": f"{rendered.symbol}_workspace"}
    names |= {"ELEMENT": ELEMENTS[rendered.candidate.dtypes["T"]]}
    names |= {"BATCHED": str(int(rendered.candidate.operator == "batched_gemm"))}
    defines = [f"-D{k}={v}" for k, v in names.items()]
    flags = include(folder.parent, HOST / "matrix.h", ["-std=c++17", "-O1", "-w", "-I", str(HOST)])
    command = ["g++", *flags, *defines, "check.cpp", "-o", "check"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "check"


def run_check(
    program: Path,
    batch: int,
    shape: tuple[int, int, int],
    strides: tuple[int, ...],
    epilogue: bool,
    multiprocessors: int = 132,
    haste: bool = False,
) -> str:
    """What the check printed; strides are of a, b and out. Empty when every element was right.

    With `haste` copies happen at once and warps run ahead of each other, else copies as late as they may.
    """
    numbers = [batch, *shape, *strides, *([int(epilogue)] * 3)]
    done = subprocess.run(
        [str(program), *map(str, numbers)],
        env=os.environ | {"MULTIPROCESSORS": str(multiprocessors)} | ({"HASTE": "1"} if haste else {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr + f"exit {done.returncode}"


def by_columns(m: int, n: int, k: int) -> tuple[int, ...]:
    """Strides with K contiguous in both factors, and padded."""
    del m
    row = -(-k // 8) * 8 + 8
    return (row, 1, 1, row, n + 1, 1)


def by_rows(m: int, n: int, k: int) -> tuple[int, ...]:
    """Strides with a and b stored by rows, out by columns."""
    return (-(-k // 8) * 8, 1, -(-n // 8) * 8, 1, 1, m)


def stages_of(source: Rendered) -> int:
    (found,) = re.findall(r"constexpr int STAGES = (\d+);", source.source)
    return int(found)
