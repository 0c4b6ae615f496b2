"""Fragments as functions of Triton: in its interpreter they give what the reference gives."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from formulas import CALLS, FUNCTIONS, FormulaCall, on_batches, operator_of, triton_kernel
from places import SHARED
from triton_installed import EACH_TRITON, ONE_TRITON, ask, chain

from aot_tune.compile import target_by_name
from aot_tune.render import Rendered, Renderer, candidates_for
from aot_tune.render.triton.recipe import TritonFragment, fragment_data
from aot_tune.spec import (
    Activate,
    AddTensor,
    Epilogue,
    Formula,
    Kernel,
    Operator,
    Target,
    Tensor,
    TritonFunction,
    attribute,
    ceildiv,
    dims,
    fragment,
    stride,
)
from aot_tune.spec import elementwise as el
from aot_tune.triton.ask_declarations import child_environment, requests_of, with_declarations

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
        results = np.array(interpreter(batch), np.float32)
        for number, call in enumerate(CALLS):
            FormulaCall(**call).check(operator_of(batch), results[:, number])

    holds()
    op = operator_of([el.value()])
    tensors = tuple(Tensor("out", (M, N), output=True) if t.output else t for t in op.tensors)
    steps = Epilogue("out", (AddTensor("maybe", (1,)), Activate("mode"), AddTensor("rows", (0,))))
    declared = replace(op, tensors=tensors, epilogue=steps, kernels=op.generics)
    (results,) = interpreter.run([fragment_data(declared, "epilogue")])
    x = el.value() + el.element("maybe", "j")
    chosen = el.where(el.choice("mode", "relu"), el.relu(x), el.where(el.choice("mode", "silu"), el.silu(x), x))
    wanted = operator_of([chosen + el.element("rows", "i")])
    for call, got in zip(CALLS, results, strict=True):
        FormulaCall(**call).check(wanted, np.array([got]))
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


def rendered(search: list[str], op: Operator, target: Target, root: Path = SHARED) -> list[Rendered]:
    """The kernel's candidates for a target, read by a version of Triton."""
    (asked,) = requests_of({op.name: op}, target)
    (answer,) = ask(search, target.name, asked, root=root)
    assert answer.inspection is not None, answer.fault
    whole = with_declarations(op, {"scaled/scaled": {target.name: answer.inspection}}, [target.family])
    kernel = whole.kernel("scaled")
    config = dict(kernel.listed[0])
    return [Renderer([]).render(whole, c, target) for c in candidates_for(whole, kernel, config, target)]
