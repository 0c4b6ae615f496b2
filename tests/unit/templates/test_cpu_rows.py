"""CPU row kernels on elements of 16 bits pass all checks, on each level of instructions that this machine has."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from bundled import OPERATORS
from cpu_calls import in_turn
from cpu_kernels import TARGETS, CpuKernel

from aot_tune.bench.devices.family import devices
from aot_tune.bench.host.bench import Bench
from aot_tune.bench.host.runner import Entrant
from aot_tune.bench.protocol.measurement_records import Policy
from aot_tune.render import candidate_for, requirements
from aot_tune.spec import Operator, Target
from aot_tune.spec.load_operators import bundled_templates

pytestmark = pytest.mark.slow

ROOTS = (bundled_templates(),)
ROWS = [OPERATORS[name] for name in ("softmax", "rms_norm", "layer_norm", "silu_mul")]
CASES = [
    (op, kernel, target, dtype)
    for op in ROWS
    for kernel, targets in (("generic", TARGETS[:1]), ("rows", TARGETS), ("streaming", TARGETS[-1:]))
    for target, dtype in in_turn(targets, ("bf16", "f16"))
]
NAMES = [f"{op.name}-{kernel}-{target.name}-{dtype}" for op, kernel, target, dtype in CASES]


@pytest.fixture(name="bench", scope="module")
def fixture_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("bench")
    with Bench(devices("cpu", 2)[0], Policy(), scratch=folder, threads=2, log=lambda _line: None) as made:
        yield made


@pytest.mark.parametrize(("op", "kernel", "target", "dtype"), CASES, ids=NAMES)
def test_kernels_are_right(bench: Bench, tmp_path: Path, op: Operator, kernel: str, target: Target, dtype: str) -> None:
    config = next(op.kernel(kernel).configs(target.facts))
    candidate = candidate_for(op, op.kernel(kernel), config, target, dtypes={"T": dtype})
    made = CpuKernel(tmp_path, ROOTS, op, kernel, target, config, {"T": dtype})
    entrant = Entrant(
        candidate=SimpleNamespace(id=candidate.id),
        shared_object=made.path,
        symbol=made.symbol,
        code=hashlib.sha256(made.path.read_bytes()).hexdigest(),
        requires=requirements(op, candidate),
    )
    on = next(p for p in op.workload_for("cpu") if p.dims["R"] == 256)
    prepared = bench.prepare(Path(op.folder), op, msgspec.structs.replace(on, dtypes={"T": dtype}))
    found = bench.verify(prepared, entrant)
    assert (found.status, found.reason) == ("ok", "")


def test_few_problems_of_the_workload_are_narrow_and_f16_can_follow_bf16() -> None:
    of: dict[str, list[str]] = {"f32": [], "bf16": [], "f16": []}
    for op in ROWS:
        for on in op.workload_for("cpu"):
            plain = msgspec.structs.replace(on, dtypes={})
            of[on.dtypes.get("T", "f32")].append(f"{op.name} {plain.id}")
    assert 3 * (len(of["bf16"]) + len(of["f16"])) <= len(of["f32"])
    assert set(of["f16"]) <= set(of["bf16"])
    assert {p.split()[0] for p in of["f16"]} == {op.name for op in ROWS}
