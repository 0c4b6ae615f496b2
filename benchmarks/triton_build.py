"""Single candidates of Triton kernels: read, rendered, compiled and linked as in a build, and called from C++."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jit_calls import JitCall
from native import compile_library

from aot_tune.compile import Toolchain, target_by_name, toolchain_for
from aot_tune.compile.toolchain import generic_targets
from aot_tune.render import Candidate, Renderer, candidates_for
from aot_tune.render.triton.binding import resolved
from aot_tune.render.triton.recipe import Recipe, read_recipe
from aot_tune.spec import Config, Kernel, Operator, Problem
from aot_tune.spec.load_operators import load_operator
from aot_tune.triton.read_declarations import read_functions, with_declarations

__all__ = ["EXAMPLE", "Built", "Prober", "build", "read_operator", "source_of"]

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "triton_package" / "templates"


@dataclasses.dataclass(frozen=True)
class Built:
    """A candidate on one problem. Its operator is concrete and has only that problem.

    `constants` and `kernel_name` are those of kernel.h, `image` is the file of the cubin, `library` the linked
    launcher.
    """

    operator: Operator
    kernel: Kernel
    candidate: Candidate
    recipe: Recipe
    problem: Problem
    symbol: str
    kernel_name: str
    constants: Mapping[str, int]
    image: Path
    library: Path

    @property
    def call(self) -> JitCall:
        """The same call by the JIT."""
        return JitCall(self.operator, self.kernel, self.candidate.config, self.candidate.target, self.problem)

    def arguments(self, tensors: Mapping[str, Any], multiprocessors: int = 1) -> dict[str, Any]:
        """What the JIT gets for the same call, by parameter. Launch options are not part of it."""
        return self.call.arguments(tensors, multiprocessors)

    def grid(self, arguments: Mapping[str, Any], multiprocessors: int = 1) -> tuple[int, int, int]:
        """Blocks along each axis."""
        return self.call.grid(arguments, multiprocessors)

    def slots(self, arguments: Mapping[str, Any]) -> list[int]:
        """The bits of each parameter of the kernel, for a bare launch."""
        found = []
        for name, kind in self.recipe.signature.items():
            value = arguments[name]
            if kind.startswith("*"):
                found.append(int(value.data_ptr()))
            elif kind == "fp32":
                found.append(struct.unpack("<I", struct.pack("<f", value))[0])
            elif kind != "constexpr":
                found.append(int(value) & 0xFFFFFFFFFFFFFFFF)
        return [*found, 0, 0]  # kernels that are launched bare have no scratch memory


def read_operator(root: Path, name: str, target: str) -> Operator:
    """An operator of a template root, with its functions' declarations for a target.

    Raises:
        SystemExit: without Triton.
    """
    os.environ["AOT_TUNE_TEMPLATE_ROOTS"] = str(root)
    wanted = [target_by_name(target)]
    generic = [t for t in generic_targets(wanted) if t.family == wanted[0].family]
    declared = load_operator(root / name)
    read, missing = read_functions({name: declared}, wanted, generic, [root], os.environ)
    if missing:
        raise SystemExit(f"benchmarks: {missing}")
    return with_declarations(declared, read, [wanted[0].family])


def source_of(root: Path, operator: Operator, kernel: str, config: Config | None, problem: Problem, target: str) -> Any:
    """The rendered candidate that is specialised on a problem, its kernel and operator. None is the first config."""
    whole = resolved(operator.kernel(kernel), target)
    facts = target_by_name(target).facts
    chosen = dict(config) if config is not None else next(whole.configs(facts))
    kernels = tuple(whole if k.name == kernel else k for k in operator.kernels)
    alone = dataclasses.replace(operator, kernels=kernels, workload=(problem,))
    candidate = next(candidates_for(alone, whole, chosen, target_by_name(target)))
    return Renderer([root]).render(alone, candidate, target_by_name(target)), whole, alone


def build(
    root: Path,
    operator: Operator,
    kernel: str,
    problem: Problem,
    target: str,
    folder: Path,
    config: Config | None = None,
) -> Built:
    """Compile and link one candidate in a folder of its own.

    Raises:
        SystemExit: with the compiler's message.
    """
    rendered, whole, alone = source_of(root, operator, kernel, config, problem, target)
    chain: Toolchain = toolchain_for("triton")
    folder.mkdir(parents=True)
    outcome = chain.compile(rendered.source, target_by_name(target), folder / "candidate.o", 300.0)
    if outcome.status != "ok":
        raise SystemExit(f"benchmarks: {rendered.candidate.label}: {outcome.status}: {outcome.log[-1000:]}")
    chain.link_shared([folder / "candidate.o"], folder / "candidate.so")
    header = (folder / "kernel.h").read_text()
    return Built(
        operator=alone.concrete(rendered.candidate.dtypes),
        kernel=whole,
        candidate=rendered.candidate,
        recipe=read_recipe(rendered.source),
        problem=problem,
        symbol=rendered.symbol,
        kernel_name=re.findall(r'\bname\[\] = "([^"]+)"', header)[0],
        constants={n: int(v) for n, v in re.findall(r"\b(warps|warp_size|shared|ctas|global_scratch) = (\d+)", header)},
        image=folder / "kernel.bin",
        library=folder / "candidate.so",
    )


_PROBE = """\
// Loops of calls of one operator, without anything of Python between them.
#include <dlfcn.h>
#include <time.h>

