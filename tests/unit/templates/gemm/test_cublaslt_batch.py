"""Batches of products by cuBLASLt: rendered, compiled, and called without the library and with a stand-in for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bundled import OPERATORS
from cublaslt_stand_in import RECORDED, TARGET, UNAVAILABLE, build_stub, call, compile_shared

from aot_tune.render import Rendered, Renderer, candidate_for, requirements
from aot_tune.spec import problem
from aot_tune.spec.expr import all_of
from aot_tune.spec.load_operators import bundled_templates
from aot_tune.vendor.cublaslt import Product

OPERATOR = OPERATORS["batched_gemm"]
KERNEL = OPERATOR.kernel("cublaslt")
EVEN = {"batch": 3, "m": 8, "n": 12, "k": 4}
ODD = {"batch": 3, "m": 5, "n": 11, "k": 7}


def render(config: dict[str, Any], dtype: str = "f32") -> Rendered:
    candidate = candidate_for(OPERATOR, KERNEL, config, TARGET, None, {"T": dtype})
    return Renderer([bundled_templates()]).render(OPERATOR, candidate, TARGET)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """Compiled candidates by name: the library's own choice, and a recorded algorithm."""
    found = {}
    for name, config in (("own", {"ALGO": -1}), ("recorded", RECORDED)):
        rendered = render(config)
        found[name] = (compile_shared(rendered, tmp_path_factory.mktemp(name)), rendered.symbol)
    return found


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stub(tmp_path_factory.mktemp("stub"))


def logged(answer: dict[str, Any], function: str) -> list[str]:
    return [line for line in answer["log"] if line.startswith(function)]


def test_guards_let_through_what_the_library_can_do_and_nothing_else() -> None:
    guards = requirements(OPERATOR, candidate_for(OPERATOR, KERNEL, {"ALGO": -1}, TARGET, None, {"T": "bf16"}))

    def allowed(**facts: Any) -> bool:
        made = problem(**{"B": 6, "M": 16, "N": 64, "K": 32, "dtypes": {"T": "bf16"}} | facts)
        return all_of(guards, OPERATOR.facts(made))

    assert allowed()
    assert allowed(M=15, N=63, K=31)
    assert allowed(order={"a": (0, 2, 1), "b": (0, 2, 1)})
    assert allowed(order={"a": (1, 0, 2), "b": (1, 0, 2), "out": (1, 0, 2)})  # heads between the rows
    assert allowed(strides={"b": (0, 64, 1)})
    assert allowed(B=1)
    assert not allowed(order={"out": (0, 2, 1)})
    assert not allowed(strides={"a": (1, 6 * 32, 6)})
    assert not allowed(strides={"a": (16 * 32, 0, 1)})
    assert not allowed(strides={"b": (-32 * 64, 64, 1)})
    assert not allowed(strides={"out": (0, 64, 1)})
    assert not allowed(alignment={"out": 8})
    assert not allowed(B=2**31)
    assert not allowed(dtypes={"T": "f16"})


LAYOUTS: list[dict[str, Any]] = [
    {},
    {"a_by_columns": True},
    {"b_by_columns": False},
    {"a_by_columns": True, "b_by_columns": False},
    {"pad": 4},
    {"pad": 4, "a_by_columns": True, "b_by_columns": False},
    {"where": {"a": "apart", "b": "apart", "out": "apart"}},
    {"where": {"a": "between", "b": "between", "out": "between"}, "pad": 4},
    {"where": {"b": "shared"}},
    {"where": {"a": "shared"}, "b_by_columns": False},
    {"batch": 1},
    {"batch": 1, "b_by_columns": False, "pad": 4},
]


@pytest.mark.parametrize("name", ["own", "recorded"])
def test_products_are_right_in_every_layout(built: dict[str, tuple[Path, str]], stub: Path, name: str) -> None:
    calls = [size | layout for size in (EVEN, ODD) for layout in LAYOUTS]
    for one, answer in zip(calls, call(built[name], stub, calls), strict=True):
        assert (answer["workspace"], answer["launch"]) == (0, 0), one
        assert answer["error"] < 1e-4, one
        [matmul] = logged(answer, "matmul")
        assert f" batch={one['batch']} " in matmul, one


