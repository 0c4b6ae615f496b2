"""Scores of an attention that its author changes: one formula, in C++, in Triton and in the reference."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cpu_kernels import TARGETS, CpuKernel
from formulas import TEMPLATES
from places import SHARED
from triton_installed import EACH_TRITON, ask, chain

from aot_tune.compile import target_by_name
from aot_tune.render import Renderer, candidates_for
from aot_tune.spec import problem
from aot_tune.spec.fragment_programs import bind_fragments
from aot_tune.spec.load_operators import load_operator
from aot_tune.triton.client import child_environment
from aot_tune.triton.read_declarations import requests_of, with_declarations

ATTEND = load_operator(TEMPLATES / "attend")
SIZES = {"B": 2, "H": 3, "Q": 37, "K": 50, "D": 16}
LIMIT = 2.5


@pytest.fixture(scope="module")
def inputs() -> dict[str, Any]:
    draws = np.random.default_rng(5)
    shapes = {t.name: ATTEND.shape(problem(**SIZES), t) for t in ATTEND.inputs}
    return {name: draws.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def truth(inputs: dict[str, Any]) -> Any:
    """Written out, apart from the formula; the reference, which has it, gives the same."""
    query, key, value, slopes = (inputs[n].astype(np.float64) for n in ("query", "key", "value", "slopes"))
    behind = np.arange(SIZES["Q"])[:, None] + SIZES["K"] - SIZES["Q"] - np.arange(SIZES["K"])
    scores = LIMIT * np.tanh(query @ key.transpose(0, 1, 3, 2) / LIMIT) - slopes[:, None, None] * behind
    weights = np.where(behind < 0, 0.0, np.exp(scores))
    wanted = weights / weights.sum(-1, keepdims=True) @ value
    call = SimpleNamespace(query=query, key=key, value=value, slopes=slopes, limit=LIMIT)
    bind_fragments(ATTEND, problem(**SIZES), np, call)
    assert np.allclose(ATTEND.reference(np, call)["out"], wanted, rtol=1e-12, atol=1e-12)
    return wanted


def test_cpp(inputs: dict[str, Any], truth: Any, tmp_path: Path) -> None:
    kernel = CpuKernel(tmp_path, [TEMPLATES], ATTEND, "generic", TARGETS[0])
    out = np.full_like(inputs["query"], np.nan)
    assert kernel({"limit": LIMIT}, **inputs, out=out) == 0
    assert np.abs(out - truth).max() < 2e-6 * np.abs(truth).max()


@EACH_TRITON
def test_triton_in_its_interpreter(search: list[str], inputs: dict[str, Any], truth: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", **inputs, limit=LIMIT)
    environ = {**child_environment(os.environ, search, tmp_path), "TRITON_INTERPRET": "1"}
    environ["PYTHONPATH"] = os.pathsep.join([*search, str(SHARED)])
    argv = [sys.executable, str(SHARED / "triton_attend.py"), str(tmp_path)]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert np.abs(np.load(tmp_path / "out.npy") - truth).max() < 2e-6 * np.abs(truth).max()


@EACH_TRITON
@pytest.mark.parametrize("name", ["cuda-sm_90a", "hip-gfx942"])
def test_triton_compiles(search: list[str], name: str, tmp_path: Path) -> None:
    target = target_by_name(name)
    (answer,) = ask(search, name, *requests_of({"attend": ATTEND}, target), root=SHARED)
    assert answer.inspection is not None, answer.fault
    whole = with_declarations(ATTEND, {"attend/blocks": {name: answer.inspection}}, [target.family])
    kernel = whole.kernel("blocks")
    one = next(candidates_for(whole, kernel, dict(kernel.listed[0]), target))
    source = Renderer([]).render(whole, one, target).source
    outcome = chain(search).compile(source, target, tmp_path / "candidate.o", timeout=300)
    assert outcome.status == "ok", outcome.log