#include <cstddef>
#include <cstdint>

struct Tensor {{
  char* data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
}};
struct Execution {{
  void *stream, *workspace;
  size_t workspace_size;
}};

static double now_ns() {{
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}}

// ns of a call, the mean of `count`; -1 when one fails.
template <typename Call>
static double time_calls(int64_t count, Call call) {{
  int32_t failed = 0;
  const double begin = now_ns();
  for (int64_t i = 0; i < count; ++i) failed |= call();
  const double spent = now_ns() - begin;
  return failed != 0 ? -1 : spent / static_cast<double>(count);
}}

extern "C" double probe_launcher(void* function, Tensor** t, const double* s, const int32_t* a, void* workspace,
                                 size_t size, void* stream, int64_t count, int64_t step, int64_t* at, int64_t steps) {{
  (void)s, (void)a;
  const auto launch = reinterpret_cast<int32_t (*)({types}, void*, size_t, void*)>(function);
  char* const first = t[0]->data;
  const double spent = time_calls(count, [&] {{
    t[0]->data = first + *at % steps * step;  // step is 0 where the same tensors are passed again
    ++*at;
    return launch({values}, workspace, size, stream);
  }});
  t[0]->data = first;
  return spent;
}}

extern "C" double probe_library(void* function, Tensor** t, const double* s, const int32_t* a, void* stream,
                                int64_t count) {{
  (void)s, (void)a;
  const auto call = reinterpret_cast<int32_t (*)({types}, const Execution*)>(function);
  const Execution execution = {{stream, nullptr, 0}};
  return time_calls(count, [&] {{ return call({values}, &execution); }});
}}

extern "C" int32_t probe_workspace(void* function, Tensor** t, const double* s, const int32_t* a, size_t* size) {{
  (void)s, (void)a;
  return reinterpret_cast<int32_t (*)({types}, size_t*)>(function)({values}, size);
}}

