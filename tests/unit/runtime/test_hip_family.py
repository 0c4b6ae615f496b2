"""What a build does about AMD's devices, which the bench does not know: it says so, and measures nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot_tune.bench.devices.family import caution_of, devices, family, policy_for, runs_on
from aot_tune.bench.protocol.measurement_records import Policy
from aot_tune.pipeline.session import Session
from aot_tune.plan.library_plan import Plan, Request, make_plan
from aot_tune.support.errors import WorkerError
from aot_tune.support.progress import Progress


def test_there_are_no_devices_and_the_policy_is_the_common_one() -> None:
    base = Policy()
    assert devices("hip", 2) == []
    assert policy_for("hip", base) is base
    assert (runs_on("hip", "numpy"), runs_on("hip", "torch.nn")) == (False, True)
    assert "untested on real cards" in caution_of("hip")
    assert caution_of("cpu") == caution_of("cuda") == ""
    with pytest.raises(WorkerError, match="there is no device family 'rocm'"):
        family("rocm")


def planned(tmp_path: Path, operator: str, **options: str) -> tuple[Plan, Session]:
    """The plan of a library of one bundled operator, and its session."""
    request = Request(name="ops", prefix="mine", header="ops.h", operators=(operator,), options=options)
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "AOT_TUNE_CACHE_DIR": str(tmp_path / "cache")}
    plan, paths, _ = make_plan(request, environment)
    return plan, Session(plan, paths, Progress())


def test_an_operator_without_a_generic_kernel_for_them_has_nothing_there(tmp_path: Path) -> None:
    """Its Triton kernels could be compiled for them, but a call that all of those refuse would have no answer."""
    plan, session = planned(tmp_path, "softmax", AOT_TUNE_TARGETS="hip-gfx942", AOT_TUNE_CACHE="off")
    try:
        assert (plan.baselines, plan.families) == (("cpu-x86-64", "hip-gfx942"), ("cpu", "hip"))
        assert [n for n in plan.notes if "untested on real cards" in n]
        operator = session.operators["softmax"].operator
        (gfx942,) = session.targets
        assert not session.answers(operator, gfx942)
        assert session.kernels_for(operator, gfx942) == []
        assert session.ask(operator, gfx942) == []
        assert {e.candidate.target for e in session.generic_entries(operator)} == {"cpu-x86-64"}
    finally:
        session.close()


def test_without_tuning_the_plan_still_knows_the_architectures(tmp_path: Path) -> None:
    options = {"AOT_TUNE_TARGETS": "hip-gfx950;cuda-sm_80", "AOT_TUNE_MODE": "generic", "AOT_TUNE_CACHE": "off"}
    plan, session = planned(tmp_path, "softmax", **options)
    session.close()
    assert plan.targets == ()
    assert plan.baselines == ("cpu-x86-64", "cuda-ptx_80", "hip-gfx950")
