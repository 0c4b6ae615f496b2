"""Guards that name parameters: what each config requires, which calls some config serves, and unknown names."""

from __future__ import annotations

from typing import Any

import pytest
from small_operators import make_operator

from aot_tune.plan.preflight import idle_kernels
from aot_tune.spec import Kernel, Operator, Parameter, Target, dims, parameter, problem, stride
from aot_tune.spec.kernel import requires_of, worthwhile_of
from aot_tune.support.errors import SpecError

M, N = dims("M N")
V = parameter("VEC")
TARGET = Target(name="cpu-x86-64-v3", family="cpu", level=3)


def kernel(**given: Any) -> Kernel:
    return Kernel("vectors", "scale/v.cpp.j2", parameters=(Parameter("VEC", (1, 4, 8)),), **given)


def operator(*kernels: Kernel) -> Operator:
    return make_operator(*kernels, workload=(problem(M=3, N=12),))


def keys(expressions: tuple[Any, ...]) -> list[str]:
    return [e.key() for e in expressions]


def test_each_config_has_guards_of_its_own() -> None:
    one = kernel(requires=(N % V == 0, stride("x", 1) == 1), worthwhile=(N >= 2 * V,))
    assert keys(requires_of(one, {"VEC": 4})) == ["((N % 4) == 0)", "(stride.x.1 == 1)"]
    assert keys(worthwhile_of(one, {"VEC": 8})) == ["(N >= 16)"]


def test_a_kernel_that_no_problem_is_for_in_any_config_is_told() -> None:
    assert idle_kernels([operator(kernel(requires=(N % V == 0,)))], [TARGET]) == []
    (line,) = idle_kernels([operator(kernel(requires=(N % (5 * V) == 0,)))], [TARGET])
    assert "kernel scale/vectors is tried on no problem: it requires ((N % (5 * parameter.VEC)) == 0)" in line


@pytest.mark.parametrize("where", ["requires", "worthwhile"])
def test_an_unknown_parameter_is_told_with_the_nearest(where: str) -> None:
    told = r"kernel 'vectors': .*N % parameter.VECT.* uses the unknown parameter 'VECT'\n  fix: did you mean 'VEC'"
    with pytest.raises(SpecError, match=told):
        operator(kernel(**{where: (N % parameter("VECT") == 0,)}))
    with pytest.raises(SpecError, match="unknown parameter 'VEC'\n  fix: declare it among"):
        operator(Kernel("bare", "k.j2", **{where: (N % V == 0,)}))


def test_a_divisor_of_0_in_some_config_is_told() -> None:
    bad = Kernel("k", "k.j2", parameters=(Parameter("VEC", (0,)),), requires=(N % V == 0,))
    with pytest.raises(SpecError, match=r"kernel 'k': requires or worthwhile: division by zero in \(N % 0\)"):
        operator(bad)


def test_a_guard_over_fractions_is_told() -> None:
    bad = Kernel("k", "k.j2", parameters=(Parameter("SCALE", (0.5, 2.0)),), requires=(N % parameter("SCALE") == 0,))
    told = r"uses the parameter 'SCALE', which is 0\.5\n  why: guards and sizes are computed in whole numbers"
    with pytest.raises(SpecError, match=told):
        operator(bad)
