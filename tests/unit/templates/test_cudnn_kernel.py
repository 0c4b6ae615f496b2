"""Attention by cuDNN, beside a stand-in: the graphs that it is asked for, and what is done where it fails.

tests/gpu compares results with the real library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bundled import OPERATORS
from stand_ins import with_cublaslt
from vendor_calls import Call, OnHost, render

UNAVAILABLE, CUDNN = -100, "libcudnn.so.9"
PLAIN: Call = {"dims": {"B": 2, "H": 4, "HK": 2, "M": 5, "N": 7, "D": 16}}
UPPER: Call = PLAIN | {"attributes": {"causal": "upper_left"}}
LOWER: Call = PLAIN | {"attributes": {"causal": "lower_right"}}
SOFTMAX = "22 13.9 13.13 22 13.15 13.0 13.6"
"""Operations by their numbers: the largest, less it, powers, the sum, its logarithm and level, shares."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> OnHost:
    made = render(OPERATORS["flash_attention"], "cudnn", {}, "bf16")
    return OnHost(tmp_path_factory.mktemp("candidate"), made)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_cublaslt(tmp_path_factory.mktemp("stub"), library=CUDNN)


def refused(answer: Any) -> bool:
    """Whether a call was left to other variants, with nothing done."""
    return (answer["workspace"], answer["launch"], answer["touched"]) == (UNAVAILABLE, UNAVAILABLE, False)


def graph(answer: Any) -> str:
    return next(line for line in answer["log"] if line.startswith("graph")).removeprefix("graph ")


@pytest.mark.parametrize(
    ("call", "operations", "executed"),
    [
        (PLAIN, "41", "ids 1 2 3 4 5 values 0.25"),
        (PLAIN | {"scalars": {"scale": 0.5}}, "41", "ids 1 2 3 4 5 values 0.5"),
        (UPPER, f"19 13.1 13.501 13.501 13.303 13.601 {SOFTMAX} 19", "ids 1 2 3 4 5 8 values 0.25 -inf"),
        (
            LOWER,
            f"19 13.1 13.501 13.501 13.0 13.9 13.303 13.601 {SOFTMAX} 19",
            "ids 1 2 3 4 5 8 11 12 values 0.25 -inf 7 5",
        ),
        (LOWER | {"dims": PLAIN["dims"] | {"M": 1}}, "41", "ids 1 2 3 4 5 values 0.25"),  # one query sees all keys
    ],
)
def test_the_graph_is_that_of_the_call(call: Call, operations: str, executed: str, host: OnHost, stub: Path) -> None:
    [answer] = host.call([call | {"stream": 77}], stub)
    assert (answer["launch"], answer["bytes"], answer["note"]) == (0, 64, "cuDNN 9.19.0: its own heuristic")
    assert graph(answer) == operations
    assert answer["log"][-2:] == ["stream 77", f"execute {executed} mode=2"]
    assert answer["touched"]


def test_older_versions_have_no_operation_of_attention_and_want_finite_scores(host: OnHost, tmp_path: Path) -> None:
    calls = [PLAIN, UPPER]
    plain, upper = host.call(calls, with_cublaslt(tmp_path, "-DVERSION=90800", library=CUDNN))
    assert graph(plain) == f"19 13.1 {SOFTMAX} 19"
    assert "-3.40282e+38" in upper["log"][-1]


def test_a_plan_is_made_once_and_only_its_first_launch_may_load(host: OnHost, stub: Path) -> None:
    first, again = host.call([PLAIN | {"preload": True}, PLAIN], stub)
    assert first["preload"] == 0
    assert [line for line in first["log"] if "mode" in line] == [
        "create mode=2",
        "plan 1 mode=2",
        "execute ids 1 2 3 4 5 values 0.25 mode=2",
    ]
    assert again["log"] == ["stream 0", "execute ids 1 2 3 4 5 values 0.25 mode=0"]


def test_calls_that_differ_in_masks_and_layouts_alone_do_not_take_each_others_place(host: OnHost, stub: Path) -> None:
    apart = {"q": (320, 80, 16, 1)}, {"q": (320, 16, 64, 1)}, {"q": (640, 160, 32, 1)}
    calls: list[Call] = [call | {"strides": strides} for call in (PLAIN, UPPER, LOWER) for strides in apart]
    again = host.call(calls + calls, stub)[len(calls) :]
    assert not any("plan" in line for answer in again for line in answer["log"])


