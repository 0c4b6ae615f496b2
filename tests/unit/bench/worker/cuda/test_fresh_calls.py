"""What a candidate on a GPU finds where calls are fresh and where they are repeated, on the host's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aot_tune.bench.devices.family import policy_for
from aot_tune.bench.protocol.measurement_records import Check, Policy
from aot_tune.spec import problem
from aot_tune.spec.load_operators import bundled_templates, load_operator

torch = pytest.importorskip("torch")

from aot_tune.bench.worker.cuda.fresh_calls import FreshCalls  # noqa: E402
from aot_tune.bench.worker.cuda.host_engine import HostEngine  # noqa: E402
from aot_tune.bench.worker.cuda.state import ProblemState  # noqa: E402


def outputs_found(folder: Path, *, fresh: bool) -> list[Any]:
    """The output's bytes that each call of a play finds. They are 3 before the play; each call leaves 5 in them."""
    operator, engine = load_operator(bundled_templates() / "softmax"), HostEngine()
    check = Check(problem=problem(R=4, D=64, dtypes={"T": "f32"}))
    calls = ProblemState(engine, operator, check, folder, policy_for("cuda", Policy()), 1 << 20).exact()
    storage, found = calls.storages["out"], []
    storage.fill_(3)

    def call() -> int:
        found.append(storage.clone())
        storage.fill_(5)
        return 0

    FreshCalls(engine, call, calls, call_ns=1e9).play(fresh)
    return found


@pytest.mark.parametrize(("fresh", "byte"), [(True, 0xFF), (False, 3)])
def test_outputs_are_written_before_each_call_of_both_kinds(tmp_path: Path, fresh: bool, byte: int) -> None:
    """Else caches differ between the kinds."""
    found = outputs_found(tmp_path, fresh=fresh)
    assert len(found) > 1
    assert all((one == byte).all() for one in found)
