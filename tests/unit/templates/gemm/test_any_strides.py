"""Products of matrices that lie in any way: by a stand-in for the vendor's library, with all else on the host."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundled import OPERATORS
from composed_on_host import Calls, OnHost
from cublaslt_stand_in import build_stub
from rows_on_host import HOPPER

from aot_tune.render import Rendered, Renderer, candidate_for, requirements
from aot_tune.spec import all_of, problem
from aot_tune.spec.config_guards import may_serve
from aot_tune.spec.load_operators import bundled_templates

TEMPLATES = bundled_templates()
GEMM, BATCHED = (OPERATORS[name] for name in ("gemm", "batched_gemm"))
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
ALWAYS, NEVER = 1, 1 << 40
"""From how many products an element matrices are copied of which 16 bytes are not whole."""


Built = Callable[[str, str, int], OnHost]


def render(name: str, dtype: str, pack: int, target: Any = HOPPER) -> Rendered:
    op = {"gemm": GEMM, "batched_gemm": BATCHED}[name]
    kernel = op.kernel("cublaslt_any")
    config = {**next(kernel.configs(target.facts)), "PACK": pack, "WORK": 0}
    return Renderer([TEMPLATES]).render(op, candidate_for(op, kernel, config, target, None, {"T": dtype}), target)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stub(tmp_path_factory.mktemp("stub"))


@pytest.fixture(scope="module", params=[("bf16", ALWAYS), ("f32", 16)], ids=lambda c: c[0])
def products(request: pytest.FixtureRequest) -> OnHost:
    built: Built = request.getfixturevalue("built")
    return built("gemm", *request.param)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The kernel of an operator and a dtype that copies from that many products on, compiled once."""

    @functools.cache
    def build(name: str, dtype: str, pack: int) -> OnHost:
        return OnHost(tmp_path_factory.mktemp("any"), render(name, dtype, pack), TEMPLATES)

    return build


def layouts(rows: int, columns: int) -> dict[str, tuple[int, int]]:
    """Strides of a matrix: contiguous along either axis or none, padded, broadcast, reversed."""
    return {
        "rows": (columns, 1),
        "padded rows": (columns + 3, 1),
        "columns": (1, rows),
        "padded columns": (1, rows + 8),
        "every second": (2 * columns, 2),
        "every second, by columns": (3, 3 * rows + 1),
        "one row": (0, 1),
        "one column": (1, 0),
        "one element": (0, 0),
        "upside down": (-columns, 1),
        "reversed": (columns, -1),
        "reversed columns": (-2, 2 * rows),
    }


def only_apart(rows: int, columns: int) -> dict[str, tuple[int, int]]:
    """The same without those in which elements share memory."""
    return {name: s for name, s in layouts(rows, columns).items() if not name.startswith("one")}


