"""Problems that would take a CPU out of proportion long are not measured, unless the effort asks for it."""

import dataclasses

from bundled import OPERATORS

from aot_tune.compile import Variant, target_by_name
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.wanted_kernels import out_of_proportion
from aot_tune.render import Rendered, candidate_for
from aot_tune.spec import problem

ATTENTION = OPERATORS["flash_attention"]
SHORT = tuple(problem(B=1, H=4, HK=4, M=n, N=n, D=64) for n in (128, 256, 384))
LONG = problem(B=1, H=32, HK=32, M=16384, N=16384, D=128)


def test_attention_over_a_long_sequence_is_left_to_short_ones() -> None:
    (left,) = out_of_proportion(ATTENTION, (*SHORT, LONG)).items()
    assert left[0] == LONG.id
    assert left[1] > 600, "minutes"


def test_no_problem_of_the_bundled_operators_is_left_out() -> None:
    for name, operator in OPERATORS.items():
        assert out_of_proportion(operator, operator.workload_for("cpu")) == {}, name


def test_nothing_is_tried_on_a_problem_that_is_left_to_others() -> None:
    operator = dataclasses.replace(ATTENTION, workload=(*SHORT, LONG))
    target = target_by_name("cpu-x86-64-v3")
    generic = next(k for k in operator.kernels if k.generic and k.backend == "cxx")
    candidate = candidate_for(operator, generic, {}, target, SHORT[0], {"T": "f32"})
    rendered = Rendered(candidate=candidate, source="", digest="", symbol="s", lines=[])
    entry = Variant(rendered=rendered, recorded="digest")
    evidence = Evidence(operator, target, {candidate.id: entry})
    assert evidence.tried(LONG) == [entry]
    evidence.leave_to_others(out_of_proportion(operator, (*SHORT, LONG)))
    assert evidence.tried(LONG) == []
    assert evidence.tried(SHORT[0]) == [entry]
    assert evidence.unmeasured() == []
    assert "1 of 4 problems are not measured" in evidence.note
