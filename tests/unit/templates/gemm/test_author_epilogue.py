"""The bundled kernels with an epilogue of an author's own: those that store by it are right whatever it computes."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bundled import OPERATORS
from cpu_calls import EPSILON, TARGETS, Edged, build_for_cpu
from gemm_on_host import TARGET, build_for_host, by_columns, render, run_check

from aot_tune.spec import Epilogue, Formula, problem
from aot_tune.spec import elementwise as el
from aot_tune.spec.fragment_programs import bind_fragments

GEMM = OPERATORS["gemm"]
ACTIVATIONS = {"relu": el.relu, "gelu": el.gelu, "gelu_tanh": el.gelu_tanh, "silu": el.silu}


def as_declared() -> Formula:
    """What gemm's own epilogue does, in one formula."""
    x = el.value() + el.element("bias", 1)
    found = x
    for name, function in ACTIVATIONS.items():
        found = el.where(el.choice("activation", name), function(x), found)
    return found + el.element("residual", 0, 1)


x = el.value()
OWN = el.where(el.index(1) % 3 == 0, x * el.sigmoid(x), el.minimum(x, el.element("bias", 1))) - el.element(
    "residual", 0, 1
)
VECTORS = el.maximum(x * el.tanh(x), el.element("bias", 1)) * (1 - el.element("residual", 0, 1))
FORMULAS = {"own": OWN, "vectors": VECTORS}


@pytest.mark.parametrize(
    ("name", "which", "dtype"),
    [
        ("dot", "own", "bf16"),
        ("packed", "vectors", "f32"),
    ],
)
def test_cpu_kernels(name: str, which: str, dtype: str, tmp_path: Path) -> None:
    op = replace(GEMM, epilogue=Epilogue("out", expression=FORMULAS[which]))
    kernel, target = op.kernel(name), TARGETS[-1]
    config = next(iter(kernel.configs(target.facts)))
    call = build_for_cpu(tmp_path, op, kernel, target, config, dtype=dtype)
    for m, n, k in ((5, 37, 30), (17, 8, 9), (1, 300, 101)):
        draws = np.random.default_rng(7)
        shapes = {"a": (m, k), "b": (k, n), "bias": (n,), "residual": (m, n)}
        strides = {"a": (k, 1), "b": (1, k) if name == "dot" else (n, 1), "bias": (2,), "residual": (n + 3, 1)}
        given = {t: Edged(shapes[t], strides[t], draws, dtype) for t in shapes}
        made = Edged((m, n), (n, 1), None, dtype)
        passed: list[Any] = [ctypes.byref(given[t.name].tensor) for t in op.inputs]
        chosen = (ctypes.c_int32(2), ctypes.c_int32(0))
        assert call(*passed, ctypes.byref(made.tensor), *chosen, missing=lambda size: 0) == 0
        arguments = SimpleNamespace(**{t: one.values for t, one in given.items()}, activation="gelu", math="ieee")
        bind_fragments(op, problem(M=m, N=n, K=k), np, arguments)
        want = arguments.epilogue(arguments.a @ arguments.b)
        near = {"rtol": 2e-5 + EPSILON[dtype], "atol": (1e-5 + EPSILON[dtype] / 64) * k}
        np.testing.assert_allclose(made.values, want, **near, err_msg=f"{m} {n} {k}")
        assert made.spare_is_untouched()


def test_a_cuda_kernel_on_the_host(tmp_path: Path) -> None:
    """Against the check of gemm's own epilogue, which the formula says once more."""
    op = replace(GEMM, epilogue=Epilogue("out", expression=as_declared()))
    program = build_for_host(tmp_path, render(op, op.kernel("cuda_mma"), TARGET["cuda-sm_80"], {}, "f16"))
    for shape in ((13, 40, 24), (70, 9, 33)):
        assert run_check(program, 1, shape, by_columns(*shape), epilogue=True) == "", shape
