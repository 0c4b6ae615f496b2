"""Tolerances of the CUDA family, on the host's tensors: TF32 where it is declared, and what a reference may make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bundled import OPERATORS

torch = pytest.importorskip("torch")

from aot_tune.bench.protocol.measurement_records import Check  # noqa: E402
from aot_tune.bench.worker.cuda_memory import Truths, tensor_of, torch_dtype  # noqa: E402
from aot_tune.bench.worker.cuda_truth import draw_inputs, exact_values, write_limits  # noqa: E402
from aot_tune.bench.worker.inputs import layout  # noqa: E402
from aot_tune.bench.worker.reference_results import read_limits  # noqa: E402
from aot_tune.spec import Kernel, Operator, Problem, Tensor, dims, problem  # noqa: E402

HOST = torch.device("cpu")


def product(folder: Path, one: Problem) -> tuple[Truths, Any, Any]:
    """What the bundled gemm is compared with on a problem, and its operands in float32."""
    operator, check = OPERATORS["gemm"].concrete(one.dtypes), Check(problem=one)
    write_limits(operator, check, folder / "limits", 5, HOST)
    storages = draw_inputs(operator, check, 5, HOST)
    exact = exact_values(operator, check, storages, HOST)
    a, b = (
        tensor_of(layout(operator, check, t), storages[t.name], torch_dtype(t)).float() for t in operator.tensors[:2]
    )
    return Truths(operator.tensor("out"), exact["out"], read_limits(folder / "limits")["out"]), a, b


def split(a: Any, b: Any, parts: int) -> Any:
    """The product as a kernel computes it that splits K."""
    sums = [x @ y for x, y in zip(a.chunk(parts, 1), b.chunk(parts, 0), strict=True)]
    total = sums[0]
    for one in sums[1:]:
        total = total + one
    return total


def test_tf32_passes_where_the_problem_has_it_and_nowhere_else(tmp_path: Path) -> None:
    def rounded(x: Any) -> Any:
        return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    shape = {"M": 96, "N": 160, "K": 1024}
    tf32, a, b = product(tmp_path / "tf32", problem(**shape, attributes={"math": "tf32"}))
    plain, c, d = product(tmp_path / "plain", problem(**shape))
    for parts in (1, 4, 16):
        assert tf32.judge(split(rounded(a), rounded(b), parts))[1] < 0.9
        assert plain.judge(split(c, d, parts))[1] < 0.9
        assert plain.judge(split(rounded(c), rounded(d), parts))[1] > 1


def made(reference: Any) -> Operator:
    (n,) = dims("N")
    tensors = (Tensor("x", (n,), "T"), Tensor("y", (n,), "T", output=True))
    return Operator(
        name="made",
        dims=("N",),
        dtypes={"T": ("f32", "bf16")},
        tensors=tensors,
        flops=n,
        reference=reference,
        workload=(problem(N=8),),
        kernels=(Kernel("generic", "made/generic.cpp.j2", generic=True),),
    )


ARRAYS = {
    "zeros": lambda xp, n: xp.zeros((n,)),
    "ones": lambda xp, n: xp.ones(n),
    "arange": lambda xp, n: xp.arange(n),
    "linspace": lambda xp, n: xp.linspace(0.0, 1.0, n),
    "full": lambda xp, n: xp.full((n,), 0.1),
    "eye": lambda xp, n: xp.eye(n)[0],
    "asarray": lambda xp, n: xp.asarray([0.1] * n),
    "compared": lambda xp, n: xp.where(xp.arange(n) > 3, xp.asarray(0.1), xp.zeros(n)),
    "tril": lambda xp, n: xp.tril(xp.ones((n, n)))[n // 2],
}
"""Arrays that a reference makes, of so many elements."""


def test_arrays_that_a_reference_makes_are_where_the_others_are() -> None:
    """The device `meta` is as far from the host's as a GPU is: what is on both is refused there, too."""
    away, check = torch.device("meta"), Check(problem=problem(N=8, dtypes={"T": "bf16"}))
    storages = {"x": torch.empty(16, dtype=torch.uint8, device=away)}
    for make in ARRAYS.values():
        operator = made(lambda xp, call, make=make: {"y": call.x * 1.0 + make(xp, call.x.shape[0])})
        concrete = operator.concrete(check.problem.dtypes)
        for wide in (True, False):
            assert exact_values(concrete, check, storages, away, wide=wide)["y"].device == away
        assert torch.get_default_dtype() == torch.float32
        assert torch.zeros(1).device == HOST
    with pytest.raises((RuntimeError, NotImplementedError)):  # what it would be elsewhere
        _ = torch.empty(8, device=away) + torch.arange(8)
