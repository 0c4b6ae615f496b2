"""examples/from_packages: functions of packages, unmodified, are read and compiled. tests/gpu runs them."""

import importlib.machinery
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from places import ROOT

from aot_tune.compile import target_by_name
from aot_tune.compile.triton_toolchain import TritonToolchain
from aot_tune.render import Renderer, candidates_for, resolved
from aot_tune.spec import Kernel, Operator, Target
from aot_tune.spec.load_operators import load_operator
from aot_tune.triton.ask_declarations import ROOTS, read_functions, with_declarations

TEMPLATES = ROOT / "examples" / "from_packages" / "templates"
OF = {"chunk_cumsum/fla": "fla", "rms_norm/liger": "liger_kernel", "scaled_int8_mm/torchao": "torchao"}
"""A tuned kernel of each package that CI fetches: there it is a fault if one is missing."""
FETCHED = [f for f in os.environ.get("AOT_TUNE_TEST_TRITON_PACKAGES", "").split(os.pathsep) if f]
HERE = all(importlib.machinery.PathFinder.find_spec(p, [*FETCHED, *sys.path]) is not None for p in OF.values())
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (HERE or os.environ.get("CI")),
        reason="for examples/from_packages: pip install liger-kernel==0.8.5 einops, and by --no-deps fla-core==0.6.0 "
        "torchao==0.18.0",
    ),
]


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that read and compile functions find the packages."""
    monkeypatch.setattr(sys, "path", [*FETCHED, *filter(None, sys.path)])


def kernels(target: Target) -> dict[str, tuple[Operator, Kernel]]:
    """Those of the packages, with what their functions declare for a target."""
    operators = {}
    for name in OF:
        op = load_operator(TEMPLATES / name.partition("/")[0])
        chosen = tuple(k for k in op.kernels if k.generic or k.name == name.partition("/")[2])
        operators[op.name] = replace(op, kernels=chosen)
    read, missing = read_functions(operators, [target], [], [TEMPLATES], os.environ)
    assert not missing, missing
    found = {}
    for name in OF:
        whole = with_declarations(operators[name.partition("/")[0]], read, [target.family])
        kernel = resolved(whole.kernel(name.partition("/")[2]), target.name)
        both = tuple(kernel if k.name == kernel.name else k for k in whole.kernels)
        found[name] = replace(whole, kernels=both), kernel
    return found


def test_a_kernel_of_each_package_compiles(tmp_path: Path) -> None:
    """Its configs are those that the package has for a device with so much shared memory."""
    target = target_by_name("cuda-sm_90a")
    chain = TritonToolchain({**os.environ, ROOTS: str(TEMPLATES)}, sys.path)
    found = kernels(target)
    assert {config["BS"] for config in found["chunk_cumsum/fla"][1].configs(target.facts)} == {32, 64}
    for op, kernel in found.values():
        candidate = next(candidates_for(op, kernel, next(kernel.configs(target.facts)), target))
        source = Renderer([TEMPLATES]).render(op, candidate, target).source
        outcome = chain.compile(source, target, tmp_path / f"{op.name}.o", 300.0)
        assert outcome.status == "ok", outcome.log
