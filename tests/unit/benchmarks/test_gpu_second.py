"""The benchmark's second library: called from C beside the first, and its results put in the first one's place."""

from __future__ import annotations

import importlib.util
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import linked
import numpy as np
import pytest
import torch
from places import BENCHMARKS, SHARED

sys.path.insert(0, str(BENCHMARKS))

import gpu_shares
import gpu_tables
from gpu_second import SecondLibrary
from gpu_tasks import SECOND, Task, chosen_to_compile, tasks

from aot_tune.compile.cuda.visible_gpus import CudaDevice, DeviceQuery
from aot_tune.spec import Call, problem

NAME = "liblinked_ops.so"


@pytest.fixture(scope="module")
def library(built: linked.Built) -> SecondLibrary:
    return SecondLibrary(built.library.parent, NAME)


def call(**given: object) -> Call:
    return Call(**{"bias": None, "residual": None, "activation": "none", **given})


@pytest.mark.slow
def test_it_computes_what_its_module_computes(library: SecondLibrary, ops) -> None:
    a, b = torch.rand(5, 7), torch.rand(9, 7).T
    bias, residual, out = torch.rand(9), torch.rand(5, 9), torch.empty(5, 9)
    given = call(a=a, b=b, bias=bias, residual=residual, activation="relu", out=out)
    bound = library.bind(linked.gemm_operator(), problem(M=5, N=9, K=7), given)
    bound.run(0, torch.empty(1 << 20, dtype=torch.uint8))
    wanted = ops.gemm(a.numpy(), b.numpy(), bias.numpy(), residual.numpy(), activation="relu")
    np.testing.assert_array_equal(out.numpy(), wanted)
    told = bound.explain()
    assert told["variant"] == ops.explain("gemm", a=a, b=b, bias=bias, residual=residual, activation="relu")["variant"]
    assert (told["operator"], told["tuned"]) == ("gemm", "no")
    bound.run(0, None)
    np.testing.assert_array_equal(out.numpy(), wanted)


_IN_WORKSPACES = """
import sys, linked, torch
from pathlib import Path
from gpu_second import SecondLibrary
from aot_tune.spec import Call, problem
library = SecondLibrary(Path(sys.argv[1]), sys.argv[2])
given = Call(a=torch.rand(3, 6), b=torch.rand(6, 8), bias=None, residual=None, out=torch.empty(3, 8), activation="none")
bound = library.bind(linked.gemm_operator(), problem(M=3, N=8, K=6), given)
for workspace in (None, *(torch.empty(size, dtype=torch.uint8) for size in (100, 99))):
    told = bound.explain(workspace)
    bound.run(0, workspace)
    print(told["variant"], told["workspace"], round(float((given.out - given.a @ given.b).mean())))
"""


def test_a_workspace_that_is_too_small_is_for_another_variant(built: linked.Built) -> None:
    """On level 2, where a variant needs one; a process reads the level once."""
    places = os.pathsep.join(str(p) for p in (BENCHMARKS.parent, BENCHMARKS, SHARED))
    done = subprocess.run(
        [sys.executable, "-c", _IN_WORKSPACES, str(built.library.parent), NAME],
        text=True,
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": places, "AOT_TUNE_CPU_LEVEL": "2"},
    )
    assert done.stdout.splitlines() == ["small_2 100 10", "small_2 100 10", "plain 0 0"], done.stderr


def test_scalars_are_passed_in_their_own_types(library: SecondLibrary, ops) -> None:
    x, weight, out = torch.rand(4, 6), torch.rand(6), torch.empty(4, 6)
    given = Call(x=x, weight=weight, residual=None, eps=0.5, out=out, residual_out=None)
    library.bind(linked.norm_operator(), problem(M=4, N=6), given).run(0, torch.empty(64, dtype=torch.uint8))
    np.testing.assert_array_equal(out.numpy(), ops.rms_norm(x.numpy(), weight.numpy(), eps=0.5))


