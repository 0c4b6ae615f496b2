"""What is read and written is as it was in front of each call, and outputs are right in the memory of inputs, too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import in_place
import numpy as np
import pytest
from in_place import Bed

from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.reference_results import EXACT, read_truth, write_truth
from aot_tune.spec import IntegerSums, Kernel, Operator, Tensor, dims, problem

SMALL = problem(R=13, D=37)
PADDED = problem(R=13, D=37, strides={"state": (40, 1), "x": (41, 1), "out": (41, 1)})


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return partial(in_place.build, tmp_path_factory.mktemp("candidates"))


@pytest.fixture(params=["cpu cold", "cuda few"])
def bed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bed]:
    family, _, kind = request.param.partition(" ")
    if family == "cuda":
        pytest.importorskip("torch")
    made = Bed(tmp_path, family, cold=kind == "cold", copies=3 if kind == "few" else 64)
    yield made
    made.close()


def test_a_good_candidate_is_right_and_timed_on_what_it_was_verified_on(bed: Bed, build: Any) -> None:
    """It would fail after a dozen calls on what the ones before left."""
    bed.load(build("GOOD"))
    for one in (SMALL, PADDED, problem(R=13, D=37, order={"state": (1, 0)})):
        key = bed.name(one)
        bed.ask(messages.Prepare(key=key))
        checked = bed.verify(key, renewed=True)
        assert checked.status == "ok", checked.reason
        assert checked.bitwise is True
        timed = bed.ask(messages.Screen(handle="one", key=key))
        assert (timed.status, timed.reason) == ("ok", "")
        assert len(timed.samples) >= 2
        assert all(s > 0 for s in timed.samples)
        for fresh in (False, True):
            turn = bed.ask(messages.Turn(handle="one", key=key, calls=40, warm=3, fresh=fresh, poison=True))
            assert (turn.status, turn.reason) == ("ok", "")
        assert bed.verify(key).status == "ok"
    for special in ("x", "state"):  # NaN and infinities go through what is written in place
        checked = bed.verify(bed.name(SMALL, special=special))
        assert checked.status == "ok", checked.reason


WRONG = (
    ("IDLE", SMALL, r"^state\[\d+, \d+\]: got .* elements are wrong \(problem 'R=13 D=37'\)$"),
    ("TWICE", SMALL, r"^state\[\d+, \d+\]: got"),
    ("LATE", SMALL, r"^total\[\d+\]: got .* \(problem 'R=13 D=37', 'out' in the memory of 'x'\)$"),
    ("LATE", PADDED, r"'out' in the memory of 'x'\)$"),
    ("GAP", PADDED, r"^oob: 4 bytes between the rows of 'state' were written, first 148 \(problem"),
)


def test_a_wrong_candidate_is_refused_and_leaves_nothing_behind(bed: Bed, build: Any) -> None:
    bed.load(build("GOOD"), "good")
    for number, (body, one, told) in enumerate(WRONG):
        key = bed.name(one)
        bed.load(build(body), f"wrong-{number}")
        checked = bed.verify(key, f"wrong-{number}")
        assert checked.status == "wrong-result"
        assert re.search(told, checked.reason), checked.reason
        assert bed.verify(key, "good").status == "ok"


M, N, K = dims("M N K")


def accumulating(reference: Any, dtype: str) -> Operator:
    """c += a @ b."""
    return Operator(
        name="accumulate",
        dims=("M", "N", "K"),
        tensors=(Tensor("a", (M, K), dtype), Tensor("b", (K, N), dtype), Tensor("c", (M, N), dtype, inout=True)),
        reference=reference,
        exact=IntegerSums(K, thinned="b"),
        flops=2 * M * N * K,
        workload=(problem(M=4, N=4, K=4),),
        kernels=(Kernel("generic", "accumulate/generic.cpp.j2", generic=True),),
    )


def out_of_place(xp: Any, call: Any) -> Any:
    return {"c": call.c + xp.matmul(call.a, call.b)}


def by_changing_it(xp: Any, call: Any) -> Any:
    call.c += xp.matmul(call.a, call.b)
    return {"c": call.c}


@pytest.mark.parametrize(("dtype", "integers"), [("f32", False), ("f64", False), ("bf16", True)])
def test_a_reference_may_change_what_it_is_given(tmp_path: Path, dtype: str, integers: bool) -> None:
    torch = pytest.importorskip("torch")
    from aot_tune.bench.worker.cuda import truth as on_gpu

    check = Check(problem=problem(M=7, N=9, K=300), integers=integers)
    found = []
    for reference in (out_of_place, by_changing_it):
        op, folder = accumulating(reference, dtype), tmp_path / reference.__name__
        write_truth(op, check, folder / "cpu", 1)
        (told, values) = read_truth(folder / "cpu")["c"]
        storages = on_gpu.draw_inputs(op, check, 1, torch.device("cpu"))
        on_gpu.write_limits(op, check, folder / "cuda", 1, torch.device("cpu"))
        limits = on_gpu.read_limits(folder / "cuda")["c"].bounds
        exact = [on_gpu.exact_values(op, check, storages, torch.device("cpu"))["c"].numpy() for _ in range(2)]
        assert np.array_equal(*exact)
        found.append((told.bounds, limits, values.tolist(), exact[0].tolist()))
        if integers:
            assert told.bounds == limits == EXACT
            assert np.array_equal(values, np.rint(values))
    assert found[0] == found[1]
