"""Formulas for tests: an operator that has them as fragments, calls of it, and random formulas of its arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from dltensors import tensor_of
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from places import SHARED

from aot_tune.expr.formulas import Formula, as_formula
from aot_tune.render.triton.recipe import TritonFragment, parameters_of
from aot_tune.spec import Attribute, Fragment, Kernel, Operator, Problem, Scalar, Tensor, dims, problem, stride
from aot_tune.spec import elementwise as el
from aot_tune.spec.fragment_programs import bind_fragments

TEMPLATES = SHARED / "formula_templates"
M, N, T, F = dims("M N T F")
UNIT_STRIDES = tuple(stride(t, a) == 1 for t, a in (("x", 1), ("out", 2)))
MODES = ("none", "relu", "silu")
SIZES = {"M": 5, "N": 19, "T": 7}
FUNCTIONS = ("exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "relu", "gelu", "gelu_tanh", "silu", "floor")


def operator_of(formulas: Sequence[Formula], kernel: str = "each.cpp.j2", **config: Any) -> Operator:
    """An operator with these formulas as its fragments f0, f1, ..., which a kernel applies to x, each on its own."""

    def reference(xp: Any, call: Any) -> dict[str, Any]:
        return {"out": xp.stack([call.fragment(f"f{i}", call.x) for i in range(len(formulas))])}

    backend = "nvcc" if kernel.endswith(".cu.j2") else "cxx"
    config = config if backend == "nvcc" else {"LANES": 1, "MATH": True, **config}
    return Operator(
        name="formulas",
        dims=("M", "N", "T", "F"),
        tensors=(
            Tensor("x", (M, N)),
            Tensor("columns", (N,)),
            Tensor("rows", (M,), "bf16"),
            Tensor("turned", (N, M), "f16"),
            Tensor("maybe", (N,), optional=True),
            Tensor("whole", (M, N), "i32"),
            Tensor("flags", (N,), "bool"),
            Tensor("table", (T,)),
            Tensor("marks", (F,)),
            Tensor("out", (F, M, N), output=True),
        ),
        scalars=(Scalar("alpha"), Scalar("shift", "i32")),
        attributes=(Attribute("mode", MODES),),
        fragments={f"f{i}": Fragment({"i": M, "j": N}, formula) for i, formula in enumerate(formulas)},
        reference=reference,
        flops=M * N * F,
        workload=(problem(M=5, N=19, T=7, F=len(formulas)),),
        kernels=(
            Kernel("generic", "formulas/each.cpp.j2", generic=True),
            Kernel(
                "each",
                f"formulas/{kernel}",
                backend=backend,
                listed=({"COUNT": len(formulas), **config},),
                requires=UNIT_STRIDES,
            ),
        ),
    )


class FormulaCall:
    """The arguments of a call, drawn by a seed; `turned` lies by its rows, `maybe` in steps, and may be absent."""

    def __init__(self, seed: int, *, present: bool, mode: str) -> None:
        draws = np.random.default_rng(seed)
        m, n, t = SIZES.values()
        special = np.array([0.0, -0.0, 1.0, -1.0, 30.0, -30.0, 1e-3, np.inf, -np.inf, np.nan], np.float32)
        x = draws.normal(0, 2, (m, n)).astype(np.float32)
        x.ravel()[: special.size] = special
        turned = draws.normal(0, 1, (m, n)).astype(np.float16).T
        rows = draws.normal(0, 1, m).astype(np.float32).view(np.uint32) & 0xFFFF0000
        self.arrays: dict[str, Any] = {
            "x": x,
            "columns": draws.normal(0, 1, n).astype(np.float32),
            "rows": rows.view(np.float32),
            "turned": turned,
            "whole": draws.integers(-9, 10, (m, n)).astype(np.int32),
            "flags": draws.integers(0, 2, n).astype(np.bool_),
            "table": draws.normal(0, 1, t).astype(np.float32),
        }
        if present:
            self.arrays["maybe"] = draws.normal(0, 1, 2 * n).astype(np.float32)[::2]
        self.scalars = {"alpha": float(np.float32(draws.normal())), "shift": int(draws.integers(-4, 5))}
        self.mode = mode

    def reference(self, operator: Operator, dtype: Any = np.float64, noise: Any = None) -> Any:
        """What the operator's reference gives, computed in a dtype, of arguments that noise moves by a little."""

        def moved(array: Any) -> Any:
            wide = np.asarray(array, dtype)
            if noise is None:
                return wide
            return wide * (1 + 2.0**-20 * noise.normal(size=wide.shape)) + 2.0**-24 * noise.normal(size=wide.shape)

        wide = {n: moved(a) if a.dtype.kind == "f" else a for n, a in self.arrays.items()}
        scalars = {**self.scalars, "alpha": moved(self.scalars["alpha"])}
        call = SimpleNamespace(**{"maybe": None, **wide}, **scalars, mode=self.mode)
        sizes = Problem(dims={**SIZES, "F": len(operator.fragments)})
        bind_fragments(operator, sizes, np, call)
        with np.errstate(all="ignore"):
            return operator.reference(np, call)["out"]

    def check(self, operator: Operator, got: Any) -> None:
        """Hold results in float32 against the reference in float64.

        How far off they may be is how far it moves with its arguments, and with float32. Where that is without measure,
        as at an overflow or at a step, nothing is promised.
        """
        want, noise = self.reference(operator), np.random.default_rng(0)
        others = [self.reference(operator, np.float32), *(self.reference(operator, noise=noise) for _ in range(16))]
        with np.errstate(all="ignore"):
            same = [(other == want) | (np.isnan(other) & np.isnan(want)) for other in others]
            spread = [np.where(s, 0.0, np.abs(other - want)) for s, other in zip(same, others, strict=True)]
            allowed = 8 * np.max(spread, axis=0) + 1e-5 * np.abs(want) + 1e-5
            right = (np.abs(got - want) <= allowed) | (got == want) | (np.isnan(got) & np.isnan(want))
        promised = np.isfinite(allowed) | ~np.isfinite(want)
        for at in map(tuple, np.argwhere(~right & promised)[:1]):
            said = f"got {got[at]!r}, want {want[at]!r} within {allowed[at]:g}"
            raise AssertionError(f"{operator.fragments[f'f{at[0]}']!r} at {at[1:]}: {said}")

    def run(self, library: Path, symbol: str, operator: Operator) -> Any:
        out = np.full((len(operator.fragments), SIZES["M"], SIZES["N"]), np.nan, np.float32)
        arrays = {**self.arrays, "marks": np.zeros(len(operator.fragments), np.float32), "out": out}
        arrays["rows"] = (arrays["rows"].view(np.uint32) >> 16).astype(np.uint16)
        passed = []
        for tensor in operator.tensors:
            if tensor.name not in arrays:
                passed.append(None)
                continue
            array = arrays[tensor.name]
            strides = [s // array.itemsize for s in array.strides]
            passed.append(ctypes.byref(tensor_of(array.ctypes.data, (1, 0), array.shape, strides, (0, 0))))
        launch = getattr(ctypes.CDLL(str(library)), f"{symbol}_launch")
        alpha, shift = ctypes.c_float(self.scalars["alpha"]), ctypes.c_int32(self.scalars["shift"])
        assert launch(*passed, alpha, shift, MODES.index(self.mode), None, ctypes.c_size_t(0), None) == 0
        return out


_KERNEL = """\
import triton
import triton.language as tl


@triton.jit
def kernel(x, out, M, N, {taken}BM: tl.constexpr, BN: tl.constexpr, FRAGMENT: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    j = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    inside = (i < M) & (j < N)
    v = tl.load(x + i * N + j, mask=inside, other=0.0)
    v = FRAGMENT(v, i, j, {passed})
    tl.store(out + i * N + j, v, mask=inside)
"""


def triton_kernel(fragment: TritonFragment) -> str:
    """A module with a function `kernel` that passes a fragment what it takes."""
    names = parameters_of(fragment)
    taken = "".join(f"{n}, " for n in names if n not in ("x", "M", "N"))
    return _KERNEL.format(taken=taken, passed=", ".join(f"{n}={n}" for n in names))


# -- random formulas ---------------------------------------------------------------------------------------------


@st.composite
def floats(draw: st.DrawFn, depth: int) -> Formula:
    kinds = ["value", "constant", "element", "scalar"]
    if depth > 0:
        kinds += ["binary"] * 4 + ["function"] * 4 + ["where", "cast", "integer", "negative"]
    kind = draw(st.sampled_from(kinds))
    below = depth - 1
    if kind == "constant":
        return as_formula(draw(st.sampled_from((0.0, 0.5, -1.5, 3.0, 1e-3, 100.0))))
    if kind == "element":
        return draw(elements(max(below, 0)))
    if kind == "scalar":
        return el.scalar("alpha")
    if kind == "binary":
        left, right = draw(floats(below)), draw(floats(below))
        made = (
            left + right,
            left - right,
            left * right,
            left / right,
            el.minimum(left, right),
            el.maximum(left, right),
        )
        return draw(st.sampled_from(range(len(made))).map(lambda i: made[i]))
    if kind == "function":
        name = draw(st.sampled_from((*FUNCTIONS, "absolute")))
        return getattr(el, name)(draw(floats(below)))  # type: ignore[no-any-return]
    if kind == "where":
        return el.where(draw(booleans(below)), draw(floats(below)), draw(floats(below)))
    if kind == "cast":
        return el.cast(draw(floats(below)), draw(st.sampled_from(("f32", "bf16", "f16"))))
    if kind == "integer":
        return el.cast(draw(integers(below)), "f32")
    return -draw(floats(below)) if kind == "negative" else el.value()


@st.composite
def elements(draw: st.DrawFn, depth: int) -> Formula:
    simple = (
        el.element("columns", "j"),
        el.element("rows", "i"),
        el.element("turned", "j", "i"),
        el.element("maybe", "j"),
        el.element("x", el.index("i"), el.index("j") // 2),
    )
    chosen = draw(st.sampled_from(range(len(simple) + 1)))
    return simple[chosen] if chosen < len(simple) else el.element("table", draw(integers(depth)))


@st.composite
def integers(draw: st.DrawFn, depth: int) -> Formula:
    leaves = (
        el.index("i"),
        el.index("j"),
        el.dim("N"),
        el.scalar("shift"),
        el.attribute("mode"),
        el.element("whole", "i", "j"),
        as_formula(draw(st.integers(-5, 9))),
    )
    kind = draw(st.sampled_from(["leaf"] * 3 + (["binary"] * 4 + ["where", "cast", "abs"] if depth > 0 else [])))
    below = depth - 1
    if kind == "binary":
        left, right = draw(integers(below)), draw(integers(below))
        made = (left + right, left - right, left // right, left % right, el.minimum(left, right), left * 3)
        return made[draw(st.integers(0, len(made) - 1))]
    if kind == "where":
        return el.where(draw(booleans(below)), draw(integers(below)), draw(integers(below)))
    if kind == "cast":
        return el.cast(draw(floats(below)), "i32") % 1000
    return abs(draw(integers(below))) if kind == "abs" else leaves[draw(st.integers(0, len(leaves) - 1))]


@st.composite
def booleans(draw: st.DrawFn, depth: int) -> Formula:
    kind = draw(st.sampled_from(["leaf", "float"] + (["integer", "not", "and", "or", "float"] if depth > 0 else [])))
    below = max(depth - 1, 0)
    if kind in ("float", "integer"):
        make = floats if kind == "float" else integers
        left, right = draw(make(below)), draw(make(below))
        made = (left < right, left <= right, left > right, left >= right, left == right, left != right)
        return made[draw(st.integers(0, len(made) - 1))]
    if kind == "not":
        return ~draw(booleans(below))
    if kind in ("and", "or"):
        left, right = draw(booleans(below)), draw(booleans(below))
        return left & right if kind == "and" else left | right
    leaves = (el.present("maybe"), el.choice("mode", "relu"), el.element("flags", "j"))
    return leaves[draw(st.integers(0, len(leaves) - 1))]


def formulas(depth: int = 4) -> st.SearchStrategy[Formula]:
    """Formulas of the value, and of all else there is."""
    joins = (
        lambda f: el.value() * f,
        lambda f: f + el.sigmoid(el.value()),
        lambda f: el.where(el.value() > 0.25, f, el.value()),
        lambda f: el.maximum(el.value(), f),
    )
    return st.builds(lambda f, join: join(f), floats(depth), st.sampled_from(joins))


CALLS: tuple[dict[str, Any], ...] = (
    {"seed": 1, "present": True, "mode": "relu"},
    {"seed": 2, "present": False, "mode": "none"},
)
"""What a `FormulaCall` is made of."""
BATCHES = st.lists(formulas(), min_size=12, max_size=12)


def on_batches(count: int) -> Callable[[Any], Any]:
    """Run a property on so many batches of formulas, the same ones each time, and not shrunk: a message names one."""
    phases = (Phase.explicit, Phase.generate)
    few = settings(max_examples=count, deadline=None, phases=phases, derandomize=True)
    return lambda holds: few(given(BATCHES)(holds))
