"""Which variant of the library of odd operators serves a call: by times, by nearest problems, by level."""

import json
from pathlib import Path
from types import ModuleType

import forked
import linked
import numpy as np
import pytest
from linked import NamedVariant
from odd_operators import FILLS, GENERIC, MEASURED, TUNED, apply, combinations, generic, some_calls, some_problems

from aot_tune.link import LibrarySpec, OperatorTable
from aot_tune.link.generate import check_library
from aot_tune.select import Expectation, Nearest, Selection, form_of
from aot_tune.select import picked as picked_by
from aot_tune.select.nearest import without_equals
from aot_tune.spec import Operator, Problem, present
from aot_tune.spec.regimes import regime_of, regimes_of
from aot_tune.support.errors import ManifestError

REGIMES = {
    "near": {"M": 1000, "N": 8, "K": 8},
    "few": {"M": 2, "N": 8, "K": 8},
    "short": {"M": 300, "N": 8, "K": 8},
    "other": {"M": 300, "N": 4000, "K": 4000},
}


def table_of(odd: linked.Built, name: str) -> OperatorTable:
    return next(t for t in odd.spec.operators if t.operator.name == name)


def as_selected(table: OperatorTable) -> Selection:
    """The selection that the table of an operator's only target is made of. Candidates are the variants' numbers."""
    op, (target,) = table.operator, table.tables
    rows = [*zip(target.tuned, target.exact, strict=True), *target.surveyed]
    facts = {p.id: op.facts(p) for p, _ in rows}
    named = {p.id: tuple(map(str, variants)) for p, variants in rows}
    names = without_equals(facts, facts)
    return Selection(
        kept=tuple(map(str, range(len(table.variants)))),
        regret={},
        held_out={},
        rest=tuple(map(str, target.rest)),
        exact={p.id: named[p.id] for p in target.tuned},
        expected=tuple(
            Expectation(str(e.variant), e.facts, e.terms, e.model, e.regimes, e.vendor) for e in target.expected
        ),
        rules={(calls.facts, calls.regime): calls.rule for calls in target.regimes},
        regimes=regimes_of(op),
        nearest=Nearest(
            names, tuple(form_of(facts[n]) for n in names), tuple(named[n] for n in names), frozenset({str(GENERIC)})
        ),
    )


def test_the_choice_of_every_regime_is_the_same_on_many_calls(odd: linked.Built, odd_ops: ModuleType) -> None:
    table = table_of(odd, "likely")
    selection = as_selected(table)
    picks: dict[str, set[str]] = {}
    for p in some_problems(500, 2):
        facts = table.operator.facts(p)
        wanted = picked_by(selection, p.id, facts, lambda c: table.variants[int(c)].requires) or str(GENERIC)
        assert odd_ops.explain("likely", **p.dims)["variant"] == table.variants[int(wanted)].name, p.id
        picks.setdefault(regime_of(table.operator, facts), set()).add(wanted)
    small, packed = str(FILLS), str(MEASURED)
    assert picks["few"] == {small, packed}
    assert picks["short"] == {small}
    assert picks["narrow"] == {small, packed, str(GENERIC)}  # where one refuses, what was timed elsewhere comes next
    assert picks["near"] >= {small, packed}
    assert len(picks) == 5


def test_explain_says_whose_bits_vary(odd_ops: ModuleType) -> None:
    """FAULTS.md, row 12."""
    told = odd_ops.explain("rows", M=2, D=2)
    assert told["bits"] == "results vary between equal calls"
    assert told["graph"] == "its calls could not be captured when they were timed"
    assert "bits" not in odd_ops.explain("likely", **next(iter(REGIMES.values())))


def test_explain_names_the_regime_the_rule_and_its_error(odd_ops: ModuleType) -> None:
    told = {n: odd_ops.explain("likely", **d)["regime"] for n, d in REGIMES.items()}
    unknown = "; no shapes were kept aside to judge it"
    assert told == {
        "near": "near, decided by the nearest problem" + unknown,
        "few": "few, decided by expected times, which loses 25.6 % in the mean of 2 shapes that were kept aside, and "
        "50 % at p95",
        "short": "short, decided by the vendor's choice" + unknown,
        "other": "other, decided by the nearest problem" + unknown,
    }


def arrays(p: Problem) -> list[np.ndarray]:
    m, n, k = p.dims.values()
    b = np.zeros((n, k), np.float32).T if p.order else np.zeros((k, n), np.float32)
    return [np.zeros((m, k), np.float32), b, *([np.zeros(n, np.float32)] if p.present else [])]


def test_the_nearest_problem_is_the_same_on_many_calls(odd: linked.Built, odd_ops: ModuleType) -> None:
    table = table_of(odd, "near")
    op, selection = table.operator, as_selected(table)
    tuned = {form_of(op.facts(p)): p.id for p in reversed(table.tables[0].tuned)}
    picks = set()
    for p in some_calls(1000, 5):
        call = op.facts(p)
        guards = lambda c: table.variants[int(c)].requires  # noqa: E731
        worth = lambda c: table.worth.get(table.variants[int(c)].name, ())  # noqa: E731
        wanted = picked_by(selection, tuned.get(form_of(call), ""), call, guards, worth)
        attributes = {a: str(v) for a, v in p.attributes.items()}
        told = odd_ops.explain("near", *arrays(p), **attributes)
        assert told["variant"] == table.variants[int(wanted or GENERIC)].name, p.id
        picks.add(wanted)
    assert len(picks) == 3


