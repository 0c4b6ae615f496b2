"""Runs and compiles the kernels of examples/from_packages: `triton_packages.py interpret|compile`, one JSON line.

`interpret`, which needs TRITON_INTERPRET=1, calls them in Triton's interpreter: each argument is what the launcher
would pass, by the mapping and what was read of the function; results are held against the reference in float64.
`compile` goes the build's way to objects, for an operator of each package.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from places import ROOT
from triton.runtime import interpreter

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.inputs import draw
from aot_tune.compile import target_by_name, toolchain_for
from aot_tune.compile.toolchain import generic_targets
from aot_tune.render import Renderer, candidate_for, candidates_for, requirements
from aot_tune.render.triton.binding import bind, resolved
from aot_tune.spec import Expr, Kernel, Operator, Problem, Target, all_of, problem
from aot_tune.spec.load_operators import load_operator
from aot_tune.triton.client import ROOTS
from aot_tune.triton.load_function import load
from aot_tune.triton.read_declarations import read_functions, with_declarations

TEMPLATES = ROOT / "examples" / "from_packages" / "templates"
TARGET = "cuda-sm_90a"
COMPILED = ("chunk_cumsum", "rms_norm", "scaled_int8_mm")
"""An operator of each package: compiling is what takes long."""
UNITS = {"f32": 2.0**-20, "f16": 2.0**-8}

HEADS = {"B": 2, "S": 3, "HQ": 3, "HK": 1, "D": 20}
PROBLEMS: dict[str, list[Problem]] = {
    "rms_norm": [
        *(problem(R=r, D=d) for r, d in ((1, 1), (3, 100), (5, 257))),
        problem(R=3, D=40, strides={"x": (48, 1), "out": (48, 1)}),
    ],
    "rope": [
        problem(**HEADS),
        problem(**HEADS, strides={"q": (660, 220, 20, 1), "k": (93, 31, 20, 1), "cos": (24, 1)}),
    ],
    "causal_conv": [
        problem(B=2, T=20, D=40, W=4),
        problem(B=1, T=5, D=17, W=3, strides={"x": (500, 40, 2)}),
        problem(B=2, T=3, D=20, W=4, strides={"y": (97, 31, 1), "weight": (1, 20), "bias": (3,)}),
    ],
    "chunk_cumsum": [
        problem(B=1, T=64, H=1, S=16),
        problem(B=2, T=70, H=2, S=8, strides={"s": (5000, 64, 30, 2)}),
    ],
    "scaled_int8_mm": [
        problem(M=3, N=40, K=64),
        problem(M=5, N=130, K=128, strides={"a": (300, 2), "out": (1, 5)}),
    ],
}
"""Operators of each package that CI fetches, fla, liger-kernel and torchao: on odd extents, and strides."""


class Interpreted:
    """One call, on tensors of the host."""

    def __init__(self, op: Operator, kernel: Kernel, config: dict[str, Any], given: Problem, target: str) -> None:
        self.op, self.kernel, self.config, self.problem = op.concrete(given.dtypes), kernel, config, given
        self.target = target
        self.facts = {**op.facts(given), **{f"parameter.{n}": int(v) for n, v in config.items()}}
        self.tensors = {t.name: self._make(t) for t in self.op.tensors if op.is_present(given, t)}
        self.before = {t.name: self.tensors[t.name].clone() for t in self.op.inputs if t.name in self.tensors}

    def _make(self, tensor: Any) -> Any:
        shape, strides = self.op.shape(self.problem, tensor), self.op.strides(self.problem, tensor)
        count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        drawn = draw(self.op, Check(problem=self.problem), tensor, count, 7)
        made = torch.from_numpy(drawn).to(getattr(torch, tensor.dtype.torch)).as_strided(shape, strides)
        return made.fill_(math.nan) if tensor.output else made

    def value(self, given: Any) -> Any:
        return given.evaluate(self.facts) if isinstance(given, Expr) else given

    def arguments(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for a in bind(self.op, self.kernel, self.target):
            if a.kind == "pointer":
                found[a.name] = self.tensors.get(a.tensor)
            elif a.kind == "integer":
                found[a.name] = self.value(a.expr)
            elif a.buffer is not None:
                found[a.name] = torch.full((self.value(a.buffer.count),), math.nan, dtype=torch.float32)
            elif a.kind == "scalar":
                found[a.name] = next(s.default for s in self.op.scalars if s.name == a.value)
            else:
                found[a.name] = self.config[a.name] if a.kind == "parameter" else a.value
        return found

    def run(self, function: Any) -> str:
        """Call the function; what is wrong then."""
        assert self.kernel.triton is not None
        arguments = self.arguments()
        grid = self.kernel.triton.grid
        extents = grid({**arguments, **self.config}) if callable(grid) else grid
        function[tuple(self.value(e) for e in extents)](**arguments)
        for name, held in self.before.items():
            if not self.op.tensor(name).written and not torch.equal(held, self.tensors[name]):
                return f"{self.problem.id}: input {name} was changed"
        return self.fault()

    def fault(self) -> str:
        def wide(tensor: Any) -> Any:
            return tensor.to(torch.float64).numpy() if tensor.dtype.is_floating_point else tensor.numpy()

        call = {t.name: None for t in self.op.tensors} | {n: wide(t) for n, t in self.before.items()}
        wanted = self.op.reference(np, SimpleNamespace(**call, **{s.name: s.default for s in self.op.scalars}))
        unit = UNITS[next(iter({**{v: c[0] for v, c in self.op.dtypes.items()}, **self.problem.dtypes}.values()))]
        for tensor in self.op.outputs:
            got, want = wide(self.tensors[tensor.name]), wanted[tensor.name]
            allowed = unit * (np.abs(want) + np.sqrt(np.mean(np.square(want))))
            wrong = ~(np.abs(got - want) <= allowed)
            if wrong.any():
                place = tuple(int(i) for i in np.argwhere(wrong)[0])
                off = f"got {got[place]:g}, want {want[place]:g}; {wrong.sum()} are wrong"
                return f"{self.problem.id} {self.config}: {tensor.name}{place}: {off}"
        return ""


def function_of(reference: str) -> Any:
    """The function without its decorators, as the interpreter runs it."""
    found: Any = load(reference, [str(TEMPLATES)])
    while not isinstance(found, interpreter.InterpretedFunction):
        found = found.fn
    return found


@triton.jit
def _rsqrt(x):  # type: ignore[no-untyped-def]
    return tl.rsqrt(x)


def bridge() -> None:
    """What the interpreter lacks: a Python float is passed as the JIT passes it, and one function of libdevice.

    That of Triton 3.6 also lacks bounds of loops that are no constants, with newer versions of numpy.
    """
    passed, patch = interpreter._implicit_cvt, interpreter._patch_lang_tensor

    def with_index(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = with_index

    def convert(value: Any) -> Any:
        if not isinstance(value, float):
            return passed(value)
        return tl.tensor(interpreter.TensorHandle(np.array([value], np.float32), tl.float32), tl.float32)

    interpreter._implicit_cvt = convert
    importlib.import_module("liger_kernel.ops.rms_norm").rsqrt = _rsqrt


def own_kernels(op: Operator) -> tuple[Kernel, ...]:
    """The kernels without those of xformers, which a GPU's tests run."""
    return tuple(k for k in op.kernels if k.triton is None or not k.triton.function.startswith("xformers."))


