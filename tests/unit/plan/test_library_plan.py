"""The plan of a library."""

from __future__ import annotations

import dataclasses

from bundled import OPERATORS

from aot_tune.compile import generic_targets, target_by_name
from aot_tune.plan.preflight import idle_kernels, unchecked
from aot_tune.spec import Kernel, stride


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


def test_checks_that_are_left_out_are_told_for_kernels_of_the_targets_alone() -> None:
    one = OPERATORS["flash_attention"]
    (here,), (on_gpus,) = (unchecked([one], [target_by_name(t)]) for t in ("cpu-x86-64-v3", "cuda-sm_90a"))
    assert here.endswith("derived checks are left out: they take more than 8 MiB")
    assert ", of those for triton_256 " in on_gpus