extern "C" double probe_bare(void* function, const unsigned* grid, unsigned threads, unsigned shared,
                             const uint64_t* slots, int32_t used, void* stream, int64_t count) {{
  using Launch = int32_t (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                             void**);
  static const auto launch =
      reinterpret_cast<Launch>(dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), "cuLaunchKernel"));
  return time_calls(count, [&] {{
    void* parameters[64];  // a caller fills in what it passes at each call
    for (int32_t i = 0; i < used; ++i) parameters[i] = const_cast<uint64_t*>(slots + i);
    return launch(function, grid[0], grid[1], grid[2], threads, 1, 1, shared, stream, parameters, nullptr);
  }});
}}
"""

_SCALARS = {"f32": "float", "f64": "double", "i32": "int32_t", "i64": "int64_t"}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Prober:
    """Times calls of an operator on given tensors, in C++ loops that are compiled here."""

    def __init__(self, operator: Operator, problem: Problem, tensors: Mapping[str, Any], folder: Path) -> None:
        self.operator = operator
        folder.mkdir(parents=True, exist_ok=True)
        self._library = ctypes.CDLL(str(compile_library(folder / "probe.cpp", self._text(), folder / "probe.so")))
        for name in ("probe_launcher", "probe_library", "probe_bare"):
            getattr(self._library, name).restype = ctypes.c_double
        self._views = [self._view(t.name, tensors.get(t.name)) for t in operator.tensors]
        pointers = [ctypes.addressof(v) if v is not None else None for v in self._views]
        indices = [a.choices.index(problem.attributes.get(a.name, a.choices[0])) for a in operator.attributes]
        self._given = (
            (ctypes.c_void_p * len(pointers))(*pointers),
            (ctypes.c_double * max(len(operator.scalars), 1))(*(float(s.default) for s in operator.scalars)),
            (ctypes.c_int32 * max(len(indices), 1))(*indices),
        )
        self._at = ctypes.c_int64(0)

    def _text(self) -> str:
        op = self.operator
        types = ["const Tensor*"] * len(op.tensors) + [_SCALARS[s.dtype_name] for s in op.scalars]
        values = [f"t[{i}]" for i in range(len(op.tensors))]
        values += [f"static_cast<{_SCALARS[s.dtype_name]}>(s[{i}])" for i, s in enumerate(op.scalars)]
        types += ["int32_t"] * len(op.attributes)
        values += [f"a[{i}]" for i in range(len(op.attributes))]
        return _PROBE.format(types=", ".join(types), values=", ".join(values))

    def _view(self, name: str, tensor: Any) -> _Tensor | None:
        if tensor is None:
            return None
        kind, rank = self.operator.tensor(name).dtype, tensor.dim()
        shape, strides = (ctypes.c_int64 * rank)(*tensor.shape), (ctypes.c_int64 * rank)(*tensor.stride())
        device = 2 if tensor.is_cuda else 1
        return _Tensor(tensor.data_ptr(), device, 0, rank, kind.code, kind.bits, 1, shape, strides, 0)

    def workspace(self, function: Any) -> int:
        """Bytes that a variant's or an operator's `workspace` function asks for."""
        size = ctypes.c_size_t(0)
        status = self._library.probe_workspace(_address(function), *self._given, ctypes.byref(size))
        if status != 0:
            raise RuntimeError(f"a workspace function fails with {status}")
        return size.value

    def launcher(
        self, function: Any, stream: int, count: int, workspace: Any = None, step: int = 0, steps: int = 1
    ) -> float:
        """ns per call of a candidate's `launch`. With `step`, the first tensor differs at each call."""
        memory = ctypes.c_void_p(workspace.data_ptr() if workspace is not None else None)
        size = ctypes.c_size_t(workspace.numel() if workspace is not None else 0)
        more = (ctypes.c_void_p(stream), ctypes.c_int64(count), ctypes.c_int64(step), ctypes.byref(self._at))
        found = self._library.probe_launcher(
            _address(function), *self._given, memory, size, *more, ctypes.c_int64(steps)
        )
        return _checked(found)

    def library(self, function: Any, stream: int, count: int) -> float:
        """ns per call of a library's C function."""
        given = (ctypes.c_void_p(stream), ctypes.c_int64(count))
        return _checked(self._library.probe_library(_address(function), *self._given, *given))

    def bare(self, function: int, built: Built, arguments: Mapping[str, Any], stream: int, count: int) -> float:
        """ns per cuLaunchKernel of the candidate's kernel, with the parameters of the same call."""
        slots, grid = built.slots(arguments), built.grid(arguments)
        threads = built.constants["warps"] * built.constants["warp_size"]
        found = self._library.probe_bare(
            ctypes.c_void_p(function),
            (ctypes.c_uint * 3)(*grid),
            ctypes.c_uint(threads),
            ctypes.c_uint(built.constants["shared"]),
            (ctypes.c_uint64 * len(slots))(*slots),
            ctypes.c_int32(len(slots)),
            ctypes.c_void_p(stream),
            ctypes.c_int64(count),
        )
        return _checked(found)


def _address(function: Any) -> ctypes.c_void_p:
    return ctypes.cast(function, ctypes.c_void_p)


def _checked(found: float) -> float:
    if found < 0 or math.isnan(found):
        raise RuntimeError("a call fails")
    return found
