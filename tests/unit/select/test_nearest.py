"""Calls that nobody measured get what was fastest on the nearest measured problem that tells something of them."""

from bundled import OPERATORS

from aot_tune.select import Nearest, form_of
from aot_tune.select.nearest import without_equals
from aot_tune.spec import Problem, problem

GEMM = OPERATORS["gemm"]
GENERIC = frozenset({"generic"})


def nearest(**rows: tuple[Problem, tuple[str, ...]]) -> Nearest:
    facts = {name: GEMM.facts(p) for name, (p, _) in rows.items()}
    names = without_equals(facts, rows)
    return Nearest(names, tuple(form_of(facts[n]) for n in names), tuple(rows[n][1] for n in names), GENERIC)


def size(m: int, n: int = 64, k: int = 64, **more: object) -> Problem:
    return problem(M=m, N=n, K=k, **more)  # type: ignore[arg-type]


def ranked(known: Nearest, call: Problem, *refused: str, without: str = "") -> tuple[str, ...]:
    return known.ranked(form_of(GEMM.facts(call)), lambda c: c not in refused, [p != without for p in known.problems])


def test_factors_between_extents_count_and_a_tie_goes_to_the_lesser() -> None:
    known = nearest(large=(size(64), ("x",)), small=(size(4), ("y",)))
    assert ranked(known, size(15)) == ranked(known, size(16)) == ("y",)
    assert ranked(known, size(17)) == ("x",)
    assert ranked(known, size(0)) == ranked(known, size(1)) == ("y",)
    assert ranked(known, size(15), without="small") == ("x",)


def test_without_problems_nothing_is_near() -> None:
    assert ranked(nearest(), size(15)) == ()


def test_all_extents_count_together() -> None:
    known = nearest(one=(size(64, 64, 640), ("one",)), all=(size(200, 200, 200), ("all",)))
    assert ranked(known, size(64, 64, 64)) == ("all",)
    assert ranked(known, size(64, 64, 160)) == ("one",)


def test_another_form_counts_as_a_factor_of_two() -> None:
    plain = (size(64), ("plain",))
    others = {
        "present": {"present": ("bias",)},
        "attribute": {"attributes": {"activation": "relu"}},
        "order": {"order": {"b": (1, 0)}},
        "dtype": {"dtypes": {"T": "bf16"}},
    }
    for name, form in others.items():
        known = nearest(plain=plain, other=(size(64, **form), ("other",)))
        assert ranked(known, size(64, **form)) == ranked(known, size(90, **form)) == ("other",), name
        assert ranked(known, size(64)) == ("plain",)
        far = nearest(plain=plain, other=(size(129, **form), ("other",)))
        assert ranked(far, size(64, **form)) == ("plain",), name
        near = nearest(plain=plain, other=(size(127, **form), ("other",)))
        assert ranked(near, size(64, **form)) == ("other",), name


def test_a_problem_tells_nothing_where_none_but_generic_variants_serve() -> None:
    known = nearest(near=(size(16), ("x", "generic")), far=(size(2048), ("generic", "y")))
    assert ranked(known, size(16)) == ("x", "generic")
    assert ranked(known, size(16), "x") == ("generic", "y")
    assert ranked(known, size(16), "x", "y") == ()


def test_a_problem_tells_nothing_where_a_generic_variant_is_faster_than_what_serves() -> None:
    """What was the fastest there is for another layout: on another problem, something may be for the call's."""
    known = nearest(near=(size(16), ("x", "generic", "slow")), far=(size(2048), ("y", "generic", "slow")))
    assert ranked(known, size(16)) == ("x", "generic", "slow")
    assert ranked(known, size(16), "x") == ("y", "generic", "slow")
    assert ranked(known, size(16), "x", "y") == ()


def test_what_is_meant_for_a_call_comes_first() -> None:
    known = nearest(near=(size(16), ("x", "y", "generic")), far=(size(2048), ("z", "generic")))
    form, every = form_of(GEMM.facts(size(16))), lambda _candidate: True
    assert list(known.tried(form, every, "y".__eq__)) == ["y", "x", "y", "generic"]
    assert list(known.tried(form, every, "z".__eq__))[:2] == ["z", "x"]


def test_of_equal_forms_the_first_counts() -> None:
    aligned = size(16, alignment={"a": 4})
    assert ranked(nearest(first=(size(16), ("x",)), second=(aligned, ("y",))), size(16)) == ("x",)
    assert ranked(nearest(first=(aligned, ("y",)), second=(size(16), ("x",))), size(16)) == ("y",)


def test_extents_are_compared_by_dim_in_whatever_order_a_problem_lists_them() -> None:
    tall, wide = problem(N=1, K=64, M=512), problem(M=1, N=512, K=64)
    assert form_of(GEMM.facts(tall)).dims == (512, 1, 64)
    known = nearest(tall=(tall, ("tall",)), wide=(wide, ("wide",)))
    assert ranked(known, size(500, 2)) == ("tall",)
    assert ranked(known, size(2, 500)) == ("wide",)
