"""A session of the CUDA family on tensors of f8 and of whole integers, on the host; kernels are those for CPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cpu_kernels import TARGETS, CpuKernel
from element_types import NAMES, write_operators

from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.spec import problem
from aot_tune.spec.load_operators import bundled_templates, load_operator

pytest.importorskip("torch")

from cuda_session import Bed

pytestmark = pytest.mark.slow

CASES = [("quantise", ""), ("rescale", "f8e5m2"), ("rescale", "f8e4m3"), ("mix", "")]
WRONG = {
    "quantise": ('" / scale"', '" / (1.3f * scale)"'),
    "rescale": ("static_cast<float>(factor)", "static_cast<float>(0.7 * factor)"),
    "mix": ("+ seed", "+ (seed & 127)"),
}


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """The operators' templates as they are to be, and with a mistake in each."""
    folder = tmp_path_factory.mktemp("types")
    found = {right: write_operators(folder / ("right" if right else "wrong")) for right in (True, False)}
    for name in NAMES:
        path = found[False] / name / "generic.cpp.j2"
        text = path.read_text()
        assert WRONG[name][0] in text
        path.write_text(text.replace(*WRONG[name]))
    return found


class Session(Bed):
    """A session, and candidates of generic kernels."""

    def named(self, root: Path, name: str, check: Check) -> str:
        """The key of an operator's check, whose reference is there."""
        self.count += 1
        key, folder, files = f"check-{self.count}", str(root / name), str(self.references / str(self.count))
        reply = self.ask(messages.Reference(operator_folder=folder, check=check, folder=files))
        assert isinstance(reply, messages.Done), reply
        self.ask(messages.Work(key=key, operator_folder=folder, check=check, folder=files))
        return key

    def loaded(self, folder: Path, root: Path, name: str, dtype: str) -> str:
        """The handle of a candidate of the operator's generic kernel."""
        folder.mkdir()
        op, dtypes = load_operator(root / name), {"T": dtype} if dtype else {}
        kernel = CpuKernel(folder, (root, bundled_templates()), op, "generic", TARGETS[0], None, dtypes)
        self.ask(messages.Load(handle=folder.name, path=str(kernel.path), symbol=kernel.symbol))
        return folder.name


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_right_candidates_are_right_and_wrong_ones_are_not(
    tmp_path: Path, roots: dict[bool, Path], name: str, dtype: str
) -> None:
    session, op = Session(tmp_path), load_operator(roots[True] / name)
    dtypes = {"T": dtype} if dtype and dtype != op.dtypes["T"][0] else {}
    places = [c for c in derived_checks(op) if not c.special]
    assert any(-1 in s or -2 in s for c in places for s in c.problem.strides.values())  # torch has no such tensors
    ons = [*(c.problem for c in places), problem(N=1000)]
    checks = [Check(problem=problem(**p.dims, strides=p.strides, dtypes=dtypes)) for p in ons]
    checks += [Check(problem=problem(N=64, dtypes=dtypes), special="x")] if name != "mix" else []
    right = session.loaded(tmp_path / "right", roots[True], name, dtype)
    wrong = session.loaded(tmp_path / "wrong", roots[False], name, dtype)
    for check in checks:
        key = session.named(roots[True], name, check)
        verdict: Any = session.ask(messages.Verify(handle=right, keys=(key,)))
        assert verdict.status == "ok", verdict.reason
        verdict = session.ask(messages.Verify(handle=wrong, keys=(key,)))
        if check.problem.dims["N"] > 100:  # of few elements none need be off by more than rounding
            assert verdict.status == "wrong-result", check.place
            assert "got " in verdict.reason
            assert ", want " in verdict.reason


def test_a_candidate_is_timed_and_surveyed(tmp_path: Path, roots: dict[bool, Path]) -> None:
    session = Session(tmp_path)
    for name, dtype in CASES:
        dtypes = {"T": dtype} if dtype == "f8e4m3" else {}
        key = session.named(roots[True], name, Check(problem=problem(N=900, dtypes=dtypes)))
        handle = session.loaded(tmp_path / f"{name}{dtype}", roots[True], name, dtype)
        other = session.loaded(tmp_path / f"wrong {name}{dtype}", roots[False], name, dtype)
        assert session.ask(messages.Verify(handle=handle, keys=(key,))).status == "ok"
        timed: Any = session.ask(messages.Screen(handle=handle, key=key))
        assert timed.status == "ok", timed.reason
        first: Any = session.ask(messages.SurveyOne(handle=handle, key=key, first=True))
        assert first.status == "ok", first.reason
        second: Any = session.ask(messages.SurveyOne(handle=other, key=key, first=False))
        assert second.status == "wrong-result", (name, second)
