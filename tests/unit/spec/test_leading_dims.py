"""A dim that stands for leading dims: what may be declared, and that it is no part of a contract."""

from __future__ import annotations

import dataclasses

import linked
import pytest

from aot_tune.database import operator_digest
from aot_tune.spec.leading_dims import folds
from aot_tune.spec.load_operators import bundled_templates, load_operators
from aot_tune.support.errors import SpecError

ROOTS = [bundled_templates()]


def test_tensors_whose_first_axis_it_is_fold() -> None:
    gemm = linked.gemm_operator()
    assert [t.name for t in gemm.tensors if folds(gemm, t)] == ["a", "residual", "out"]
    plain = dataclasses.replace(gemm, fold="")
    assert not any(folds(plain, t) for t in plain.tensors)
    assert operator_digest(gemm) == operator_digest(plain)


def test_what_cannot_stand_for_leading_dims() -> None:
    with pytest.raises(SpecError, match=r"operator 'gemm': fold='m' is not a dim of it"):
        dataclasses.replace(linked.gemm_operator(), fold="m")
    with pytest.raises(SpecError, match=r"fold='N', but no input that is always passed has that dim as its first axis"):
        dataclasses.replace(linked.gemm_operator(), fold="N")


def test_what_bundled_operators_fold() -> None:
    found = {name: [t.name for t in op.tensors if folds(op, t)] for name, (_, op) in load_operators(ROOTS).items()}
    assert found == {
        "batched_gemm": [],
        "flash_attention": [],
        "gemm": ["a", "residual", "out"],
        "layer_norm": ["x", "out"],
        "rms_norm": ["x", "residual", "out", "residual_out"],
        "silu_mul": ["gate", "up", "out"],
        "softmax": ["x", "out"],
    }
