"""The benchmarks of shapes that no build drew: what is drawn, raced and told, as far as it needs no GPU."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from places import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

import gpu_calls
import gpu_race
import unseen
import unseen_cpu
from race import Fleet, WrongResultError
from stats import Timing
from unseen_shapes import ON_CPU, any_row_shapes, of_a_copy, products, ratio, row_shapes, rows_of, tell, variants_of

ROWS = ("softmax", "rms_norm", "layer_norm", "silu_mul")
MANIFEST: dict[str, Any] = {
    "operators": [
        {
            "name": "gemm",
            "variants": [
                {"name": "generic", "target": "cpu-x86-64", "kernel": "generic", "dtypes": {"T": "f32"}, "config": {}},
                {"name": "dot", "target": "cpu-x86-64-v3", "kernel": "dot", "dtypes": {}, "config": {}},
                {"name": "mma", "target": "cuda-sm_90", "kernel": "mma", "dtypes": {"T": "bf16"}, "config": {}},
                {"name": "lt", "target": "cuda", "kernel": "cublaslt", "dtypes": {"T": "bf16"}, "config": {"ALGO": -1}},
                {"name": "one", "target": "cuda", "kernel": "cublaslt", "dtypes": {"T": "bf16"}, "config": {"ALGO": 3}},
            ],
        },
        {"name": "softmax", "variants": []},
    ]
}


def timed(shape: Sequence[int], ours: Sequence[float], **others: Sequence[float]) -> dict[str, Any]:
    return {"shape": list(shape), "us": {"ours": list(ours), **{n: list(us) for n, us in others.items()}}}


def test_products_are_drawn_once_each_and_again_the_same() -> None:
    found = products(200, 1)
    assert found == products(200, 1)
    assert len(set(found)) == 200
    assert set(found) != set(products(200, 2))
    assert products(5, 1) == found[:5]
    assert all(m * n * k <= 2**40 for m, n, k in found)
    assert 0.1 < sum(m == 1 for m, _, _ in found) / 200 < 0.3


def test_products_for_a_cpu_are_small() -> None:
    found = products(60, 1, ON_CPU)
    assert all(1 <= m <= 2048 and n * k <= 2**25 and m * n * k <= 2**33 for m, n, k in found)
    assert any(m > 256 for m, _, _ in found)
    layouts = [by_columns for _, by_columns in unseen_cpu.given_shapes(60, 1)]
    assert 30 < sum(layouts) < 50
    assert [shape for shape, _ in unseen_cpu.given_shapes(60, 1)] == found


def test_widths_of_rows_are_multiples_of_8() -> None:
    found = row_shapes(300, 1)
    assert len(set(found)) == 300
    assert found == row_shapes(300, 1)
    assert all(1 <= rows <= 16384 and 64 <= width <= 16384 and width % 8 == 0 for rows, width in found)
    assert any(width % 64 for _, width in found)
    assert 30 < sum(rows == 1 for rows, _ in found) < 120


def test_rows_of_any_width_are_odd_every_other_time() -> None:
    found = any_row_shapes(300, 1)
    assert len(set(found)) == 300
    assert found == any_row_shapes(300, 1)
    assert all(1 <= rows <= 16384 and 1 <= width <= 160001 and rows * width <= 2**28 for rows, width in found)
    assert sum(width % 2 for _, width in found) == 150
    assert min(width for _, width in found) < 8
    assert max(width for _, width in found) > 100000
    assert max(rows for rows, _ in found) > 8192
    (plan,) = unseen.plans(["softmax"], ["bf16"], ["plain"], 9, 1, "any")
    assert plan["shapes"] == found[:9]


def test_calls_are_held_against_a_copy_by_their_size() -> None:
    sizes = ((1 << 29, 6), (1 << 30, 8), (10**7, 3), (64 * 10**6, 1))
    rows = [timed((1, 8), [10, 10, 10]) | {"bytes": size, "copy": [us, us, us]} for size, us in sizes]
    found = of_a_copy([*rows, timed((1, 8), [1])])
    assert found["128 MB on"] == {"calls": 2, "mean": pytest.approx(0.48**0.5), "least": pytest.approx(0.6)}
    assert found["8 to 16 MB"] == {"calls": 1, "mean": pytest.approx(0.3), "least": pytest.approx(0.3)}
    assert of_a_copy([]) == {}


def test_the_faster_of_the_others_counts() -> None:
    times, error = ratio(timed((4, 5, 6), [10, 20, 30], numpy=[10, 50, 90], torch=[20, 40, 60]))
    assert times == pytest.approx(2)
    assert error == pytest.approx(0)
    _, error = ratio(timed((4, 5, 6), [10, 10, 10], torch=[10, 20, 40]))
    assert error == pytest.approx(math.log(2) / math.sqrt(3))


def test_what_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        timed((2, 8, 8), [10, 10, 10], numpy=[50, 50, 50], torch=[40, 40, 40]) | {"tuned": True},
        timed((3, 8, 8), [10, 10, 10], torch=[9, 9, 9]),
        timed((4, 8, 8), [10, 10, 10], torch=[5, 5, 5]),
        {"shape": [5, 8, 8], "error": "refused"},
    ]
    told = tell("some", rows, {(2, 8, 8): 8.0, (3, 8, 8): 11.0})
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(told))
    assert (told["shapes"], told["failed"], told["tuned"]) == (3, 1, 1)
    assert told["geometric_mean"] == pytest.approx((4 * 0.9 * 0.5) ** (1 / 3))
    assert (told["below_0.95"], told["below_0.80"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert told["worst"] == (pytest.approx(0.5), [4, 8, 8])
    assert told["certainly_below_0.80"] == [[4, 8, 8]]
    assert told["certainly_below_0.95"] == [[3, 8, 8], [4, 8, 8]]
    assert told["of_a_copy"] == {}
    assert told["regret_mean"] == pytest.approx(0.125)  # what was slower when it was forced has no regret
    assert told["regret_p95"] == pytest.approx(0.25)
    assert [(single, len(some)) for single, some in rows_of([*rows, timed((1, 8), [1], torch=[1])])] == [
        (False, 4),
        (True, 1),
    ]


def test_of_nothing_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    told = tell("none", [], {})
    assert (told["shapes"], told["geometric_mean"], told["below_0.95"], told["worst"]) == (0, None, None, None)
    assert "NaN" not in capsys.readouterr().out


def test_the_variants_that_are_forced() -> None:
    """Not those of other devices or dtypes, nor a vendor's algorithms for single problems."""
    assert variants_of(MANIFEST, "gemm", "f32", "cpu") == ["generic", "dot"]
    assert variants_of(MANIFEST, "gemm", "bf16", "cuda") == ["mma", "lt"]
    assert variants_of(MANIFEST, "softmax", "f32", "cpu") == []


