"""Faults that only a real GPU has: endless kernels, illegal accesses, a busy GPU, clocks that fall."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from building import build_project, compile_first, twice_templates
from environments import ROOT

from aot_tune.bench.devices.family import family
from aot_tune.bench.host.findings import Checks
from aot_tune.compile.toolkit import find_compute_sanitizer
from aot_tune.database import MeasurementStore
from aot_tune.pipeline.failures import Failures
from aot_tune.pipeline.measuring.lazy_bench import BenchFiles
from aot_tune.pipeline.shipping.sanitize import sanitize_kept
from aot_tune.spec import problem
from aot_tune.spec.load_operators import load_operator

Make = Callable[..., Any]

BUSY = """
import torch
a = torch.randn(8192, 8192, device="cuda")
print("busy", flush=True)
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
"""


def test_a_good_candidate_is_ok_and_its_samples_carry_the_state_of_the_device(bed: Any) -> None:
    measured = bed.screen("none")
    assert measured.status == "ok", measured.reason
    assert (bool(measured.screen), measured.bitwise) == (True, True)
    seen = measured.seen
    assert seen is not None
    assert seen.unit.startswith(("GPU-", "MIG-"))
    assert seen.driver.count(".") >= 1
    assert seen.clock_mhz is not None
    assert seen.clock_mhz[0] > 100
    assert seen.memory_mhz is not None
    assert seen.celsius is not None
    assert 10 < seen.celsius[0] <= seen.celsius[1] < 110
    assert seen.watts is not None
    assert seen.watts[0] > 10


def test_an_endless_kernel_is_killed_and_the_next_candidate_runs(make_bed: Make) -> None:
    """Row 5: SIGKILL frees the GPU."""
    bed = make_bed(check=3.0, verify=3.0, verify_least=3.0)
    assert bed.screen("none").status == "ok"
    begin = time.monotonic()
    measured = bed.screen("endless")
    took = time.monotonic() - begin
    assert measured.status == "timeout", measured.reason
    assert took < 20, f"a deadline of 3 s took {took:.1f} s"
    begin = time.monotonic()
    assert bed.screen("none").status == "ok"
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize(
    ("fault", "pattern"), [("illegal", r"illegal memory access \(700\)"), ("misaligned", r"misaligned address \(716\)")]
)
def test_a_sticky_error_costs_only_its_candidate(bed: Any, fault: str, pattern: str) -> None:
    """Row 6: the context is spoiled, the worker goes, and a good candidate right after is unaffected."""
    measured = bed.screen(fault)
    assert measured.status == "crashed", measured
    assert re.search(pattern, measured.reason), measured.reason
    good = bed.screen("none")
    assert good.status == "ok", good.reason


def test_what_is_read_past_a_tensor_is_seen_where_memory_ends(bed: Any) -> None:
    """Guards do not see it. One check's tensors end where mapped memory ends."""
    measured = bed.screen("reads_past")
    assert measured.status == "crashed", measured
    pattern = r"illegal memory access \(700\) .*end where memory that may be read ends"
    assert re.search(pattern, measured.reason), measured.reason
    assert bed.screen("none").status == "ok"


@pytest.mark.skipif(find_compute_sanitizer(os.environ) is None, reason="no compute-sanitizer")
@pytest.mark.parametrize(
    ("tool", "faults", "report"),
    [("memcheck", ("none", "reads_past"), "Invalid __global__ read"), ("racecheck", ("shared_race",), "Race reported")],
)
def test_what_compute_sanitizer_reports_does_not_ship(
    bed: Any, monkeypatch: pytest.MonkeyPatch, tool: str, faults: tuple[str, ...], report: str
) -> None:
    monkeypatch.setattr(BenchFiles, "link", lambda _files, _backend, made, _options: linked[made.digest])
    variants = [bed.entry(fault) for fault in faults]
    linked = {variant.made.digest: Path(variant.shared) for variant in variants}
    lines: list[str] = []
    session: Any = SimpleNamespace(
        failures=Failures(),
        operators={"twice": bed.operator},
        device_for=lambda _target: bed.device,
        progress=SimpleNamespace(line=lines.append, now=time.monotonic, count=lambda *_, **__: None),
        policy=lambda name: family(name).policy(),
        checks=Checks(),
        store=MeasurementStore(None),
        verdicts={},
        executor=None,
        environment=os.environ,
        jobs_of=lambda _backend: SimpleNamespace(count=1),
        time=SimpleNamespace(budget=None),
        threads=1,
    )
    sanitize_kept(session, {}, {"twice": variants}, [tool])
    told = "\n".join([*session.failures.told(), *lines])
    assert f"twice: {tool} reports its variant" in told, told
    assert report in told, told
    clean = {variant.code for variant, fault in zip(variants, faults, strict=True) if fault == "none"}
    assert {code for code, verdicts in session.verdicts.items() if verdicts == {tool: "clean"}} == clean, told


