"""Triton candidates with hand-written images, for tests of launchers: rendered, compiled and called without a GPU."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from places import SHARED
from small_operators import make_operator

from aot_tune.compile.cxx import CxxToolchain
from aot_tune.compile.triton_toolchain import LAUNCHER, functions_of, host_flags, image_name, kernel_header
from aot_tune.render import Candidate, Rendered, Renderer
from aot_tune.spec import (
    ConfigValue,
    Declarations,
    Kernel,
    KernelParameter,
    Operator,
    Target,
    Tensor,
    TritonFunction,
    dims,
    problem,
)
from aot_tune.triton.triton_messages import Image

SM_90A = Target(name="cuda-sm_90a", family="cuda", level=90, last=90, facts={"shared_bytes": 232448})
M, N = dims("M N")

IMAGE = Image(
    name="scale_kernel",
    warps=4,
    warp_size=32,
    ctas=1,
    shared=1024,
    global_scratch=0,
    global_scratch_alignment=1,
    profile_scratch=0,
    profile_scratch_alignment=1,
    cooperative=False,
    pdl=False,
    tma=False,
    descriptor_rounding=False,
    descriptors=[],
    size=1,
)


def parameters(text: str) -> tuple[KernelParameter, ...]:
    """`x n:i64 BLOCK!`: a name, perhaps with a type, and `!` behind a constexpr."""
    made = []
    for word in text.split():
        name, _, annotation = word.partition(":")
        made.append(KernelParameter(name=name.rstrip("!"), constexpr=word.endswith("!"), annotation=annotation))
    return tuple(made)


def _reference(_xp: Any, _call: Any) -> dict[str, Any]:
    raise AssertionError("nothing is computed here")


def operator(
    function: TritonFunction,
    declared: Sequence[KernelParameter] | Declarations,
    *then: tuple[TritonFunction, Sequence[KernelParameter]],
    target: Target = SM_90A,
    tensors: Sequence[Tensor] = (Tensor("x", (M, N)), Tensor("out", (M, N), output=True)),
    kernel: Mapping[str, Any] | None = None,
    **more: Any,
) -> Operator:
    """An operator with one Triton kernel of a function, or several, read for a target, and a generic one."""
    inspected = []
    for each, said in ((function, declared), *then):
        inspection = said if isinstance(said, Declarations) else Declarations(parameters=tuple(said))
        known = msgspec.structs.replace(inspection, digest=inspection.digest or "d" * 64)
        inspected.append(each.inspected({target.name: known}))
    kernels = (
        Kernel("generic", "scale/generic.cu.j2", generic=True, backend="nvcc"),
        Kernel("triton", backend="triton", triton=tuple(inspected), **(kernel or {})),
    )
    extents = " ".join(more.pop("dims", ("M", "N")))
    given = {"reference": _reference, "tensors": tuple(tensors), "kernels": kernels, "workload": (problem(M=4, N=8),)}
    return make_operator(extents=extents, **{**given, **more})


def rendered(
    op: Operator,
    *,
    config: Mapping[str, ConfigValue] | None = None,
    pins: Mapping[str, int] | None = None,
    dtypes: Mapping[str, str] | None = None,
    target: Target = SM_90A,
) -> Rendered:
    """The candidate of the operator's Triton kernel with a config and pins."""
    candidate = Candidate(
        operator=op.name,
        kernel="triton",
        backend="triton",
        target=target.name,
        config=dict(config or {}),
        pins=dict(pins or {}),
        dtypes=dict(dtypes or {v: c[0] for v, c in op.dtypes.items()}),
    )
    return Renderer([]).render(op, candidate, target)


def compiled(
    folder: Path,
    source: Rendered,
    sizes: Sequence[int],
    image: Image = IMAGE,
    text: str = "",
    then: Sequence[Image] = (),
) -> Path:
    """The candidate's shared library; an image lists the bytes of each parameter, as the stand-in wants it.

    `then` are those of more functions, with as many parameters.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number, each in enumerate((image, *then)):
        (folder / image_name(number)).write_text(text or " ".join([each.name, *map(str, sizes)]))
    (folder / "kernel.h").write_text(kernel_header([image, *then]))
    (folder / "candidate.cpp").write_text(source.source)
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wshadow", "-Wno-sign-conversion"]
    flags = [*host_flags(), *warnings, "-I.", f"-I{LAUNCHER}"]
    run = [shutil.which("g++") or "g++", *flags, "-c", "candidate.cpp", "-o", "candidate.o"]
    done = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return linked([folder / "candidate.o"], folder / "candidate.so")


def linked(objects: Sequence[Path], library: Path) -> Path:
    """Candidates in a shared library, with what their launchers call."""
    called = functions_of(objects, CxxToolchain().host(), os.environ)
    files = [str(p) for p in (*objects, *called)]
    link = ["g++", "-shared", *files, "-o", str(library), "-ldl", "-lpthread", "-Wl,-z,defs"]
    subprocess.run(link, check=True)
    return library


def call(
    library: Path, symbol: str, calls: Sequence[Mapping[str, Any]], driver: Path | None, **environment: str
) -> list[dict[str, Any]]:
    """What the calls come to in a process of its own; see `triton_calls`."""
    env = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "AOT_TUNE_KERNEL_DIR")}
    env |= {"LD_LIBRARY_PATH": str(driver or ""), **environment}
    given = {"library": str(library), "symbol": symbol, "calls": list(calls), "driver": driver is not None}
    done = subprocess.run(
        [sys.executable, str(SHARED / "triton_calls.py")],
        input=json.dumps(given), capture_output=True, text=True, check=False, env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    for answer in answers:
        answer["stderr"] = done.stderr
    return answers


def passed(answer: Mapping[str, Any]) -> list[bytes]:
    """The bytes of each parameter of a launch."""
    assert answer["launch"] == 0, answer
    return [bytes.fromhex(line.removeprefix("parameter ")) for line in answer["log"] if line.startswith("parameter")]