def test_a_call_that_fails_says_why(library: SecondLibrary) -> None:
    bad = call(a=torch.rand(5, 7), b=torch.rand(8, 9), out=torch.empty(5, 9))
    with pytest.raises(RuntimeError, match=r"status 5: .*axis 0 has extent 8, wanted K = 7"):
        library.bind(linked.gemm_operator(), problem(M=5, N=9, K=7), bad).run(0, torch.empty(64, dtype=torch.uint8))


def test_it_tells_what_it_was_built_with(library: SecondLibrary, built: linked.Built) -> None:
    assert library.manifest()["library"] == built.spec.name
    assert not library.has_kernels_of("cublaslt")


def test_a_folder_without_a_library_is_told(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"holds 0 files libaot_tune_ops\.so"):
        SecondLibrary(tmp_path)


def test_tools_of_a_backend_tell_that_its_kernels_are_there(built: linked.Built, monkeypatch) -> None:
    library = SecondLibrary(built.library.parent, NAME)
    monkeypatch.setattr(library, "manifest", lambda: {"tools": {"cublaslt.version": "12", "nvcc.version": "13"}})
    assert library.has_kernels_of("cublaslt")
    assert not library.has_kernels_of("cxx")


TASK = Task("gemm", problem(M=64, N=64, K=64), "product", "bf16", "64 to 256", 1, 1, known=True)


def test_the_second_library_is_judged_in_the_same_rounds() -> None:
    us = {"aot_tune": [1.0, 2.0], "without": [2.0, 4.0], "torch.matmul": [1.0, 2.0]}
    result = gpu_tables.Result(TASK, us, {"kernel": "cublaslt"}, beside={"without": {"kernel": "cutlass"}})
    other = result.seen_from("without")
    assert other is not None
    assert (result.ratio("torch.matmul"), other.ratio("torch.matmul")) == (1.0, 0.5)
    assert math.isclose(result.ratio("without"), 2.0)
    assert other.facts == {"kernel": "cutlass"}
    assert set(other.us) == {"aot_tune", "torch.matmul"}
    assert set(result.without("without").us) == {"aot_tune", "torch.matmul"}


def test_an_error_of_the_second_library_is_its_own() -> None:
    us = {"aot_tune": [1.0, 2.0], "torch.matmul": [1.0, 2.0]}
    result = gpu_tables.Result(TASK, us, beside={"without": {"error": "off"}})
    other = result.seen_from("without")
    assert other is not None
    assert (result.error, other.error) == ("", "off")
    assert gpu_tables.Result(TASK, us).seen_from("without") is None  # it took no part
    assert gpu_tables.Result(TASK, error="lost").seen_from("without") is not None


