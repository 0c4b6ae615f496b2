"""Fragments as functions of Triton: in its interpreter they give what the reference gives."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import formula_bounds
import msgspec
import numpy as np
import pytest
from formulas import CALLS, FUNCTIONS, FormulaCall, on_batches, operator_of, triton_kernel
from places import SHARED
from triton_installed import EACH_TRITON, ONE_TRITON, ask, chain

from aot_tune.compile import target_by_name
from aot_tune.render import Rendered, Renderer, candidates_for, read_recipe
from aot_tune.render.triton.fragment_source import TritonFragment, fragment_data
from aot_tune.spec import (
    Activate,
    AddTensor,
    Epilogue,
    Formula,
    Fragment,
    Kernel,
    Operator,
    Scalar,
    Target,
    Tensor,
    TritonFunction,
    attribute,
    ceildiv,
    dims,
    fragment,
    problem,
    stride,
    where,
)
from aot_tune.spec import elementwise as el
from aot_tune.support.errors import RenderError, SpecError, ToolchainError
from aot_tune.triton.client import child_environment
from aot_tune.triton.fragment_functions import fragment_function
from aot_tune.triton.read_declarations import requests_of, with_declarations

M, N = dims("M N")


class Interpreter:
    """`triton_formulas.py` in a process of its own."""

    def __init__(self, search: list[str], folder: Path) -> None:
        environ = {**child_environment(os.environ, search, folder), "TRITON_INTERPRET": "1"}
        environ["PYTHONPATH"] = os.pathsep.join([*search, str(SHARED)])
        self._process = subprocess.Popen(
            [sys.executable, str(SHARED / "triton_formulas.py"), str(folder)],
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __call__(self, batch: list[Formula]) -> Any:
        """The results of each formula in each of the calls."""
        op = operator_of(batch)
        return self.run([fragment_data(op, name) for name in op.fragments])

    def run(self, fragments: list[TritonFragment]) -> Any:
        """The same of fragments."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode({"fragments": fragments, "calls": CALLS}) + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


@ONE_TRITON
def test_fragments_give_in_the_interpreter_what_formulas_say(search: list[str], tmp_path: Path) -> None:
    """Random ones, and an epilogue of declared steps."""
    interpreter = Interpreter(search, tmp_path)

    @on_batches(2)
    def holds(batch: list[Formula]) -> None:
        for formula, results in zip(batch, interpreter(batch), strict=True):
            for call, got in zip(CALLS, results, strict=True):
                assert not formula_bounds.off(np.array(got, np.float32), formula, FormulaCall(**call))

    holds()
    op = operator_of([el.value()])
    tensors = tuple(Tensor("out", (M, N), output=True) if t.output else t for t in op.tensors)
    steps = Epilogue("out", (AddTensor("maybe", (1,)), Activate("mode"), AddTensor("rows", (0,))))
    declared = replace(op, tensors=tensors, epilogue=steps, kernels=op.generics)
    (results,) = interpreter.run([fragment_data(declared, "epilogue")])
    x = el.value() + el.element("maybe", "j")
    chosen = el.where(el.choice("mode", "relu"), el.relu(x), el.where(el.choice("mode", "silu"), el.silu(x), x))
    for call, got in zip(CALLS, results, strict=True):
        wrong = formula_bounds.off(np.array(got), chosen + el.element("rows", "i"), FormulaCall(**call))
        assert not wrong
    interpreter.close()