# On a CPU.


class FakeFleet:
    """Answers as workers do: some refuse, some are wrong."""

    def __init__(self, refusing: Sequence[str] = (), wrong: bool = False) -> None:
        self.refusing, self.wrong = refusing, wrong
        self.asked: Mapping[str, Mapping[str, Any]] = {}
        self.dropped: list[str] = []

    def prepare(
        self, requests: Mapping[str, Mapping[str, Any]], may_refuse: Sequence[str] = ()
    ) -> dict[str, dict[str, Any]]:
        self.asked = requests
        assert set(self.refusing) <= set(may_refuse)
        if self.wrong:
            raise WrongResultError("aot_tune and numpy differ")
        facts = {"tuned": False, "variant": "dot_1"}
        return {name: {"facts": facts} for name in requests if name not in self.refusing}

    def race(self, entries: Sequence[tuple[str, str, str]]) -> list[Timing]:
        assert all(way == ("aot_tune" if name.startswith("dot") else name) for name, _, way in entries)
        return [Timing(way, (1000.0 * (i + 2), 1000.0 * (i + 4))) for i, (_, _, way) in enumerate(entries)]

    def drop(self, names: Sequence[str]) -> None:
        self.dropped += names


def test_a_race_on_a_cpu() -> None:
    fleet: Any = FakeFleet(refusing=["dot_2"])
    row = unseen_cpu.Race(fleet, ["numpy", "torch"], ["dot_1", "dot_2"]).run((3, 4, 5), by_columns=True)
    assert row["us"] == {"ours": [2, 4], "numpy": [3, 5], "torch": [4, 6]}
    assert row["variants"] == {"dot_1": 6}
    assert fleet.asked["dot_1"]["problem"] == {"dims": {"M": 3, "N": 4, "K": 5}, "order": {"b": [1, 0]}}
    assert fleet.dropped == ["aot_tune", "numpy", "torch", "dot_1", "dot_2"]
    assert unseen_cpu.fastest_of([row, {"shape": [1], "error": "off"}]) == {(3, 4, 5): 6}
    assert unseen_cpu.line_of(row) == (
        "3 x 4 x 5, b by columns: ours 3.0 us ± 16.7 %, numpy 4.0 us ± 12.5 %, torch 5.0 us ± 10.0 %; 1.37 x numpy; "
        "dot_1; best of 1 is dot_1, 6.0 us"
    )


def test_a_wrong_result_is_no_time() -> None:
    fleet: Any = FakeFleet(wrong=True)
    row = unseen_cpu.Race(fleet, ["numpy"]).run((3, 4, 5), by_columns=False)
    assert row == {"shape": [3, 4, 5], "by_columns": False, "error": "aot_tune and numpy differ"}
    assert unseen_cpu.line_of(row) == "3 x 4 x 5: aot_tune and numpy differ"
    assert fleet.dropped == ["aot_tune", "numpy"]