def test_the_library_is_asked_about_the_whole_batch(built: dict[str, tuple[Path, str]], stub: Path) -> None:
    """The stand-in's choice holds the number of matrices, and the distances of those of b, a and out."""
    shared = EVEN | {"where": {"b": "shared"}, "pad": 4}
    alone = EVEN | {"batch": 1}
    first, second, third = call(built["own"], stub, [EVEN, shared, alone])
    assert logged(first, "matmul")[0].startswith(f"matmul id=900 3 1 0 {8 * 4} {4 * 12} {8 * 12} 0 0 ")
    assert logged(second, "matmul")[0].startswith(f"matmul id=900 3 1 0 {8 * 8} 0 {8 * 16} 0 0 ")
    assert logged(third, "matmul")[0].startswith("matmul id=900 0 1 0 0 0 0 0 0 batch=1 ")


def test_the_library_is_told_when_other_matrices_than_the_first_are_not_aligned(
    built: dict[str, tuple[Path, str]], stub: Path
) -> None:
    """A recorded algorithm was chosen for matrices that all are; the alignments are those of b, a and twice out."""
    calls = [EVEN, ODD, ODD | {"batch": 1}, EVEN | {"k": 6, "m": 3}, EVEN | {"dtype": "bf16", "n": 6}]
    calls.append(EVEN | {"where": {"b": "shared"}, "n": 11})
    own = [line for a in call(built["own"], stub, calls) for line in logged(a, "heuristic")]
    assert [line.split("alignment=")[1] for line in own] == [
        "16,16,16,16",  # 4 x 12, 8 x 4 and 8 x 12 floats
        "4,4,4,4",  # 7 x 11, 5 x 7 and 5 x 11
        "16,16,16,16",  # one matrix of each
        "16,8,16,16",  # 6 x 12, 3 x 6 and 3 x 12
        "16,16,16,16",  # 4 x 6, 8 x 4 and 8 x 6 of two bytes
        "16,16,16,16",  # b's are all the same; 8 x 11
    ]
    aligned, odd, alone = call(built["recorded"], stub, calls[:3])
    assert logged(aligned, "matmul")[0].startswith("matmul id=66 ")
    assert logged(alone, "matmul")[0].startswith("matmul id=66 ")
    assert logged(odd, "matmul")[0].startswith("matmul id=900 ")
    assert odd["note"] == "cuBLASLt 13.1.0: its own heuristic, the recorded algorithm does not take this call"


def test_plans_of_other_batches_are_others(built: dict[str, tuple[Path, str]], stub: Path) -> None:
    calls = [EVEN, EVEN | {"batch": 4}, EVEN | {"where": {"b": "shared"}}, EVEN | {"where": {"out": "apart"}}, EVEN]
    *first, again = call(built["own"], stub, calls)
    assert all(len(logged(a, "heuristic")) == 1 and a["error"] < 1e-4 for a in first)
    assert not logged(again, "heuristic")
    assert again["error"] < 1e-4


def test_a_library_that_lacks_batches_is_none(built: dict[str, tuple[Path, str]], tmp_path: Path) -> None:
    [answer] = call(built["own"], build_stub(tmp_path, "-DLACKS_LAYOUT_SET"), [EVEN])
    assert (answer["workspace"], answer["launch"]) == (UNAVAILABLE, UNAVAILABLE)
    assert answer["note"] == "the cuBLASLt that was found lacks cublasLtMatrixLayoutSetAttribute"


def test_problems_are_products_in_the_layouts_that_they_say() -> None:
    """What the library is asked about on the device is what the candidate will tell it."""
    assert KERNEL.algorithms is not None
    served = [p for p in OPERATOR.workload["cuda"] if all_of(KERNEL.requires, OPERATOR.facts(p))]
    assert served == list(OPERATOR.workload["cuda"])
    for one in served:
        found = Product(**KERNEL.algorithms(one))  # type: ignore[arg-type]
        assert (found.batch, found.m, found.n, found.k) == tuple(one.dims[d] for d in "BMNK")
        assert found.b_by_columns == ("b" in one.order)
        assert (found.next_a, found.next_b, found.next_d) == (found.m * found.k, found.k * found.n, found.m * found.n)
    between = problem(B=6, M=8, N=16, K=24, order={"a": (1, 0, 2), "b": (0, 2, 1), "out": (1, 0, 2)})
    found = Product(**KERNEL.algorithms(between))  # type: ignore[arg-type]
    assert (found.next_a, found.lda, found.a_by_columns) == (24, 6 * 24, False)
    assert (found.next_b, found.ldb, found.b_by_columns) == (24 * 16, 24, True)
    assert (found.next_d, found.ldd) == (16, 6 * 16)
    shared = problem(B=6, M=8, N=16, K=24, strides={"b": (0, 16, 1)})
    assert Product(**KERNEL.algorithms(shared)).next_b == 0  # type: ignore[arg-type]
