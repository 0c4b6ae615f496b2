"""The plan of a library."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from bundled import OPERATORS

from aot_tune.bench.devices.cuda import device_of
from aot_tune.compile import generic_targets, target_by_name
from aot_tune.compile.cuda.gpu_targets import TARGETS, best_targets
from aot_tune.pipeline import session as sessions
from aot_tune.plan import library_plan as plan
from aot_tune.plan.preflight import idle_kernels
from aot_tune.spec import Kernel, stride
from aot_tune.support.progress import Progress


def test_generic_variants_are_compiled_for_what_the_devices_of_the_targets_run() -> None:
    def names(*targets: str) -> list[str]:
        return [t.name for t in generic_targets(map(target_by_name, targets))]

    assert names() == names("cpu-x86-64-v4") == ["cpu-x86-64"]
    assert names("cuda-sm_90a", "cuda-sm_120a") == ["cpu-x86-64", "cuda-ptx_80"]  # one for every later device
    assert names("hip-gfx942", "hip-gfx90a") == ["cpu-x86-64", "hip-gfx90a", "hip-gfx942"]  # one each
    assert names("hip-gfx950", "cuda-sm_80") == ["cpu-x86-64", "cuda-ptx_80", "hip-gfx950"]


def test_a_kernel_that_is_for_no_problem_of_the_workload_is_told() -> None:
    one = OPERATORS["softmax"]
    target = [target_by_name("cpu-x86-64")]
    assert idle_kernels([one], target) == []
    kernels = (*one.generics, Kernel("idle", "softmax/rows.cpp.j2", requires=(stride("x", 1) == 2,)))
    changed = dataclasses.replace(one, kernels=kernels)
    (told,) = idle_kernels([changed], target)
    assert "softmax/idle is tried on no problem: it requires (stride.x.1 == 2)" in told
    assert idle_kernels([changed], [target_by_name("cuda-sm_80")]) == []  # it is no kernel for GPUs


def test_a_gpu_also_runs_the_generic_variants_of_all_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would ship without having been verified on it."""
    options = {"AOT_TUNE_TARGETS": "cuda-sm_90a", "AOT_TUNE_MODE": "generic", "AOT_TUNE_CACHE": "off"}
    request = plan.Request(name="ops", prefix="mine", header="ops.h", operators=("softmax",), options=options)
    planned, paths, _ = plan.make_plan(request, {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    runs = {90: ["cuda-ptx_80", "cuda-sm_90", "cuda-sm_90a"], 80: ["cuda-ptx_80", "cuda-sm_80"], 75: []}
    for level, run in runs.items():
        gpu = device_of(
            name="GPU", uuid="GPU-1", capability=level, sm_count=1, l2_bytes=1 << 20, memory_bytes=1 << 30, driver="1"
        )
        monkeypatch.setattr(sessions, "devices", lambda _threads, _families, gpu=gpu: [gpu])
        monkeypatch.setattr(sessions, "native_targets", lambda level=level: list(best_targets([level])))
        session = sessions.Session(planned, paths, Progress())
        try:
            assert [t.name for t in TARGETS if session.devices_for(t) == [gpu]] == run
            assert session.device_for(target_by_name("cpu-x86-64")) is None
        finally:
            session.close()