def test_a_worker_that_may_refuse_is_left_out() -> None:
    """Real processes: one computes the product, the other is asked for what its library does not have."""
    product = {"kind": "operator", "operator": "gemm", "problem": {"dims": {"M": 2, "N": 3, "K": 4}}, "copies": 1}
    other = product | {"operator": "softmax", "problem": {"dims": {"R": 2, "D": 3}}}
    workers = {"numpy": "numpy", "other": "numpy"}
    forced = {"other": "gemm:dot"}
    with Fleet(workers, threads=1, rounds=2, budget_ms=1, limit_s=1, forced=forced) as fleet:
        requests = {"numpy": product | {"key": "same"}, "other": other | {"key": "same"}}
        assert list(fleet.prepare(requests, may_refuse=["other"])) == ["numpy"]
        (timing,) = fleet.race([("numpy", "same", "numpy")])
        assert len(timing.rounds) == 2
        with pytest.raises(SystemExit, match="the worker of numpy fails: AssertionError: softmax"):
            fleet.prepare(requests)


# On a GPU.


class HostTorch:
    """torch whose tensors are on the host, with a GPU's cache of 1 MiB."""

    cuda = SimpleNamespace(get_device_properties=lambda _: SimpleNamespace(L2_cache_size=1 << 20))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, count: int, *, dtype: torch.dtype, device: str) -> torch.Tensor:
        assert device == "cuda"
        return torch.empty(count, dtype=dtype)

    def Generator(self, device: str) -> torch.Generator:  # noqa: N802 - as torch calls it
        assert device == "cuda"
        return torch.Generator()


class HostContender:
    def __init__(self, name: str, run: Any, sets: int) -> None:
        run(sets - 1)
        self.name = name


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The library's part is the operator's reference; all but graphs and times is real."""

    def reference(arena: gpu_race.Arena, size: int | None) -> Any:
        assert size is None

        def run(number: int) -> None:
            call = arena.calls[number]
            arrays = {n: v.numpy() if isinstance(v, torch.Tensor) else v for n, v in vars(call).items()}
            for name, value in arena.operator.reference(np, SimpleNamespace(**arrays)).items():
                if arrays[name] is not None:
                    arrays[name][...] = value

        return run

    monkeypatch.setattr(gpu_race, "torch", HostTorch())
    monkeypatch.setattr(gpu_race, "Contender", HostContender)
    monkeypatch.setattr(gpu_race, "race", lambda several, rounds: {c.name: [2.0] * rounds for c in several})
    monkeypatch.setattr(gpu_calls, "ours", reference)
    monkeypatch.setattr(gpu_calls, "facts", lambda arena, size: {"tuned": False, "variant": arena.task.operator})
    return monkeypatch


def measured(operator: str, form: str = "plain", **more: Any) -> list[dict[str, Any]]:
    plan = {"operator": operator, "dtype": "f32", "form": form, "shapes": [[3, 72], [1, 64]], "rounds": 2}
    return list(unseen.measure({**plan, "forced": "", "in_l2": False, **more}))


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("operator", [*ROWS, "rms_norm residual"])
def test_operators_on_rows_are_raced_with_torch(operator: str) -> None:
    """torch's own composition computes what the operator promises, or there is no time."""
    name, _, form = operator.partition(" ")
    found = measured(name, form or "plain")
    assert found == [
        {"shape": shape, "us": {"ours": [2, 2], "torch": [2, 2]}, "tuned": False, "variant": name}
        for shape in ([3, 72], [1, 64])
    ]


@pytest.mark.usefixtures("host")
def test_a_product_is_raced_with_torch() -> None:
    for form in ("plain", "gelu", "residual"):
        (row,) = measured("gemm", form, shapes=[[3, 16, 24]])
        assert row["us"] == {"ours": [2, 2], "torch": [2, 2]}


def test_what_is_wrong_or_refused_has_no_time(host: pytest.MonkeyPatch) -> None:
    host.setattr(gpu_calls, "ours", lambda arena, size: lambda number: arena.calls[number].out.fill_(1))
    assert all(row["error"].startswith("it differs from torch by ") for row in measured("softmax"))

    def refuse(number: int) -> None:
        raise ValueError(f"set {number}: not for this call")

    host.setattr(gpu_calls, "ours", lambda *_: refuse)
    (row, _) = measured("softmax", forced="rows_1")
    assert row["error"].startswith("ValueError: set ")
    host.setattr(gpu_calls, "ours", lambda *_: lambda number: None)
    (row, _) = measured("softmax", forced="rows_1")
    assert row == {"shape": [3, 72], "us": {"ours": [2, 2]}}


