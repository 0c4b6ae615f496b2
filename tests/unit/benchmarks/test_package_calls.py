"""benchmarks/packages.py: lines for all kernels of the example, calls on the host, results that differ, and tables."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from places import BENCHMARKS, ROOT

from aot_tune.compile import target_by_name
from aot_tune.spec import problem
from aot_tune.spec.load_operators import load_operator

pytest.importorskip("torch")
sys.path.insert(0, str(BENCHMARKS))
package_calls: Any = importlib.import_module("package_calls")
package_launchers: Any = importlib.import_module("package_launchers")

TEMPLATES = ROOT / "examples" / "cuda_packages" / "templates"
NAMES = sorted(path.parent.name for path in TEMPLATES.glob("*/operator.py"))


@pytest.mark.skipif(
    not (TEMPLATES.parent / "packages").is_dir(), reason="cmake -P examples/cuda_packages/packages.cmake"
)
@pytest.mark.parametrize("name", NAMES)
def test_each_kernel_has_lines(name: str) -> None:
    """With all names that they use of a config."""
    operator, facts = load_operator(TEMPLATES / name), target_by_name("cuda-sm_90a").facts
    for kernel in operator.kernels:
        text = package_launchers.source_of(operator, kernel.name, next(iter(kernel.configs(facts))), {}, 90)
        assert "#define SGL_CUDA_ARCH 900" in text
        for word in ("THREADS", "ITEMS", "ELEMENTS", "use_vec"):
            assert (f"constexpr int {word} =" in text) == (word in package_launchers.SOURCES[name].lines)


def test_no_lines_without_a_kernel() -> None:
    assert sorted(package_launchers.SOURCES) == NAMES


def in_place() -> Any:
    """A call of an operator that changes q and k."""
    operator = load_operator(ROOT / "examples" / "from_packages" / "templates" / "rope")
    return package_calls.PackageCall(operator, problem(B=1, S=3, HQ=2, HK=2, D=64), "cpu")


def added(call: Any, wrong: float = 1.0) -> None:
    t = call.tensors
    t["q"].add_(t["k"]).mul_(wrong)
    t["k"].copy_(t["q"])


def test_tensors_are_restored_before_each_call() -> None:
    call = in_place()
    first = call.results(lambda: added(call))
    assert set(first) == {"q", "k"}
    assert package_calls.off_by(call.results(lambda: added(call)), first) == 0
    assert 0 < package_calls.off_by(call.results(lambda: added(call, 1.005)), first) <= 1
    assert package_calls.off_by(call.results(lambda: added(call, 1.05)), first) > 1
    assert package_calls.off_by(call.results(lambda: added(call, float("nan"))), first) == float("inf")


def test_ratios_are_of_the_same_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded(run: Any, _: int) -> Any:
        run()
        return SimpleNamespace(replay=lambda: None)

    monkeypatch.setattr(package_calls, "recorded", recorded)
    monkeypatch.setattr(package_calls, "played", lambda _, __: 4.0)
    monkeypatch.setattr(package_calls, "turns", lambda _, __: [[1.0, 2.0, 30.0], [2.0, 4.0, 30.0]])
    call = in_place()
    ops = SimpleNamespace(rope=lambda **_: added(call))
    row = package_calls.compared(call, ops, {"own": lambda: added(call)})
    assert (row["calls"], row["own_ratio"], row["own_more_us"], row["own_same"]) == (200, 0.5, -1.0, True)
    with pytest.raises(ValueError, match="results of `own` differ"):
        package_calls.compared(call, ops, {"own": lambda: added(call, 2.0)})
    name = {"operator": "rope", "problem": "S=3", "variant": "generic_0", "target": "cuda-ptx_80"}
    failed = {"operator": "x", "problem": "R=1", "error": "RuntimeError: a | b"}
    lines = package_calls.table([{**name, **row}, failed], "native").splitlines()
    assert lines[2].startswith("| rope | S=3 | generic_0 | cuda-ptx_80 | 2.00 | 4.00 | 0.500 ± ")
    assert lines[3].endswith("RuntimeError: a \\| b |")
