"""Dims whose extents follow from others: checked, drawn by surveys, and kept by odd problems."""

import dataclasses
from collections import Counter

import pytest
from small_operators import make_operator

from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.spec import Expr, IntegerSums, Kernel, Operator, Problem, Tensor, all_of, ceildiv, dims, problem
from aot_tune.spec.calls import check_problem, following_dims
from aot_tune.spec.regimes import range_of
from aot_tune.spec.survey_shapes import survey_shapes
from aot_tune.support.errors import SpecError

M, N, K, MA, KA, NB = dims("M N K MA KA NB")
PER_TENSOR, PER_ROW = (KA == 1) & (MA == 1) & (NB == 1), (KA == 1) & (MA == M) & (NB == N)
PER_BLOCK = (MA == M) & (ceildiv(K, 128) == KA) & (ceildiv(N, 128) == NB)
WAYS = {"tensor": PER_TENSOR, "row": PER_ROW, "block": PER_BLOCK}


def scaled(**changes: object) -> Operator:
    """A product of matrices, with scales of three kinds."""
    return dataclasses.replace(
        make_operator(
            Kernel("blocks", "scale/blocks.cpp.j2", requires=(PER_BLOCK, K % 32 == 0)),
            Kernel("rows", "scale/rows.cpp.j2", requires=(KA == 1, MA == M)),
            Kernel("one", "scale/one.cpp.j2", requires=(MA == 1, NB == 1, M % 16 == 0)),
            extents="M N K MA KA NB",
            tensors=(
                Tensor("a", (M, K)),
                Tensor("b", (K, N)),
                Tensor("scale_a", (MA, KA)),
                Tensor("scale_b", (KA, NB)),
                Tensor("out", (M, N), output=True),
            ),
            legal=(PER_TENSOR | PER_ROW | PER_BLOCK,),
            ranges={"M": (1, 4096), "N": (512, 8192), "K": (512, 8192)},
            values={"NB": (1, N, ceildiv(N, 128)), "MA": (1, M), "KA": (1, ceildiv(K, 128))},
            workload=(
                problem(M=16, N=4096, K=4096, MA=1, KA=1, NB=1),
                problem(M=1024, N=4096, K=7168, MA=1024, KA=1, NB=4096),
                problem(M=1024, N=4096, K=7168, MA=1024, KA=56, NB=32),
            ),
        ),
        **changes,  # type: ignore[arg-type]
    )


def ways_of(problems: list[Problem]) -> Counter[str]:
    return Counter(name for p in problems for name, way in WAYS.items() if way.evaluate(p.dims))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"MA": (1, dims("Q")[0])}, "(?s)the values of 'MA' uses 'Q', which is not bound"),
        ({"MA": (1, M), "M": (MA, 3)}, "follow from each other in a circle: MA from M from MA|: M from MA from M"),
        ({"MA": (M + MA,)}, "follow from each other in a circle: MA from MA"),
        ({"MA": (M, M)}, r"the values of 'MA' are \(M, M\)"),
        ({"MA": (Expr("const", value=3),)}, r"the values of 'MA' are \(3,\)"),
        ({"MA": ("M",)}, r"the values of 'MA' are \('M',\)"),
    ],
)
def test_extents_that_cannot_follow_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        scaled(values=values, ranges={})


def test_a_number_of_factors_is_a_number() -> None:
    with pytest.raises(SpecError, match="factors 0 is not a number of inputs"):
        IntegerSums(K, thinned="b", factors=0)


def test_extents_follow_in_order_whatever_the_order_of_their_declaration() -> None:
    chain = {"NB": (KA * 2, 1), "KA": (MA + 1,), "MA": (M,)}
    assert list(following_dims(scaled(values=chain))) == ["MA", "KA", "NB"]
    assert range_of(scaled(), "NB", ()) == (1, 8192)
    assert range_of(scaled(), "KA", ()) == (1, 64)


@pytest.mark.parametrize("regimes", [{}, {"few": (M <= 16,), "blocks": (KA > 1,), "many": (KA == 1,)}])
def test_surveys_draw_shapes_of_each_way(regimes: dict[str, tuple[Expr, ...]]) -> None:
    operator = scaled(regimes=regimes)
    ((_, shapes),) = survey_shapes(operator, "cuda", 60, operator.kernels).items()
    assert len({p.id for p in shapes}) >= 40
    assert all(all_of(operator.legal, operator.facts(p)) for p in shapes)
    assert min(ways_of([*shapes]).values()) >= 6
    assert len(ways_of([*shapes])) == 3
    assert shapes == survey_shapes(operator, "cuda", 60, operator.kernels)[()]


def test_odd_problems_are_of_each_way_that_a_kernel_takes() -> None:
    operator = scaled()
    assert set(ways_of([c.problem for c in derived_checks(operator)])) == set(WAYS)
    for kernel, ways in zip(operator.kernels, (set(WAYS), {"block"}, {"row"}, {"tensor"}), strict=True):
        for most in (None, 28):
            problems = [c.problem for c in derived_checks(operator, kernel.requires, most=most)]
            assert len(problems) >= 15
            assert ways <= set(ways_of([p for p in problems if p.dims["N"] > 128 and p.dims["M"] > 1]))
            assert kernel.name not in ("generic", "rows") or {len(p.strides) for p in problems} >= {0, 1, 5}
            for one in problems:
                check_problem(operator, one)
                assert all_of(kernel.requires, operator.facts(one))
    wide = [c.problem.dims for c in derived_checks(operator, (PER_BLOCK, KA % 4 == 0))]
    assert wide
    assert {d["KA"] % 4 for d in wide} == {0}


def test_the_problems_of_long_dims_are_of_every_way() -> None:
    long = [p for p in (c.problem for c in derived_checks(scaled())) if min(p.dims[d] for d in "MNK") > 64]
    assert ways_of(long) == dict.fromkeys(WAYS, 3)


def test_a_way_that_needs_a_shorter_dim_is_left_out() -> None:
    """With one scale for a row, blocks fit too, but only up to 128 columns."""
    found = ways_of([c.problem for c in derived_checks(scaled(), (KA == 1, MA == M))])
    assert found["row"] > 5 * found["block"]


def test_a_stated_problem_keeps_its_way_when_it_is_fitted() -> None:
    stated = problem(M=20, N=300, K=300, MA=20, KA=1, NB=300)
    found = [c.problem.dims for c in derived_checks(scaled(checks=(stated,)), (K % 32 == 0,))]
    assert [d for d in found if d["M"] == 20] == [{**stated.dims, "K": 320}]