Operators = dict[str, Operator]


def read_operators(target: str, names: Sequence[str]) -> Operators:
    """Operators with what their functions declare for a target and for the generic kernels' one."""
    loaded = [load_operator(TEMPLATES / name) for name in names]
    declared = {op.name: dataclasses.replace(op, kernels=own_kernels(op)) for op in loaded}
    wanted = [target_by_name(target)]
    generic = [t for t in generic_targets(wanted) if t.family == wanted[0].family]
    read, missing = read_functions(declared, wanted, generic, [TEMPLATES], os.environ)
    assert not missing, missing
    return {name: with_declarations(op, read, [wanted[0].family]) for name, op in declared.items()}


def functions(operators: Operators, target: str) -> Iterator[tuple[Operator, Kernel, Target]]:
    """Triton kernels with the configs of their functions, and the target of each."""
    wanted = target_by_name(target)
    generic = next(t for t in generic_targets([wanted]) if t.family == wanted.family)
    for op in operators.values():
        for kernel in op.kernels:
            if kernel.triton is not None:
                chosen = generic if kernel.generic else wanted
                whole = resolved(kernel, chosen.name)
                kernels = tuple(whole if k.name == kernel.name else k for k in op.kernels)
                yield dataclasses.replace(op, kernels=kernels), whole, chosen


def interpret() -> dict[str, Any]:
    """What came of each kernel on all problems that it is for, with configs and dtypes in turn.

    Not in bf16, which the interpreter multiplies as if the bits were integers.
    """
    bridge()
    found: dict[str, Any] = {}
    for op, kernel, target in functions(read_operators(TARGET, list(PROBLEMS)), TARGET):
        assert kernel.triton is not None
        function, configs = function_of(kernel.triton.function), list(kernel.configs(target.facts))
        told = found[f"{op.name}/{kernel.name}"] = {"calls": 0, "faults": []}
        choices = [dtypes for dtypes in op.dtype_choices(kernel) if "bf16" not in dtypes.values()]
        for number, one in enumerate(PROBLEMS[op.name] if choices else ()):
            dtypes, config = choices[number % len(choices)], configs[-(number // len(choices) % 2)]
            strides = {t: s for t, s in one.strides.items() if t in {u.name for u in op.tensors}}
            given = Problem(dims=one.dims, strides=strides, present=one.present, dtypes=dtypes)
            candidate = candidate_for(op, kernel, config, target, None if kernel.generic else given, dtypes)
            if all_of((*op.legal, *requirements(op, candidate)), op.facts(given)):
                told["calls"] += 1
                fault = Interpreted(op, kernel, config, given, target.name).run(function)
                told["faults"] += [fault] if fault else []
    return found


def build() -> dict[str, Any]:
    """Of each tuned kernel the configs, and what compiling a candidate of the first came to; of AMD's the configs."""
    os.environ[ROOTS] = str(TEMPLATES)
    chain, found = toolchain_for("triton"), dict[str, Any]()
    for name, operators in ((TARGET, COMPILED), ("hip-gfx942", COMPILED[:1])):
        for op, kernel, target in functions(read_operators(name, operators), name):
            if kernel.generic:
                continue
            configs = list(kernel.configs(target.facts))
            told = found[f"{op.name}/{kernel.name} {name}"] = {"configs": configs, "outcome": ""}
            if name == TARGET:
                made = next(candidates_for(op, kernel, configs[0], target))
                source = Renderer([TEMPLATES]).render(op, made, target).source
                with tempfile.TemporaryDirectory() as folder:
                    outcome = chain.compile(source, target, Path(folder, "candidate.o"), 300.0)
                told["outcome"] = f"{outcome.status} {outcome.log[-300:]}".strip()
    return found


if __name__ == "__main__":
    print(json.dumps({"interpret": interpret, "compile": build}[sys.argv[1]]()))
