"""What every call of an operator must meet is checked at the call, and again where problems are stated."""

from __future__ import annotations

import dataclasses
from types import ModuleType

import linked
import numpy as np
import pytest

from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.database import operator_digest
from aot_tune.spec import dims, problem, stride
from aot_tune.support.errors import SpecError

M, N = dims("M N")
LEGAL = (stride("x", 1) == 1, N % 4 == 0)


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = tmp_path_factory.mktemp("legal")
    spec = linked.library_spec(folder / "objects")
    norm = dataclasses.replace(linked.norm_operator(), legal=LEGAL)
    table = dataclasses.replace(spec.operators[1], operator=norm)
    built = linked.link_library(dataclasses.replace(spec, operators=(table,), output="legal_ops"), folder / "library")
    return linked.load_module(built.module)


def call(ops: ModuleType, x: np.ndarray) -> np.ndarray:
    out = np.empty(x.shape, np.float32)
    ops.rms_norm(x, np.ones(x.shape[1], np.float32), out=out)
    return out


def test_a_legal_call_is_served(ops: ModuleType) -> None:
    x = np.random.default_rng(1).standard_normal((5, 8), np.float32)
    np.testing.assert_allclose(call(ops, x), x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5), rtol=1e-5)


def test_a_stride_that_must_be_one(ops: ModuleType) -> None:
    wide = np.zeros((5, 16), np.float32)
    with pytest.raises(
        ops.ArgumentValueError,
        match=r"rms_norm: not a call that it takes: \(stride.x.1 == 1\) must hold, and stride.x.1 is 2; pass a cont",
    ):
        call(ops, wide[:, ::2])


def test_an_extent_that_must_be_a_multiple(ops: ModuleType) -> None:
    with pytest.raises(ops.ArgumentValueError, match=r"\(\(N % 4\) == 0\) must hold, and N is 7$"):
        call(ops, np.zeros((5, 7), np.float32))


def test_derived_problems_are_legal() -> None:
    operator = dataclasses.replace(linked.norm_operator(), legal=LEGAL)
    checks = derived_checks(operator)
    assert len(checks) > 5
    for check in checks:
        facts = operator.facts(check.problem)
        assert all(e.evaluate(facts) for e in LEGAL)


def test_a_workload_must_be_legal() -> None:
    with pytest.raises(SpecError, match=r"\(\(N % 4\) == 0\) does not hold on problem"):
        dataclasses.replace(linked.norm_operator(), legal=LEGAL, workload=(problem(M=2, N=6),))


def test_what_is_legal_may_only_ask_of_what_there_is() -> None:
    with pytest.raises(SpecError, match=r"legal uses 'stride.z.1', which is not bound"):
        dataclasses.replace(linked.norm_operator(), legal=(stride("z", 1) == 1,))


def test_what_is_legal_is_part_of_the_contract() -> None:
    plain = linked.norm_operator()
    assert operator_digest(plain) != operator_digest(dataclasses.replace(plain, legal=LEGAL))