def test_one_wrong_element_is_noticed(host: pytest.MonkeyPatch) -> None:
    """That of a row's end weighs little in the norm of them all."""
    right = gpu_calls.ours

    def last_is_missing(arena: gpu_race.Arena, size: int | None) -> Any:
        def run(number: int) -> None:
            right(arena, size)(number)
            arena.calls[number].out[-1, -1] += 0.001

        return run

    host.setattr(gpu_calls, "ours", last_is_missing)
    (row,) = measured("layer_norm", shapes=[[64, 1001]])
    assert row["error"].startswith("it differs from torch by ")


def test_large_calls_are_raced_with_a_copy(host: pytest.MonkeyPatch) -> None:
    host.setattr(gpu_race, "copy_of", lambda moved: (lambda number: None, 2))
    host.setattr(gpu_race, "copy_by_kernel", lambda moved: (lambda number: None, 2))
    (row,) = measured("softmax", shapes=[[1001, 1001]])
    assert (row["us"], row["copy"]) == ({"ours": [2, 2], "torch": [2, 2]}, [2, 2])
    assert row["bytes"] == 2 * 4 * 1001 * 1001


@pytest.mark.usefixtures("host")
def test_inputs_are_cold_and_outputs_stay() -> None:
    """Sets of inputs take four times the cache together; weights of a norm count as such."""
    plan = {"operator": "rms_norm", "dtype": "bf16", "form": "plain"}
    task = unseen.task_of(plan, [128, 512])
    arena = gpu_race.Arena(task, cold_inputs=True)
    assert arena.sets == math.ceil(4 * (1 << 20) / (2 * (128 * 512 + 512)))
    assert len({call.x.data_ptr() for call in arena.calls}) == arena.sets
    assert len({call.weight.data_ptr() for call in arena.calls}) == arena.sets
    assert len({call.out.data_ptr() for call in arena.calls}) == 1
    assert gpu_race.Arena(task).sets == 1
    large = gpu_race.Arena(unseen.task_of(plan, [2048, 512]), cold_inputs=True)
    assert large.sets == 2
    assert len({call.out.data_ptr() for call in large.calls}) == 2


def test_tasks_are_problems_of_the_operators() -> None:
    task = unseen.task_of({"operator": "rms_norm", "dtype": "bf16", "form": "residual"}, (3, 64))
    assert task.problem.id == "R=3 D=64 +residual +residual_out +weight T=bf16"
    assert (task.kind, task.mode) == ("rows", "bf16")
    gelu = unseen.task_of({"operator": "gemm", "dtype": "f16", "form": "gelu"}, (3, 64, 32))
    assert gelu.problem.id == "M=3 N=64 K=32 b:10 +bias activation=gelu T=f16"
    assert (gelu.kind, unseen.task_of({"operator": "gemm", "dtype": "f16", "form": "plain"}, (3, 64, 32)).kind) == (
        "fused",
        "product",
    )


def test_an_operator_is_measured_in_the_forms_that_it_has() -> None:
    found = list(unseen.plans(["gemm", "softmax", "rms_norm"], ["bf16", "f16"], ["plain", "gelu", "residual"], 4, 1))
    assert [(p["operator"], p["form"]) for p in found if p["dtype"] == "f16"] == [
        ("gemm", "plain"), ("gemm", "gelu"), ("gemm", "residual"), ("softmax", "plain"), ("rms_norm", "plain"),
        ("rms_norm", "residual"),
    ]  # fmt: skip
    tf32 = unseen.plans(["gemm", "softmax"], ["bf16", "f32"], ["tf32"], 4, 1)
    assert [(p["operator"], p["dtype"]) for p in tf32] == [("gemm", "f32")]
    assert found[0]["shapes"] == products(4, 1)
    assert found[-1]["shapes"] == row_shapes(4, 1)


def test_the_best_of_forced_variants() -> None:
    first = [timed((1, 8), [5, 6, 7]), timed((2, 8), [5, 5, 5])]
    second = [timed((1, 8), [9, 9, 9]), {"shape": [2, 8], "error": "refused"}]
    assert unseen.best_of([first, second]) == {(1, 8): 6, (2, 8): 5}
    assert unseen.best_of([]) == {}


def test_the_command_writes_what_it_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    argv = ["unseen.py", "--operators", "softmax", "--dtypes", "f32", "--count", "3", "--in-l2", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(unseen, "run", lambda plan: [timed(s, [2, 2], torch=[4, 4]) for s in plan["shapes"]])
    assert unseen.main() == 0
    kept = json.loads(path.read_text())
    assert [t["name"] for t in kept["told"]] == ["softmax f32 plain", "softmax f32 plain, one row"]
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == kept["told"]
    (about,) = kept["rows"]
    assert (about["operator"], about["in_l2"], len(about["rows"])) == ("softmax", True, 3)
    assert np.isclose(kept["told"][0]["geometric_mean"], 2)
