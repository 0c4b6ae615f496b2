"""A candidate is not tried on a problem where it was far from the best on one that the problem resembles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from aot_tune.bench.protocol.measurement_records import Measurement, Status
from aot_tune.pipeline.evidence import Entry, Evidence
from aot_tune.pipeline.prune.by_similar_problem import NEAR, NEAR_IN_A_RECORD, Resemblances
from aot_tune.pipeline.records.lookup import Known
from aot_tune.render import Candidate, Rendered, requirements
from aot_tune.spec import (
    AddTensor,
    Attribute,
    Epilogue,
    Kernel,
    Operator,
    Parameter,
    Problem,
    Target,
    Tensor,
    dims,
    problem,
)
from aot_tune.spec.epilogue import Activate

(N,) = dims("N")
TARGET = Target(name="cuda-sm_90a", family="cuda", level=90, last=90)


def made(dtype: str = "", *, bias: bool = False, relu: bool = False, n: int = 8) -> Problem:
    return problem(
        N=n,
        dtypes={"T": dtype} if dtype else {},
        present=("bias",) if bias else (),
        attributes={"activation": "relu"} if relu else {},
    )


PLAIN, PLAIN_F16, LARGE, LARGE_F16 = made(), made("f16"), made(n=64), made("f16", n=64)
FUSED, FUSED_F16 = made(bias=True, relu=True), made("f16", bias=True, relu=True)
BOTH = {"dtypes": {"T": ("bf16", "f16")}, "follows": {"f16": "bf16"}}
OPERATOR = Operator(
    name="scale",
    dims=("N",),
    dtypes={"T": ("bf16", "f16", "f32")},
    tensors=(
        Tensor("x", (N,), "T"),
        Tensor("out", (N,), "T", output=True),
        Tensor("bias", (N,), "T", optional=True),
    ),
    attributes=(Attribute("activation", ("none", "relu")),),
    epilogue=Epilogue("out", (AddTensor("bias", (0,)), Activate("activation"))),
    reference=lambda xp, call: {"out": call.x},
    flops=N,
    workload={"cuda": (FUSED_F16, PLAIN_F16, FUSED, PLAIN, LARGE_F16, LARGE)},
    kernels=(
        Kernel("generic", "g.cu.j2", backend="nvcc", generic=True),
        Kernel("slow", "s.cu.j2", backend="nvcc", parameters=(Parameter("W", (1, 2, 3)),), follows={"f16": "bf16"}),
        Kernel("vendor", "v.cpp.j2", backend="cublaslt", algorithms=lambda _: None, **BOTH),
    ),
)


def entry(kernel: str, dtype: str, width: int = 0) -> Entry:
    candidate = Candidate(
        operator="scale",
        kernel=kernel,
        backend="nvcc",
        target=TARGET.name,
        config={"W": width} if width else {},
        generic=kernel == "generic",
        dtypes={"T": dtype},
    )
    symbol = f"{kernel}_{dtype}_{width}"
    rendered = Rendered(candidate=candidate, source=symbol, digest=symbol, symbol=symbol, lines=[])
    return Entry(candidate=candidate, rendered=rendered, requires=requirements(OPERATOR, candidate))


OWN = {"slow_bf16_1": 100.0, "slow_bf16_2": 114.0, "slow_bf16_3": 116.0}
TOLD = OWN | {"vendor_bf16_1": 300.0, "vendor_bf16_2": 350.0}
"""On one problem; of the library's third call nothing is known there."""
F16 = [f"{kernel}_f16_{w}" for kernel in ("slow", "vendor") for w in (1, 2, 3)]


class Told:
    """Evidence, with its entries by symbol: those of bf16 are compiled, those of f16 are due."""

    def __init__(self) -> None:
        found = [entry(k, d, w) for k in ("slow", "vendor") for d in ("bf16", "f16") for w in (1, 2, 3)]
        found += [entry("generic", "bf16"), entry("generic", "f16")]
        self.entries = {e.rendered.symbol: e for e in found}
        for one in found:
            if one.candidate.dtypes["T"] == "bf16":
                self.compiled(one.rendered.symbol)
            else:
                one.due = True
        self.evidence = Evidence(OPERATOR, TARGET, {e.candidate.id: e for e in found})

    def compiled(self, *symbols: str) -> None:
        for symbol in symbols or self.entries:
            self.entries[symbol].recorded = symbol

    def times(self, where: Problem, told: Mapping[str, float], status: Status = "ok", *, raced: bool = False) -> None:
        for symbol, ns in told.items():
            self.evidence.add(
                Measurement(
                    candidate=self.entries[symbol].candidate.id,
                    code=symbol,
                    problem=where,
                    device="d",
                    policy="p",
                    status=status,
                    screen=() if raced else (ns,) * 4,
                    final=(ns,) * 4 if raced else None,
                    race="r" if raced else None,
                )
            )

    def passed(self, where: Problem, symbols: Iterable[str], near: float = NEAR) -> set[str]:
        chosen = [self.entries[s] for s in symbols]
        gone = Resemblances(self.evidence).pass_over(where, chosen, near)
        return {s for s, e in self.entries.items() if e.candidate.id in gone}

    def given(self, refused: Iterable[Measurement] = ()) -> Evidence:
        """What a build knows that has these times from a record."""
        gone = list(refused)
        known = (m for row in self.evidence.measurements.values() for m in row.values() if m not in gone)
        again = Evidence(OPERATOR, TARGET, self.evidence.entries)
        Known(tuple(known), gone).give(again)
        return again


@pytest.fixture
def told() -> Told:
    found = Told()
    found.times(PLAIN, TOLD)
    return found


def test_in_a_dtype_that_follows_what_was_far_from_the_best_of_its_kind_is_passed_over(told: Told) -> None:
    assert told.passed(PLAIN_F16, F16) == {"slow_f16_3", "vendor_f16_2"}
    assert not told.evidence.meant_for(told.entries["slow_f16_3"], PLAIN_F16)
    assert told.evidence.meant_for(told.entries["slow_f16_3"], LARGE_F16)


def test_so_it_is_with_an_epilogue(told: Told) -> None:
    told.times(PLAIN, {"generic_bf16_0": 9000.0})
    assert told.passed(FUSED, [*TOLD, "generic_bf16_0"]) == {"slow_bf16_3", "vendor_bf16_2"}


def test_a_record_lacks_what_was_passed_over(told: Told) -> None:
    """So a build upon it neither compiles nor measures what the one that was recorded did without."""
    told.compiled()
    told.times(PLAIN_F16, {"slow_f16_1": 90.0, "vendor_f16_1": 300.0})
    again = told.given()
    passed = {(told.entries[s].candidate.id, PLAIN_F16.id) for s in ("slow_f16_2", "slow_f16_3", "vendor_f16_2")}
    assert {(c, p) for c, p in again.passed_over if p == PLAIN_F16.id} == passed
    assert 100.0 * NEAR_IN_A_RECORD < 114.0 < 100.0 * NEAR  # the second: a race may have told other times than a screen


def test_what_a_record_lacks_though_it_was_near_the_best_is_tried(told: Told) -> None:
    """A budget ended before it was."""
    told.compiled()
    told.times(LARGE, {"slow_bf16_1": 100.0, "slow_bf16_2": 104.0, "slow_bf16_3": 130.0})
    told.times(LARGE_F16, {"generic_f16_0": 9000.0})
    again = told.given()
    assert [s for s in F16[:3] if again.meant_for(told.entries[s], LARGE_F16)] == ["slow_f16_1", "slow_f16_2"]
    assert again.lacks(told.entries["slow_f16_1"])
