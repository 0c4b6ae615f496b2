"""Files of AOT_TUNE_WORKLOAD: what lines mean, and what is said of those that are wrong."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from bundled import OPERATORS as BUNDLED

from aot_tune.bench.devices.cuda import device_of
from aot_tune.compile import target_by_name
from aot_tune.plan.preflight import check_memory
from aot_tune.plan.stated_workloads import ReadWorkload, read_workload
from aot_tune.spec import Operator, Problem, problem, stride
from aot_tune.spec.workload import WeightedProblem
from aot_tune.support.errors import BuildError, Mistakes, OptionError, SpecError

OPERATORS = {n: BUNDLED[n] for n in ("gemm", "softmax")}
SOFTMAX: dict[str, Any] = {"operator": "softmax", "dims": {"R": 8, "D": 32}, "dtypes": {"T": "f32"}}
GEMM: dict[str, Any] = {"operator": "gemm", "dims": {"M": 16, "N": 4096, "K": 4096}, "dtypes": {"T": "bf16"}}


HEADER = {"trace": {"format": 1, "library": "ops", "prefix": "aot_tune", "build": "ab", "pid": 7, "begun": 1}}


def read(
    *given: object, recorded: Sequence[Problem] = (), operators: Mapping[str, Operator] = OPERATORS
) -> ReadWorkload:
    mistakes = Mistakes()
    found = read_workload(
        [str(g) for g in given], ("ops", "aot_tune"), operators, ("rms_norm",), {"gemm": recorded}, mistakes
    )
    mistakes.tell()
    return found


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
    return path


def problems_of(found: ReadWorkload, name: str) -> tuple[WeightedProblem, ...]:
    return found.plan.operators[name].problems


def test_a_line_takes_the_form_in_which_its_problem_is_recorded(tmp_path: Path) -> None:
    recorded = problem(M=17, N=19, K=23, dtypes={"T": "bf16"}, strides={"b": (1, 23)})
    line = GEMM | {"dims": recorded.dims}
    turned = {"strides": {"b": [1, 23], "a": [23, 1]}, "alignment": {"a": 64}}
    file = written(tmp_path / "w.jsonl", line | {"order": {"b": [1, 0]}, "weight": 0.5}, line | turned)
    assert problems_of(read(file, recorded=[recorded]), "gemm") == (WeightedProblem(problem=recorded, weight=1.5),)


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        read(written(tmp_path / "w.jsonl", GEMM | {"weight": 0}, "{", GEMM | {"dims": {}}))
    assert [f"w.jsonl:{n}: " in str(one) for n, one in enumerate(caught.value.several, 1)] == [True] * 3


def test_files_replace_or_join_what_is_declared(tmp_path: Path) -> None:
    one, two = written(tmp_path / "one.jsonl", GEMM), written(tmp_path / "two.jsonl", GEMM | {"weight": 4}, SOFTMAX)
    both = read(one, f"+{two}")
    assert both.paths == [one, two]
    assert [f.beside for f in both.plan.files] == [False, True]
    assert (both.plan.operators["gemm"].beside, both.plan.operators["softmax"].beside) == (False, True)
    gemm = both.plan.stated_for(OPERATORS["gemm"], [])
    assert [p.id for p in gemm.workload_for("cuda")] == ["M=16 N=4096 K=4096 T=bf16"] == list(gemm.weights)
    assert gemm.weight(gemm.workload_for("cpu")[0]) == 5
    softmax, declared = both.plan.stated_for(OPERATORS["softmax"], []), OPERATORS["softmax"]
    for family in ("cpu", "cuda", "hip"):
        assert [p.id for p in softmax.workload_for(family)] == [
            *(p.id for p in declared.workload_for(family)),
            "R=8 D=32",
        ]


@pytest.mark.parametrize("other", [{"library": "mine", "prefix": "m"}, {"library": "ops", "prefix": "elsewhere"}])
def test_a_trace_of_another_library_is_named(other: dict[str, str], tmp_path: Path) -> None:
    path = written(tmp_path / "w.jsonl", {"trace": other}, SOFTMAX | {"calls": 12})
    with pytest.raises(SpecError) as caught:
        read(path)
    error, said = caught.value, f"{other['library']!r} with the prefix {other['prefix']!r}"
    assert error.what == f"{path}:1: this is a trace of library {said}"
    assert error.why == "the one that is built is 'ops' with the prefix 'aot_tune'"
    assert "aot-tune workload merge" in error.fix


def test_calls_without_elements_are_left_out(tmp_path: Path) -> None:
    empty = SOFTMAX | {"dims": {"R": 0, "D": 8}, "calls": 3}
    found = read(written(tmp_path / "w.jsonl", HEADER, empty, SOFTMAX | {"calls": 2}, {"others": 3}))
    assert [(one.problem.id, one.weight) for one in problems_of(found, "softmax")] == [("R=8 D=32", 2)]
    with pytest.raises(SpecError, match=r"w\.jsonl:1: the workload's file has no problem") as caught:
        read(written(tmp_path / "w.jsonl", HEADER, empty))
    assert caught.value.why == "it holds only calls without elements"


WRONG: dict[str, tuple[object, list[str]]] = {
    "not JSON": ("{operator: gemm}", ["this is not JSON: {operator: gemm}", "or write lines such as"]),
    "no object": ("[1, 2]", ["not a JSON object: [1, 2]", "fix: write lines such as"]),
    "not UTF-8": ('{"operator": "\udcff"}', ["this is not JSON"]),
    "unknown operator": (
        GEMM | {"operator": "gem"},
        ["unknown operator 'gem'", "there are gemm, softmax", "did you mean 'gemm'?", "WORKLOAD"],
    ),
    "no operator": ({"dims": {}}, ["it lacks the required field `operator`"]),
    "no dims": ({"operator": "gemm"}, ["it lacks the required field `dims`"]),
    "unknown dim": (
        GEMM | {"dims": {"M": 1, "N": 1, "K": 1, "J": 1}},
        ["unknown dim 'J'", "why: operator 'gemm' has dims M, N, K;", "fix:"],
    ),
    "missing dim": (GEMM | {"dims": {"M": 1, "N": 1}}, ["dim 'K' is not bound", "fix: state K=..."]),
    "a dim that is no number": (SOFTMAX | {"dims": {"R": "8", "D": 1}}, ["Expected `int`, got `str`"]),
    "a negative dim": (SOFTMAX | {"dims": {"R": -8, "D": 1}}, ["dim R=-8 is not an extent", "fix:"]),
    "a huge dim": (SOFTMAX | {"dims": {"R": 1 << 63, "D": 1}}, [f"dim R={1 << 63} is not an extent"]),
    "unknown dtype": (GEMM | {"dtypes": {"T": "bf61"}}, ["T='bf61' is not a dtype", "did you mean 'bf16'"]),
    "a dtype that it has not": (GEMM | {"dtypes": {"T": "f64"}}, ["T='f64' is not a dtype", "dtypes T: f32, bf16"]),
    "unknown dtype variable": (GEMM | {"dtypes": {"T": "f32", "S": "f32"}}, ["S='f32' is not a dtype"]),
    "unknown attribute": (GEMM | {"attributes": {"activatoin": "gelu"}}, ["'activatoin'", "did you mean 'activation'"]),
    "unknown value": (GEMM | {"attributes": {"activation": "glu"}}, ["cannot be 'glu'", "did you mean 'gelu'"]),
    "unknown tensor": (GEMM | {"present": ["bais"]}, ["unknown tensor 'bais'", "did you mean 'bias'"]),
    "a tensor that is not optional": (GEMM | {"present": ["a"]}, ["'a' is always present", "fix:"]),
    "a wrong order": (GEMM | {"order": {"b": [1, 1]}}, ["is not a permutation", "fix: correct the line"]),
    "too few strides": (GEMM | {"strides": {"b": [1]}}, ["2 axes, 1 strides", "why:", "fix: correct the line"]),
    "a negative stride": (GEMM | {"strides": {"b": [-1, 1]}}, ["strides [-1, 1] of 'b'", "fix:"]),
    "an odd alignment": (GEMM | {"alignment": {"b": 3}}, ["alignment 3 of 'b'", "fix:"]),
    "nothing to compute": (SOFTMAX | {"dims": {"R": 0, "D": 1}}, ["nothing to compute", "fix: leave it out"]),
    "not legal": (SOFTMAX | {"dims": {"R": 1, "D": 3}, "strides": {"x": [7, 2]}}, ["does not hold", "fix:"]),
    "weight 0": (GEMM | {"weight": 0}, ["weight 0 is not a positive number", "why:", "fix:"]),
    "weight below 0": (GEMM | {"weight": -1.5}, ["weight -1.5 is not a positive number"]),
    "weight without end": (json.dumps(GEMM | {"weight": 1}).replace("1}", "1e999}"), [":2: "]),
    "weight that is NaN": (json.dumps(GEMM | {"weight": float("nan")}), ["without NaN", "fix: remove the line"]),
    "weight and calls": (GEMM | {"weight": 2, "calls": 7}, ["a weight and a number of calls", "keep one of the two"]),
    "more captured than called": (GEMM | {"calls": 1, "captured": 2}, ["2 of 1 calls are stated", "correct one"]),
    "weight that is a word": (GEMM | {"weight": "heavy"}, ["weight 'heavy' is not a positive number"]),
    "weight that is true": (GEMM | {"weight": True}, ["weight True is not a positive number"]),
    "no calls": (GEMM | {"calls": 0}, ["calls 0 is not a positive number"]),
    "half a call": (GEMM | {"calls": 0.5}, ["Expected `int`"]),
    "captured is a word": (GEMM | {"captured": "x"}, ["Expected `int"]),
    "an unknown field": (GEMM | {"wieght": 1}, ["unknown field 'wieght'", "why: a line has", "did you mean 'weight'?"]),
    "a header with more": (GEMM | {"trace": {}}, ["unknown field 'trace'", "has a line of its own"]),
    "a header that says nothing": ({"trace": {}}, ["not the header of a trace", "lacks the required field `library`"]),
    "a header of another form": (
        {"trace": {"library": "ops", "format": 2}},
        ["a trace of form 2", "fix: read it with"],
    ),
    "a whole line of a database": ({"problem": {"dims": {}}}, ["unknown field 'problem'", 'beside "operator"']),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told_with_its_line(name: str, tmp_path: Path) -> None:
    line, words = WRONG[name]
    one = dataclasses.replace(OPERATORS["softmax"], legal=(stride("x", 1) == 1,))
    path = tmp_path / "w.jsonl"
    text = line if isinstance(line, str) else json.dumps(line)
    path.write_bytes(f"{json.dumps(SOFTMAX)}\n{text}\n".encode(errors="surrogateescape"))
    with pytest.raises(SpecError) as caught:
        read(path, operators=OPERATORS | {"softmax": one})
    told = str(caught.value)
    assert told.startswith(f"{path}:2: "), told
    assert "why:" in told
    assert "fix:" in told
    for word in words:
        assert word in told


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read") as caught:
        read(tmp_path / "none.jsonl")
    assert "No such file" in caught.value.why
    assert str(tmp_path / "none.jsonl") in caught.value.what
    assert caught.value.fix


def gpu_checked(found: ReadWorkload, memory: int) -> None:
    operators = [found.plan.stated_for(OPERATORS[n], ["cpu", "cuda"]) for n in found.plan.operators]
    gpu = device_of(name="GPU", uuid="GPU-1", capability=90, sm_count=1, l2_bytes=1, memory_bytes=memory, driver="1")
    targets = [target_by_name("cuda-sm_90"), target_by_name("cpu-x86-64")]
    check_memory(operators, "*", targets, [gpu], found.places)


def test_more_than_the_memory_of_the_device_is_told_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path / "w.jsonl", SOFTMAX, SOFTMAX | {"dims": {"R": 1 << 20, "D": 1 << 10}})
    gpu_checked(read(path), 8 << 30)
    with pytest.raises(BuildError) as caught:
        gpu_checked(read(path), 7 << 30)
    assert str(caught.value).startswith(f"{path}:2: operator 'softmax': problem 'R=1048576 D=1024' needs 8.0 GiB")
    assert caught.value.why == "GPU has 7.0 GiB"