def test_plans_that_went_are_given_back(host: OnHost, stub: Path) -> None:
    """Of 300 shapes the last 64 at most have plans, of fewer than 30 descriptors each."""
    shapes: list[Call] = [{"dims": PLAIN["dims"] | {"M": m}} for m in range(1, 301)]
    answers = host.call(shapes, stub)
    assert all(a["launch"] == 0 for a in answers)
    assert answers[-1]["live"] <= 64 * 30
    assert {line for a in answers for line in a["log"] if "destroy" in line} == {"destroy mode=2"}


def test_plans_that_were_captured_stay(host: OnHost, stub: Path) -> None:
    """A graph may be launched at any time, and its kernels are the plan's."""
    shapes: list[Call] = [{"dims": PLAIN["dims"] | {"M": m}, "stream": 77} for m in range(1, 301)]
    assert not any("destroy" in line for answer in host.call(shapes, stub) for line in answer["log"])


def test_of_one_operation_and_many_the_other_serves_where_one_has_no_plan(host: OnHost, stub: Path) -> None:
    [answer] = host.call([{"set": ["bad plans", 4]}, PLAIN], stub)
    assert answer["launch"] == 0
    assert [line for line in answer["log"] if "graph" in line] == ["graph 41", f"graph 19 13.1 {SOFTMAX} 19"]


@pytest.mark.parametrize(
    ("version", "call", "served"),
    [
        (90501, LOWER, False),
        (90501, LOWER | {"dims": PLAIN["dims"] | {"M": 64, "N": 128}}, True),
        (90600, LOWER, True),
        (90900, UPPER | {"dims": PLAIN["dims"] | {"M": 1}}, False),
        (90900, PLAIN | {"dims": PLAIN["dims"] | {"M": 1}}, True),
        (91000, PLAIN, False),
        (91001, PLAIN, False),
        (91002, UPPER | {"dims": PLAIN["dims"] | {"M": 1}}, True),
    ],
)
def test_what_a_version_gets_wrong_is_left_to_others(
    version: int, call: Call, served: bool, host: OnHost, tmp_path: Path
) -> None:
    [answer] = host.call([call], with_cublaslt(tmp_path, f"-DVERSION={version}", library=CUDNN))
    assert (answer["launch"] == 0) == served
    assert served or refused(answer)


@pytest.mark.parametrize("fault", [["graph", 3000], ["configs", 0], ["bad plans", 99], ["workspace", 1 << 40]])
def test_a_call_without_a_plan_is_left_to_the_next_variant(fault: list[Any], host: OnHost, stub: Path) -> None:
    answer, again = host.call([{"set": fault}, PLAIN, PLAIN], stub)
    assert refused(answer)
    assert answer["note"].startswith("cuDNN 9.19.0 has no plan for this call")
    assert again["log"] == []  # it is not asked again


def test_the_next_of_its_configs_serves_where_the_first_does_not(host: OnHost, stub: Path) -> None:
    [answer] = host.call([{"set": ["bad plans", 1]}, PLAIN], stub)
    assert (answer["launch"], answer["note"]) == (0, "cuDNN 9.19.0: its own heuristic")


def test_what_is_missing_is_said(host: OnHost, stub: Path, tmp_path: Path) -> None:
    [missing] = host.call([PLAIN | {"preload": True}], None)
    assert refused(missing)
    assert (missing["preload"], missing["note"]) == (UNAVAILABLE, "cuDNN not found (libcudnn.so.9)")
    [other] = host.call([PLAIN], with_cublaslt(tmp_path, "-DLACKS_EXECUTE", library=CUDNN))
    assert refused(other)
    assert other["note"] == "the cuDNN that was found lacks cudnnBackendExecute"
    [without] = host.call([{"set": ["create", 1]}, PLAIN], stub)
    assert refused(without)
    assert without["note"] == "cuDNN 9.19.0: cudnnCreate failed with 1"


def test_a_call_whose_launch_fails_is_left_to_the_next_variant(host: OnHost, stub: Path) -> None:
    failed, again, small = host.call([{"set": ["execute", 5000]}, PLAIN, PLAIN, UPPER | {"room": 63}], stub)
    assert (failed["workspace"], failed["launch"]) == (0, UNAVAILABLE)
    assert refused(again)
    assert again["note"] == "cuDNN 9.19.0 failed with 5000 at this call"
    assert small["launch"] == 2000