def test_a_copy_that_torch_makes_slowly_is_no_measure() -> None:
    size = 1 << 30
    rows = Task("softmax", problem(R=64, D=64), "rows", "bf16", "", size, 1, known=True)
    fastest = size / 4e12 * 1e6
    for took, share in ((fastest / 0.94, 0.94), (fastest / 0.6, 1.0)):
        result = gpu_tables.Result(rows, {"aot_tune": [fastest, fastest], "copy": [took, took]})
        assert result.of_copy(4e12) == pytest.approx(1 / share)
    assert math.isnan(gpu_tables.Result(rows, {"aot_tune": [1.0, 1.0]}).of_copy(4e12))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """`cuda.py`, under a name that no package has."""
    spec = importlib.util.spec_from_file_location("benchmark_cuda", BENCHMARKS / "cuda.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its records look themselves up
    spec.loader.exec_module(module)
    return module


def test_all_ratios_are_printed_a_second_time_for_the_second_library(script: ModuleType) -> None:
    us = {"aot_tune": [1.0] * 3, SECOND: [2.0] * 3, "torch.matmul": [1.5] * 3}
    result = gpu_tables.Result(TASK, us, {"kernel": "cublaslt"}, beside={SECOND: {"kernel": "cutlass"}})
    one = script.Pass("eager", [TASK], 1.0, second="stage", results=[result])
    text, found = script.make_report([one], 1e12)
    assert [text.count(f"### Requirements, {name}\n") for name in found] == [1, 1]
    whole, other = found.values()
    assert [v.what for v in whole] == [v.what for v in other]
    assert [v.met for v in whole] == [True, True]
    assert [v.measured.split(" x")[0].split("least ")[-1] for v in other] == ["0.750", "0.750"]
    assert "| cutlass |" in text


def test_a_second_library_with_a_vendors_variant_is_told(script: ModuleType) -> None:
    us = {"aot_tune": [1.0] * 3, SECOND: [2.0] * 3, "torch.matmul": [1.5] * 3}
    result = gpu_tables.Result(TASK, us, beside={SECOND: {"kernel": "cublaslt_fused"}})
    _, found = script.make_report([script.Pass("eager", [TASK], 1.0, second="stage", results=[result])], 1e12)
    assert not found[SECOND][0].met
    assert found[SECOND][0].measured == "1 of 1 are"


def test_without_a_second_library_the_first_is_seen_with_vendor_variants_off(script: ModuleType) -> None:
    result = gpu_tables.Result(TASK, {"aot_tune": [1.0] * 3, "torch.matmul": [1.5] * 3})
    passes = [script.Pass("eager", [TASK], 1.0, results=[result])]
    passes.append(script.Pass("off", [TASK], 1.0, exclude="cublaslt*", results=[result]))
    text, found = script.make_report(passes, 1e12)
    assert list(found) == ["with vendor variants", "with vendor variants switched off"]
    assert "`--without-vendor` shows" in text


def test_what_max_autotune_compiles_is_of_both_kinds_and_of_all_modes() -> None:
    found = tasks(["gemm", "softmax", "rms_norm"])
    for count in (1, 6, 20):
        chosen = chosen_to_compile(found, count)
        kinds = [t.kind for t in chosen]
        assert kinds.count("rows") == kinds.count("fused") == count
        assert len({t.key for t in chosen}) == 2 * count
    assert kinds[:6] == ["rows", "rows", "fused"] * 2
    again = [*chosen_to_compile(found, 8), *chosen_to_compile(found, 12, after=8)]
    assert sorted(t.key for t in again) == sorted(t.key for t in chosen)
    fused = [t for t in chosen if t.kind == "fused"]
    groups = {(t.mode, t.group) for t in found if t.kind == "fused"}
    assert {(t.mode, t.group) for t in fused[: len(groups)]} == groups
    few = [t for t in found if (t.kind, t.mode, t.group) == ("fused", "f32 tf32", "above")]
    early = {t.key for t in chosen_to_compile(found, len(few) * len(groups))}
    assert {t.key for t in few} < early  # a small group is whole early


def test_gpus_have_each_a_share_of_a_pass_and_its_results_are_in_the_order_of_its_tasks(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = chosen_to_compile(tasks(["softmax", "gemm"]), 7)
    ran: dict[str, list[Task]] = {}

    def worker(one: Any, left: list[Task], seconds: float, rounds: int, gpu: str) -> None:
        ran[gpu] = list(left)
        one.results.extend(gpu_tables.Result(t, {"aot_tune": [1.0] * rounds}) for t in left)

    monkeypatch.setattr(script, "run_worker", worker)
    one = script.Pass("eager", found, 60.0)
    script.run_pass(one, 3, ["GPU-c", "GPU-a", "GPU-b"])
    assert set(ran) == {"GPU-c", "GPU-a", "GPU-b"}
    for kind in ("rows", "fused"):
        assert sorted(sum(t.kind == kind for t in share) for share in ran.values()) == [2, 2, 3]
    assert [r.task.key for r in one.results] == [t.key for t in found]


def test_what_fails_on_one_gpu_ends_the_pass(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that would outlive the test is killed, and none takes over from it."""
    began = threading.Event()

    def worker(one: Any, left: list[Task], seconds: float, rounds: int, gpu: str) -> str:
        if gpu == "0":
            began.wait(30)
            raise OSError("no room")
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], text=True)
        one.processes.append(process)
        began.set()
        process.wait()
        return str(left[0].key)

    monkeypatch.setattr(script, "run_worker", worker)
    one = script.Pass("eager", tasks(["softmax"])[:4], 60.0)
    with pytest.raises(OSError, match="no room"):
        script.run_pass(one, 3, ["0", "1"])
    assert [p.returncode for p in one.processes] == [-signal.SIGKILL]
    assert one.results == []


def test_gpus_that_share_a_table_are_there_and_of_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    models = {"GPU-c": "NVIDIA H200", "GPU-a": "NVIDIA H200", "GPU-b": "NVIDIA H100"}
    devices = tuple(
        CudaDevice(
            ordinal=i, name=m, uuid=u, capability=90, sm_count=132, l2_bytes=1, memory_bytes=1, shared_bytes=232448
        )
        for i, (u, m) in enumerate(models.items())
    )
    monkeypatch.setattr(gpu_shares, "visible_devices", lambda: DeviceQuery(devices=devices))
    assert gpu_shares.named_gpus(2) == ["GPU-c", "GPU-a"]
    with pytest.raises(SystemExit, match="NVIDIA H100 and NVIDIA H200 would be in one table"):
        gpu_shares.named_gpus(3)
    with pytest.raises(SystemExit, match="--gpus 4: 3 are visible: ask for no more"):
        gpu_shares.named_gpus(4)
    monkeypatch.setattr(gpu_shares, "visible_devices", lambda: DeviceQuery(error="no NVIDIA driver here"))
    with pytest.raises(SystemExit, match=r"0 are visible \(no NVIDIA driver here\)"):
        gpu_shares.named_gpus(2)


def test_a_workspace_that_the_vendor_has_not_is_told(script: ModuleType) -> None:
    us = {"aot_tune": [1.0] * 3, "torch.matmul": [1.5] * 3}
    for taken, told in ((32 << 20, "| cutlass |"), (63 << 20, "| cutlass, workspace 63.0 MiB |")):
        result = gpu_tables.Result(TASK, us, {"kernel": "cutlass", "workspace": taken})
        text, _ = script.make_report([script.Pass("eager", [TASK], 1.0, results=[result])], 1e12)
        assert told in text


@pytest.mark.parametrize(
    ("given", "names", "workspace"),
    [
        ([], ["eager", "max-autotune"], None),
        (["--no-eager-pass", "--workspace", "32"], ["max-autotune"], 32 << 20),
        (["--compile-problems", "0"], ["eager"], None),
    ],
)
def test_passes_are_those_that_are_asked_for(script: ModuleType, monkeypatch, given, names, workspace) -> None:
    monkeypatch.setattr(sys, "argv", ["cuda.py", "--no-vendor-pass", "--seconds", "100", *given])
    passes = script.make_passes(script.parse_arguments())
    assert [p.name for p in passes] == names
    assert [p.workspace for p in passes] == [workspace] * len(names)
    assert sum(p.seconds for p in passes) == pytest.approx(100)


def test_what_an_earlier_run_had_is_left_out(script: ModuleType, monkeypatch) -> None:
    given = ["--no-vendor-pass", "--no-eager-pass", "--operators", "gemm", "--compile-problems", "3"]
    monkeypatch.setattr(sys, "argv", ["cuda.py", *given, "--compile-after", "2"])
    (late,) = script.make_passes(script.parse_arguments())
    monkeypatch.setattr(sys, "argv", ["cuda.py", *given])
    (early,) = script.make_passes(script.parse_arguments())
    assert [t.key for t in early.tasks[2:]] == [t.key for t in late.tasks[:1]]
    assert len(late.tasks) == 3
    monkeypatch.setattr(sys, "argv", ["cuda.py", *given, "--compile-after", "-1"])
    with pytest.raises(SystemExit):
        script.parse_arguments()


def test_nothing_to_measure_is_told(script: ModuleType, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["cuda.py", "--no-vendor-pass", "--no-eager-pass", "--compile-problems", "0"])
    with pytest.raises(SystemExit, match="--no-eager-pass leaves only max-autotune's"):
        script.make_passes(script.parse_arguments())
