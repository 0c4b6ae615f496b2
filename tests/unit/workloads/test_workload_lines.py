"""Lines of workload files and traces: what is read, what is refused and how, and what is written."""

import pytest
from bundled import OPERATORS
from hypothesis import given
from hypothesis import strategies as st

from aot_tune.spec import Problem, problem
from aot_tune.spec.workload import normal_problem
from aot_tune.support.errors import SpecError
from aot_tune.workloads.workload_lines import CountedProblem, add_up, decode_workload, encode_workload, known_problems

LINE = (
    b'{"operator": "gemm", "dims": {"M": 16, "N": 4096, "K": 4096}, "dtypes": {"T": "bf16"}, '
    b'"attributes": {"activation": "gelu"}, "present": ["bias"], "strides": {"b": [1, 4096]}, '
    b'"alignment": {"a": 16}, "weight": 12.5}\n'
)
HEAD = b'{"trace": {"format": 1, "library": "ops", "prefix": "aot_tune", "build": "ab", "pid": 7, "begun": 1.5}}\n'
CALLS = b'{"operator": "softmax", "dims": {"R": 4, "D": 8}, "calls": 5, "captured": 2}\n'
GEMM = problem(
    M=16, N=4096, K=4096, dtypes={"T": "bf16"}, attributes={"activation": "gelu"}, present=["bias"],
    strides={"b": (1, 4096)}, alignment={"a": 16},
)  # fmt: skip


def test_lines_of_a_trace_know_their_process() -> None:
    second = HEAD.replace(b'"pid": 7', b'"pid": 8, "host": "added later"')
    found = decode_workload(HEAD + CALLS + second + CALLS, "t.jsonl")
    assert [(one.weight, one.captured) for one in found] == [(5, 2), (5, 2)]
    processes = [one.trace for one in found if one.trace is not None]
    assert [(p.library, p.format, p.prefix, p.build, p.pid, p.begun, p.place) for p in processes] == [
        ("ops", 1, "aot_tune", "ab", 7, 1.5, "t.jsonl:1"),
        ("ops", 1, "aot_tune", "ab", 8, 1.5, "t.jsonl:3"),
    ]


def test_what_is_written_is_read_again() -> None:
    problems = [CountedProblem(operator="gemm", problem=GEMM, weight=12.5), *decode_workload(CALLS, "t.jsonl")]
    text = encode_workload(problems)
    again = decode_workload(text, "w.jsonl")
    assert [(o.operator, o.problem, o.weight) for o in again] == [(o.operator, o.problem, o.weight) for o in problems]
    assert text.endswith(b'{"operator":"softmax","dims":{"R":4,"D":8},"weight":5}\n')


@pytest.mark.parametrize(
    ("stated", "normal"),
    [
        (problem(K=3, N=2, M=1), "M=1 N=2 K=3"),
        (problem(M=5, N=2, K=3, strides={"b": (1, 3)}), "M=5 N=2 K=3 b:10"),
        (problem(M=5, N=2, K=3, strides={"b": (1, 4)}), "M=5 N=2 K=3 b:(1,4)"),
        (problem(M=5, N=2, K=3, strides={"a": (3, 1)}, order={"b": (0, 1)}), "M=5 N=2 K=3"),
        (problem(M=1, N=2, K=3, strides={"a": (77, 1)}), "M=1 N=2 K=3"),
        (problem(M=5, N=2, K=3, strides={"bias": (7,)}), "M=5 N=2 K=3"),  # it is absent
        (problem(M=5, N=2, K=3, strides={"bias": (7,)}, present=["bias"]), "M=5 N=2 K=3 bias:(7) +bias"),
        (problem(M=5, N=2, K=3, alignment={"a": 64, "b": 16, "bias": 4}), "M=5 N=2 K=3 b@16"),
        (problem(M=5, N=2, K=3, dtypes={"T": "f32"}, attributes={"math": "ieee"}), "M=5 N=2 K=3"),
    ],
)
def test_equal_problems_have_one_form(stated: Problem, normal: str) -> None:
    found = normal_problem(OPERATORS["gemm"], stated)
    assert found.id == normal
    before, after = OPERATORS["gemm"].facts(stated), OPERATORS["gemm"].facts(found)
    assert {f for f in before if before[f] != after[f]} <= {"stride.bias.0", "alignment.bias"}  # where it is absent


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(1, 20)),
)
def test_the_form_keeps_every_fact(dims: tuple[int, int, int], strides: tuple[int, int, int]) -> None:
    operator = OPERATORS["batched_gemm"]
    stated = problem(B=dims[0], M=dims[1], N=dims[2], K=3, strides={"out": strides})
    found = normal_problem(operator, stated)
    assert operator.facts(found) == operator.facts(stated)
    assert normal_problem(operator, found) == found


def test_a_line_of_a_trace_that_no_longer_fits_names_its_build() -> None:
    with pytest.raises(SpecError, match=r"^t\.jsonl:2: ") as error:
        known_problems(decode_workload(HEAD + CALLS.replace(b'"D"', b'"C"'), "t.jsonl"), OPERATORS)
    assert error.value.why.endswith("it was called in build ab of 'ops', whose operator may differ")


def test_equal_problems_add_up() -> None:
    again = LINE.replace(b'"strides": {"b": [1, 4096]}', b'"order": {"b": [1, 0]}').replace(
        b'"weight": 12.5', b'"calls": 3'
    )
    found = add_up(known_problems(decode_workload(CALLS + LINE + again + CALLS, "w.jsonl"), OPERATORS))
    assert [(one.operator, one.weight, one.captured) for one in found] == [("gemm", 15.5, 0), ("softmax", 10, 4)]