@pytest.mark.parametrize(
    ("fault", "status", "pattern"),
    [
        ("past_end", "wrong-result", r"oob: .*(past its end|between the rows)"),
        ("before_start", "wrong-result", r"oob: .*(before its start|between the rows)"),
        ("half", "wrong-result", r"got nan"),
        ("one_wrong", "wrong-result", r"y\[.*got .*want"),
        ("mutates", "wrong-result", r"input 'x' was changed|y\[0, 0\]"),
        ("keeps_larger", "wrong-result", r"got inf, want"),
        ("zeros", "wrong-result", r", zeros; if no call has any"),
        ("stale_workspace", "wrong-result", r""),
        ("past_workspace", "wrong-result", r"workspace"),
        ("refuses", "failed", r"returned 5"),
        ("early", "wrong-result", r"y\[.* between kernels that write its inputs\)$"),
        ("too_much_shared", "failed", r"returned \d+"),
    ],
)
def test_faults_that_do_not_crash(bed: Any, fault: str, status: str, pattern: str) -> None:
    """Rows 7 to 10 on real memory."""
    measured = bed.screen(fault)
    assert measured.status == status, measured
    assert re.search(pattern, measured.reason), measured.reason
    assert bed.screen("none").status == "ok"


def test_work_on_another_stream_never_passes(bed: Any) -> None:
    """Row 14: what is not on the given stream is not in the time."""
    measured = bed.screen("other_stream")
    assert measured.status != "ok", measured
    assert bed.screen("none").status == "ok"


def test_row_75_a_product_that_read_its_input_before_it_was_written(bed: Any, tmp_path: Path) -> None:
    """`cuda_direct_gemv` as it was: the assembler moved its loads ahead of the wait."""
    if old := os.environ.get("AOT_TUNE_GPU_TEST_OLD_TEMPLATES"):
        shutil.copytree(old, tmp_path / "templates")
    else:
        archive = subprocess.run(
            ["git", "archive", "bdf54ed2^", "templates"], check=False, cwd=ROOT, capture_output=True
        )
        if archive.returncode:
            pytest.skip("no history here, nor AOT_TUNE_GPU_TEST_OLD_TEMPLATES")
        subprocess.run(["tar", "x", "-C", tmp_path], input=archive.stdout, check=True)
    dtypes, gemm = {"T": "bf16"}, tmp_path / "templates" / "gemm"
    made = compile_first(tmp_path / "made", gemm, "cuda_direct_gemv", dtypes, EARLY=True)
    prepared = bed.bench.prepare(load_operator(gemm), problem(M=1, N=4096, K=4096, dtypes=dtypes))
    measured = bed.bench.verify(prepared, bed.variant(made), tune_checks=False)
    assert measured.status == "wrong-result", measured
    assert "between kernels that write its inputs" in measured.reason, measured
    assert bed.screen("none").status == "ok"


def test_a_race_survives_a_crash(bed: Any) -> None:
    found = {m.candidate: m for m in bed.bench.race(bed.prepare(), [bed.entry("none"), bed.entry("misaligned")])}
    status = {bed.objects(f).candidate.id: f for f in ("none", "misaligned")}
    by_fault = {status[c]: m.status for c, m in found.items() if c in status}
    assert by_fault == {"none": "ok", "misaligned": "crashed"}
    assert found[bed.objects("none").candidate.id].bitwise is True  # 30 times, and from two threads


@pytest.fixture
def busy() -> Iterator[None]:
    """Another process that keeps the GPU busy."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "busy"
    time.sleep(1.5)  # the utilisation that the driver tells is a mean
    yield
    process.kill()
    process.wait()


@pytest.mark.usefixtures("busy")
def test_a_busy_gpu_is_waited_for_and_then_noisy(make_bed: Make) -> None:
    """Row 38: bounded waiting, a loud line with the number of other processes, and results all the same."""
    begin = time.monotonic()
    bed = make_bed()
    assert time.monotonic() - begin < 60
    said = "\n".join(bed.lines)
    assert re.search(r"is busy, \d+ other processes", said), said
    assert re.search(r"noisy: .*still busy", said), said
    assert bed.screen("none").status == "ok"


def test_a_build_with_such_kernels(tmp_path: Path, import_path: str) -> None:
    """Rows 5 and 6 through the whole build: it succeeds, and says what each candidate came to."""
    templates = twice_templates(tmp_path, ("illegal", "half", "endless"))
    library = build_project(tmp_path / "project", templates, import_path, AOT_TUNE_EFFORT="exhaustive")
    (operator,) = library.manifest["operators"]
    assert any(v["kernel"] == "good" for v in operator["variants"]), library.log[-3000:]
    assert not any(v["kernel"] == "bad" for v in operator["variants"])
    (path,) = library.folder.rglob("report.json")
    reports = [r for r in json.loads(path.read_bytes())["operators"] if r["target"].startswith("cuda")]
    failures = {f["candidate"]: f for r in reports for f in r["failures"]}
    status = {fault: next((f["status"] for c, f in failures.items() if fault in c), "") for fault in
              ("illegal", "half", "endless")}  # fmt: skip
    assert status == {"illegal": "crashed", "half": "wrong-result", "endless": "timeout"}, failures
    library.run("twice", status=0)
