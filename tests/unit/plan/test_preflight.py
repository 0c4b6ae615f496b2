"""What is looked at before anything is built: whom a library is for, what its plan leaves idle or unchecked."""

import dataclasses
import platform
from pathlib import Path

import pytest
from bundled import OPERATORS

from aot_tune.compile import generic_targets, target_by_name
from aot_tune.plan.preflight import caution_of, idle_kernels, machine_of, unchecked, with_compiler
from aot_tune.spec import Kernel, stride
from aot_tune.support.errors import AotTuneError, BuildError, ToolchainError

NAME = "aarch64-linux-gnu-g++"
ARM, V3, GPU = map(target_by_name, ("cpu-aarch64", "cpu-x86-64-v3", "cuda-sm_90a"))


@pytest.mark.parametrize(
    ("targets", "compiler", "machine"),
    [
        ([V3, GPU], "x86_64-linux-gnu", "x86_64"),
        ([V3], "amd64-unknown-freebsd", "x86_64"),
        ([GPU], "", "x86_64"),
        ([ARM], "aarch64-linux-gnu", "aarch64"),
        ([], "aarch64-redhat-linux", "aarch64"),
    ],
)
def test_the_compiler_says_which_machine_a_library_is_for(targets, compiler, machine) -> None:
    assert machine_of(targets, compiler) == machine


@pytest.mark.parametrize(
    ("targets", "compiler", "words"),
    [
        ([V3], "riscv64-linux-gnu", "the C.. compiler is for riscv64-linux-gnu.*compiled for x86_64 and aarch64"),
        ([ARM], "x86_64-linux-gnu", "target cpu-aarch64 is for aarch64.*package g..-aarch64-linux-gnu"),
        ([V3], "aarch64-linux-gnu", "target cpu-x86-64-v3 is for x86_64.*g..-x86-64-linux-gnu.*=cpu-aarch64"),
        ([V3, ARM], "x86_64-linux-gnu", "target cpu-aarch64 is for aarch64.*one compiler makes all of a library"),
        ([ARM, GPU], "aarch64-linux-gnu", "targets cuda-sm_90a.*leave them out, AOT_TUNE_TARGETS=cpu-aarch64"),
    ],
)
def test_targets_that_the_compiler_is_not_for(targets, compiler, words) -> None:
    with pytest.raises(AotTuneError, match=f"(?s){words}"):
        machine_of(targets, compiler)


def test_a_cross_compiler_is_found_by_its_usual_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    bare = {"PATH": str(tmp_path)}
    with pytest.raises(ToolchainError, match=f"(?s){NAME.replace('+', '.')} is not on PATH.*g..-aarch64-linux-gnu"):
        with_compiler(bare, [ARM])
    (tmp_path / NAME).touch(mode=0o755)
    assert with_compiler(bare, [ARM])["CXX"] == NAME
    assert with_compiler(bare, [V3, GPU]) == with_compiler(bare, [GPU]) == bare
    assert with_compiler({**bare, "CXX": "mine"}, [ARM])["CXX"] == "mine"


def test_nothing_is_measured_on_another_machine() -> None:
    assert not caution_of("x86_64", "tune")
    assert "nothing is measured" in caution_of("aarch64", "auto")
    with pytest.raises(BuildError, match=r"(?s)AOT_TUNE_MODE=tune: nothing is measured on aarch64.*fix: use the mode"):
        caution_of("aarch64", "tune")


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
    assert here == "derived checks of more than 8 MiB are left out: flash_attention (7 of 101)"
    assert ", of those for triton_256 " in on_gpus