@EACH_TRITON
def test_the_compiler_takes_every_operation(search: list[str], tmp_path: Path) -> None:
    x, i, j = el.value(), el.index("i"), el.index("j")
    total = x
    for name in FUNCTIONS:
        total = total + getattr(el, name)(x) * getattr(el, name)(el.scalar("alpha"))
    total = total + el.cast(el.cast(x, "bf16"), "f16") + el.cast(el.cast(x, "i32") % 3 - i // el.scalar("shift"), "f32")
    total = el.where(el.present("maybe") & ~el.element("flags", "j"), total + el.element("maybe", "j"), -math.inf)
    total = total + el.element("turned", "j", "i") + el.element("table", i - j) + el.maximum(i % 2, abs(j - 3))
    total = el.where(el.choice("mode", "relu") | (el.element("whole", "i", "j") > 2), total, math.nan)
    op = operator_of([total])
    (tmp_path / "kernel.py").write_text(triton_kernel(fragment_data(op, "f0")))
    strides = {f"stride_{t.name}_{a}": stride(t.name, a) for t in op.inputs for a in range(t.rank)}
    passed = {n: e for n, e in strides.items() if n in (tmp_path / "kernel.py").read_text()}
    function = TritonFunction(
        "kernel.py:kernel",
        {**passed, "mode": attribute("mode"), "FRAGMENT": fragment("f0")},
        grid=(ceildiv(M, 16), ceildiv(N, 32)),
    )
    kernel = Kernel("scaled", backend="triton", triton=function, listed=({"BM": 16, "BN": 32},))
    op = replace(op, kernels=(*op.generics, kernel), name="scaled")
    for number, one in enumerate(rendered(search, op, target_by_name("cuda-sm_80"), tmp_path)):
        outcome = chain(search, tmp_path).compile(
            one.source, target_by_name("cuda-sm_80"), tmp_path / f"{number}.o", 300.0
        )
        assert outcome.status == "ok", outcome.log


def scaled(**other: Any) -> Operator:
    """An operator with a Triton function that applies two fragments."""
    x, slope = el.value(), el.element("slopes", "i")
    ours: dict[str, Any] = {
        "epilogue": Epilogue("out", expression=x * el.sigmoid(x) + el.element("bias", 1) * el.scalar("alpha")),
        "fragments": {"score": Fragment({"i": M, "j": N}, x + slope * (el.index("j") - el.index("i")))},
    }
    function = TritonFunction(
        "triton_functions/formulas.py:scaled",
        {
            **{f"stride_{t}_0": stride(t, 0) for t in ("x", "out", "slopes")},
            "score": fragment("score"),
            "epilogue": fragment("epilogue"),
            **other.pop("arguments", {}),
        },
        grid=(ceildiv(M, 16), ceildiv(N, 64)),
    )
    return Operator(
        name="scaled",
        dims=("M", "N"),
        tensors=(
            Tensor("x", (M, N), "T"),
            Tensor("bias", (N,), "T", optional=True),
            Tensor("slopes", (M,)),
            Tensor("out", (M, N), "T", output=True),
        ),
        dtypes={"T": ("bf16", "f32")},
        scalars=(Scalar("alpha"),),
        legal=tuple(stride(*one) == 1 for one in (("x", 1), ("bias", 0), ("out", 1))),
        reference=lambda xp, call: {"out": call.epilogue(call.fragment("score", call.x))},
        flops=8 * M * N,
        workload=(problem(M=64, N=64), problem(M=64, N=128, present=("bias",))),
        kernels=(
            Kernel("scaled", backend="triton", triton=function, listed=({"BM": 16, "BN": 64},)),
            Kernel("generic", "scaled/generic.cu.j2", backend="nvcc", generic=True),
        ),
        **{**ours, **other},
    )


def rendered(search: list[str], op: Operator, target: Target, root: Path = SHARED) -> list[Rendered]:
    """The kernel's candidates for a target, read by a version of Triton."""
    (asked,) = requests_of({op.name: op}, target)
    (answer,) = ask(search, target.name, asked, root=root)
    assert answer.inspection is not None, answer.fault
    whole = with_declarations(op, {"scaled/scaled": {target.name: answer.inspection}}, [target.family])
    kernel = whole.kernel("scaled")
    config = dict(kernel.listed[0])
    return [Renderer([]).render(whole, c, target) for c in candidates_for(whole, kernel, config, target)]


@EACH_TRITON
def test_a_function_with_two_fragments_compiles(search: list[str], tmp_path: Path) -> None:
    target = target_by_name("cuda-sm_90a")
    found = rendered(search, scaled(), target)
    assert len(found) == 4  # two problems, with and without assumptions
    for number, one in enumerate((found[0], found[-1])):
        recipe = read_recipe(one.source)
        assert list(recipe.fragments) == ["score", "epilogue"]
        outcome = chain(search).compile(one.source, target, tmp_path / f"{number}.o", timeout=300)
        assert outcome.status == "ok", outcome.log


@ONE_TRITON
def test_a_fragment_that_cannot_be_passed(search: list[str]) -> None:
    target = target_by_name("cuda-sm_90a")
    for name, passed, message in (
        ("score", "scores", "argument 'score': the operator has no fragment 'scores'"),
        ("alpha", "score", "argument 'alpha' is the fragment 'score', and no constexpr"),
    ):
        with pytest.raises(SpecError, match=message):
            rendered(search, scaled(arguments={name: fragment(passed)}), target)


def test_names_that_mean_something_in_triton_are_refused() -> None:
    op = scaled(fragments={"tl": Fragment("i j", el.value() * 2)})
    with pytest.raises(RenderError, match="fragment 'tl' is a function of Triton, where 'tl' is something else"):
        fragment_data(op, "tl")


def test_extents_that_a_function_is_not_told_are_refused() -> None:
    op = scaled()
    odd = Tensor("bias", (where(N > 4, N, 4),), "T", optional=True)
    tensors = tuple(odd if t.name == "bias" else t for t in op.tensors)
    bias = el.value() + el.element("bias", el.index(1))
    changed = replace(op, tensors=tensors, epilogue=Epilogue("out", expression=bias))
    with pytest.raises(RenderError, match=r"fragment 'epilogue' reads 'bias', which has the extent where\("):
        fragment_data(changed, "epilogue")


def test_a_function_of_another_version_is_refused(tmp_path: Path) -> None:
    data = fragment_data(scaled(), "score")
    with pytest.raises(ToolchainError, match="the function of the fragment 'score' has changed since it was rendered"):
        fragment_function(msgspec.structs.replace(data, digest="0" * 64), tmp_path)