def picked(odd_ops: ModuleType, name: str, m: int, n: int, k: int) -> str:
    return str(odd_ops.explain(name, M=m, N=n, K=k)["variant"])


def test_what_only_the_generic_variant_would_take_gets_it(odd_ops: ModuleType) -> None:
    """By the nearest problem. Of those with few rows, the generic variant was the fastest."""
    wanted = {
        (64, 8, 8): "packed",
        (64, 8, 6): "small",
        (64, 101, 6): "plain",  # it does not take this one
        (8, 8, 8): "plain",  # preferred to another
        (8, 9, 6): "small",
        tuple(TUNED.dims.values()): "plain",  # was measured
    }
    assert {dims: picked(odd_ops, "by_nearest", *dims) for dims in wanted} == wanted
    told = odd_ops.explain("by_nearest", M=64, N=8, K=6)
    assert told["why"] == "first of the variants ranked for such calls whose guards hold"


@pytest.mark.parametrize(("generic", "preferred"), [(9, "plain"), (11, "packed")])
def test_a_generic_variant_that_is_expected_to_be_faster_than_others_stays(
    odd_ops: ModuleType, generic: int, preferred: str
) -> None:
    wanted = {
        (64, 8, 8): preferred,
        (64, 8, 6): "small",
        (64, 101, 6): "plain",
        (16, 8, 8): "small",  # the other one takes it, and is not meant for it
        tuple(TUNED.dims.values()): "plain",
    }
    assert {dims: picked(odd_ops, f"by_times_{generic}", *dims) for dims in wanted} == wanted


@pytest.mark.parametrize(
    ("bias", "mode", "mark"), [(False, "a", 1), (False, "b", 2), (False, "c", 2), (True, "a", 11), (True, "c", 12)]
)
def test_a_call_gets_the_code_of_its_combination(odd_ops: ModuleType, bias: bool, mode: str, mark: int) -> None:
    x = np.zeros(5, np.float32)
    given = x if bias else None
    for _ in range(3):  # the second is remembered
        assert odd_ops.apply(x, given, mode=mode).tolist() == [mark] * 5
    told = odd_ops.explain("apply", x, given, mode=mode)
    assert told["variant"] == f"plain_{int(bias)}{int(mode == 'a')}"
    assert told["why"].startswith("generic")
    assert odd_ops.explain("apply", N=5, bias=bias, mode=mode)["variant"] == told["variant"]


def check(folder: Path, op: Operator, chosen: tuple[NamedVariant, ...]) -> None:
    check_library(LibrarySpec(output="checked", operators=(OperatorTable(operator=op, variants=chosen),)))


def test_each_combination_needs_one_answer(tmp_path: Path) -> None:
    every = combinations(tmp_path / "objects")
    check(tmp_path, apply(), every)
    with pytest.raises(ManifestError, match=r"of calls with attribute.mode=0, present.bias=1, 0 of them answer: \[\]"):
        check(tmp_path, apply(), every[:2] + every[3:])
    twice = generic(tmp_path, "plain_twice", 3, present("bias") == 0)
    with pytest.raises(ManifestError, match=r"present.bias=0, 2 of them answer: \['plain_01', 'plain_twice'\]"):
        check(tmp_path, apply(), (*every, twice))
    with pytest.raises(ManifestError, match="of calls, 2 of them answer"):
        check(tmp_path, apply(), (generic(tmp_path, "plain_a", 1), generic(tmp_path, "plain_b", 2)))


NARROW = """
ops = linked.load_module(Path({module!r}))
def call(function, kind, code):
    on = linked_cuda.OnDevice
    x, out = np.ones(4, kind), np.full(4, 9, kind)
    try:
        function(on(x, (1, 0), code), out=on(out, (1, 0), code))
    except Exception as error:
        return type(error).__name__, str(error), bool((out == 9).all())
    return "", "", bool((out == 9).all())
print(json.dumps([call(ops.{name}, np.float32, 2), call(ops.{name}, np.uint16, 4)]))
"""


@pytest.mark.parametrize(
    ("name", "level", "kind", "message"),
    [
        (
            "narrow",
            "1",
            "ArgumentValueError",
            "cpu:0 has the architecture x86-64-v1, but this library is for cpu-x86-64, cpu-x86-64-v2 and needs x86",
        ),
        ("lone", "", "ArgumentTypeError", "tensors are on cpu:0 with T=bf16, for which this library has no variants; "),
    ],
)
def test_a_dtype_that_no_variant_of_a_level_takes_is_refused_before_anything_is_written(
    odd: linked.Built, name: str, level: str, kind: str, message: str
) -> None:
    said = forked.python(NARROW.format(module=str(odd.module), name=name), AOT_TUNE_CPU_LEVEL=level)
    served, refused = json.loads(said)
    assert served == ["", "", False]
    assert (refused[0], refused[2]) == (kind, True)
    assert refused[1].startswith(f"{name}: {message}")