def call_of(m: int, n: int, k: int, strides: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {"dims": {"M": m, "N": n, "K": k}, "strides": strides, **other}


def check(host: OnHost, libraries: Path, calls: Calls) -> list[dict[str, Any]]:
    answers = host.call(calls, libraries)
    for one, answer in zip(calls, answers, strict=True):
        assert (answer["preload"], answer["workspace"], answer["launch"]) == (0, 0, 0), one
        assert answer["off"] <= 1.01, (one, answer)
        assert answer["clean"], one
        assert answer["workspace_kept"], one
    return list(answers)


def test_factors_and_results_may_lie_in_any_way(products: OnHost, stub: Path) -> None:
    """Every layout of each beside every one of another; sizes that are multiples of nothing, and beyond one tile."""
    m, n, k = 7, 13, 5
    of_a, of_b, of_out = layouts(m, k), layouts(k, n), only_apart(m, n)
    calls = [call_of(m, n, k, {"a": a, "b": b}) for a, b in itertools.product(of_a.values(), of_b.values())]
    calls += [call_of(m, n, k, {"a": a, "out": out}) for a, out in itertools.product(of_a.values(), of_out.values())]
    m, n, k = 67, 130, 65
    large = zip(layouts(m, k).values(), layouts(k, n).values(), strict=True)
    calls += [call_of(m, n, k, {"a": a, "b": b, "out": (2, 2 * m + 3)}) for a, b in large]
    check(products, stub, calls)


def test_vectors_may_lie_in_any_way(products: OnHost, stub: Path) -> None:
    calls: Calls = []
    for m, n, k in ((1, 9, 4), (9, 5, 1), (1, 1, 1), (300, 1, 2)):
        every = zip(layouts(m, k).values(), layouts(k, n).values(), strict=True)
        calls += [call_of(m, n, k, {"a": a, "b": b}) for a, b in every]
        calls += [call_of(m, n, k, {"out": out}) for out in only_apart(m, n).values()]
    check(products, stub, calls)


def test_addresses_need_be_those_of_elements_alone(products: OnHost, stub: Path) -> None:
    """As of slices that leave out the first column; every epilogue."""
    calls: Calls = []
    for shifted in (["a"], ["b"], ["out"], ["a", "b", "out"]):
        calls += [call_of(9, 12, 8, {}, shifted=shifted), call_of(9, 64, 16, {"a": (24, 1)}, shifted=shifted)]
    for activation, present in itertools.product(ACTIVATIONS, ([], ["bias"], ["residual"], ["bias", "residual"])):
        given: dict[str, Any] = {"present": present, "attributes": {"activation": activation}}
        calls.append(call_of(9, 37, 8, {}, shifted=["a", "b", *present], **given))
        calls.append(call_of(5, 24, 3, {"a": (6, 2), "out": (1, 5)}, **given))
        calls.append(call_of(5, 24, 3, {"b": (-1, 3), "out": (48, 2)}, **given))
    check(products, stub, calls)


def asked(answer: dict[str, Any]) -> str:
    """The alignments that the library was asked for: of b, a, and out twice; of a and b where they change places."""
    [line] = [line for line in answer["log"] if line.startswith("heuristic")]
    return str(line.split("alignment=")[1])


def test_the_library_is_told_what_addresses_are_aligned_to(built: Built, stub: Path) -> None:
    host = built("gemm", "bf16", NEVER)
    plain, shifted, own, again, out, columns = check(
        host,
        stub,
        [
            call_of(8, 16, 24, {}),
            call_of(8, 16, 24, {}, shifted=["a"]),
            call_of(8, 16, 24, {}, shifted=["b"]),
            call_of(8, 16, 24, {"a": (48, 2)}),
            call_of(8, 16, 24, {}, shifted=["out"]),
            call_of(8, 16, 24, {"out": (1, 8)}, shifted=["a"]),
        ],
    )
    assert [asked(a) for a in (plain, shifted, own, out)] == ["16,16,16,16", "16,2,16,16", "2,16,16,16", "16,16,2,2"]
    assert asked(columns) == "2,16,16,16"
    assert not [line for line in again["log"] if line.startswith("heuristic")]  # a copy is as what is aligned


def test_copies_are_in_the_workspace_and_told_of(built: Built, stub: Path) -> None:
    """The stand-in's own algorithm takes 1024 bytes; lines of copies begin at whole 16 bytes, copies at whole 256."""
    host = built("gemm", "bf16", 16)
    none, few, many, both, result, epilogue, short = host.call(
        [
            call_of(40, 8, 24, {"a": (25, 1)}),
            call_of(40, 8, 24, {"a": (48, 2)}),
            call_of(40, 16, 23, {}),
            call_of(40, 16, 24, {"a": (1, 41), "b": (3, 80)}),
            call_of(40, 16, 24, {"out": (32, 2)}),
            call_of(40, 13, 24, {"b": (1, 24)}, present=["residual"]),
            call_of(40, 8, 24, {"a": (48, 2)}, room=1024 + 2047),
        ],
        stub,
    )
    own = "cuBLASLt 13.1.0: its own heuristic"
    assert (none["bytes"], none["note"]) == (1024, own)
    assert (few["bytes"], few["note"]) == (1024 + 2048, f"{own}, of a copy of a")
    assert (many["bytes"], many["note"]) == (1024 + 2048 + 768, f"{own}, of copies of a and b")
    assert (both["bytes"], both["note"]) == (1024 + 2048 + 768, f"{own}, of copies of a and b")
    assert (result["bytes"], result["note"]) == (1024 + 1280, f"{own}, then a copy of its result")
    then = ", then the epilogue in a kernel of its own"
    assert (epilogue["bytes"], epilogue["note"]) == (1024 + 768 + 40 * 16 * 4, f"{own}, of a copy of b{then}")
    assert short["launch"] == 7
    assert not [line for line in short["log"] if line.startswith("matmul")]


def size_of(answer: dict[str, Any]) -> str:
    """M, N and K of the product that the library made."""
    [line] = [line for line in answer["log"] if line.startswith("size")]
    return str(line.split()[1])


def test_copies_end_in_zeros_where_that_makes_whole_pieces(built: Built, stub: Path) -> None:
    """Then K grows in both factors, and N in b and the result; a bias of the library would have to grow, too."""
    host = built("gemm", "bf16", 16)
    calls = [
        call_of(40, 16, 23, {}),
        call_of(40, 21, 24, {}),
        call_of(40, 21, 23, {}),
        call_of(40, 21, 23, {"out": (1, 40)}),
        call_of(40, 21, 23, {}, **BIAS),
        call_of(40, 16, 23, {}, **BIAS),
        call_of(15, 21, 23, {}),
        call_of(40, 16, 24, {"a": (1, 40), "b": (1, 25)}),
    ]
    answers = host.call([{"set": ["tell_sizes", 1]}, *calls], stub)
    assert all(a["launch"] == 0 and a["off"] <= 1.01 and a["clean"] for a in answers)
    sizes = ["40x16x24", "40x24x24", "40x24x24", "21x40x24", "40x24x24", "40x16x24", "15x21x23", "40x16x24"]
    assert [size_of(a) for a in answers] == sizes
    assert "a kernel of its own" in answers[4]["note"]
    assert "a kernel of its own" not in answers[5]["note"]


BIAS = {"present": ["bias"]}


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_the_library_does_what_it_can_of_the_epilogue(dtype: str, built: Built, stub: Path) -> None:
    """A bias, ReLU, in 16 bits a GELU: with a bias that is aligned, and results by rows."""
    host = built("gemm", dtype, NEVER if dtype == "bf16" else 16)  # floats are copied for TF32 alone
    by_library: list[tuple[int, dict[str, Any]]] = [
        (4, BIAS),
        (2, {"attributes": {"activation": "relu"}}),
        (6, {**BIAS, "attributes": {"activation": "relu"}}),
        (4, {**BIAS, "strides": {"out": (40, 2)}}),
    ]
    by_library += [(36, {**BIAS, "attributes": {"activation": "gelu_tanh"}})] if dtype == "bf16" else []
    ours: list[dict[str, Any]] = [
        {**BIAS, "shifted": ["bias"]},
        {**BIAS, "strides": {"bias": (2,)}},
        {**BIAS, "strides": {"out": (1, 9)}},
        {"present": ["bias", "residual"]},
        {**BIAS, "attributes": {"activation": "gelu"}},
        {"attributes": {"activation": "silu"}},
    ]
    ours += [{**BIAS, "attributes": {"activation": "gelu_tanh"}}] if dtype == "f32" else []
    cases = [*by_library, *((1, one) for one in ours)]
    calls = [{"dims": {"M": 9, "N": 20, "K": 6}, **one} for _, one in cases]
    for (number, one), answer in zip(cases, check(host, stub, calls), strict=True):
        [ran] = [line for line in answer["log"] if line.startswith("matmul")]
        assert f" epilogue={number} " in ran, one
        assert answer["note"].endswith("a kernel of its own") == (number == 1), one
    refused, answer = {"set": ["refused_epilogues", 4]}, {"dims": {"M": 8, "N": 20, "K": 6}, **BIAS}
    [told] = host.call([refused, answer], stub)
    assert (told["launch"], told["note"].rpartition(", ")[2]) == (0, "then the epilogue in a kernel of its own")
    assert told["off"] <= 1.01


def test_a_line_alone_is_not_copied_for_where_the_next_would_begin(built: Built, stub: Path) -> None:
    host = built("gemm", "bf16", ALWAYS)
    calls = [call_of(1, 16, 8, {"b": (16, 1)}), call_of(16, 1, 8, {"a": (8, 1)}), call_of(1, 16, 8, {}, shifted=["a"])]
    row, column, begins = check(host, stub, calls)
    assert (row["bytes"], column["bytes"]) == (1024, 1024)
    assert begins["bytes"] == 1024 + 256


def test_floats_are_copied_for_their_alignment_only_where_they_are_rounded(built: Built, stub: Path) -> None:
    host = built("gemm", "f32", 16)
    tf32 = {"attributes": {"math": "tf32"}}
    calls = [call_of(20, 16, 7, {}), call_of(20, 16, 7, {}, **tf32), call_of(20, 16, 7, {"a": (14, 2)})]
    whole, rounded, apart = check(host, stub, calls)
    assert whole["bytes"] == 1024
    assert rounded["bytes"] == 1024 + 768 + 512
    assert apart["bytes"] == 1024 + 768
    assert [line for line in rounded["log"] if " compute=77 " in line]


def stacks(count: int, rows: int, columns: int) -> list[tuple[int, int, int]]:
    """Strides of matrices that lie in any way: one after another, turned round, between each other, one for all."""
    one = rows * columns
    return [
        *((3 * one + 4, *s) for s in only_apart(rows, columns).values()),
        *((0, *s) for s in layouts(rows, columns).values()),
        (-one, columns, 1),
        (columns, count * columns, 1),
        (1, count * columns, count),
    ]


def test_batches_may_lie_in_any_way(built: Built, stub: Path) -> None:
    calls: Calls = []
    for count, m, n, k in ((3, 7, 13, 5), (1, 7, 12, 8), (2, 66, 9, 70), (4, 1, 5, 3)):
        dims = {"B": count, "M": m, "N": n, "K": k}
        every = itertools.zip_longest(stacks(count, m, k), stacks(count, k, n))
        calls += [{"dims": dims, "strides": {"a": a, "b": b}} for a, b in every]
        outs = [s for s in stacks(count, m, n) if s[0] != 0]
        calls += [{"dims": dims, "strides": {"out": out}} for out in outs]
        calls += [{"dims": dims, "shifted": shifted} for shifted in (["a"], ["b", "out"])]
    check(built("batched_gemm", "f32", ALWAYS), stub, calls)


def test_the_library_is_told_what_all_matrices_of_a_batch_are_aligned_to(built: Built, stub: Path) -> None:
    host = built("batched_gemm", "f16", NEVER)
    dims = {"B": 3, "M": 8, "N": 16, "K": 24}
    strides: list[dict[str, Any]] = [{}, {"a": (194, 24, 1)}, {"b": (385, 16, 1)}, {"out": (132, 16, 1)}]
    strides.append({"a": (0, 24, 1)})
    answers = check(host, stub, [{"dims": dims, "strides": one} for one in strides])
    assert [asked(a) for a in answers] == ["16,16,16,16", "16,4,16,16", "2,16,16,16", "16,16,8,8", "16,16,16,16"]
    alone = {"dims": dims | {"B": 1}, "strides": {"a": (193, 24, 1)}}
    assert asked(check(host, stub, [alone])[0]) == "16,16,16,16"


def test_one_matrix_for_all_products_is_copied_once(built: Built, stub: Path) -> None:
    host = built("batched_gemm", "f16", NEVER)
    dims = {"B": 5, "M": 16, "N": 8, "K": 8}
    one, each = check(host, stub, [{"dims": dims, "strides": {"a": (s, 16, 2)}} for s in (0, 256)])
    assert (one["bytes"], each["bytes"]) == (1024 + 256, 1024 + 5 * 256)
    assert asked(one) == "16,16,16,16"


@pytest.mark.parametrize("name", ["gemm", "batched_gemm"])
def test_it_takes_every_call_and_is_tried_where_others_take_none(name: str) -> None:
    op = {"gemm": GEMM, "batched_gemm": BATCHED}[name]
    kernel, lead = op.kernel("cublaslt_any"), (0,) * (name == "batched_gemm")
    guards = requirements(op, candidate_for(op, kernel, next(kernel.configs(HOPPER.facts)), HOPPER, None, {"T": "f16"}))

    def tried(**given: Any) -> bool:
        dims = {"M": 16, "N": 64, "K": 32} | ({"B": 6} if lead else {})
        facts = op.facts(problem(**dims | {"dtypes": {"T": "f16"}} | given))
        assert all_of(guards, facts)
        return may_serve(kernel, facts, worthwhile=True)

    def turned(*axes: int) -> tuple[int, ...]:
        return (*lead, *(axis + len(lead) for axis in axes))

    assert not tried()
    assert not tried(order={"b": turned(1, 0)})
    assert all(tried(**{extent: 63}) for extent in ("N", "K"))
    assert not tried(M=63)
    assert tried(order={"out": turned(1, 0)})
    assert all(tried(alignment={t: 2}) for t in ("a", "b", "out"))
    assert tried(strides={"a": ((1024,) if lead else ()) + (64, 2)})
    assert tried(strides={"b": ((0,) if lead else ()) + (0, 1)})
