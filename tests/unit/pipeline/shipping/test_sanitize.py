"""What ships runs under sanitizers, if AOT_TUNE_SANITIZE says so: what they report, and what they cannot say."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from compiled import linked_variant
from gpus import H200

from aot_tune.bench.devices.family import family
from aot_tune.bench.host.findings import Checks
from aot_tune.compile import Object, Variant
from aot_tune.database import MeasurementStore
from aot_tune.pipeline.failures import Failures
from aot_tune.pipeline.measuring.lazy_bench import BenchFiles
from aot_tune.pipeline.session import session_of
from aot_tune.pipeline.shipping import sanitize
from aot_tune.plan.library_plan import Request
from aot_tune.spec.load_operators import load_operator
from aot_tune.support.progress import Progress

OPERATOR = """
from aot_tune.spec import Kernel, Operator, Tensor, dims, problem

(N,) = dims("N")
operator = Operator(
    name="NAME", dims=("N",), tensors=(Tensor("x", (N,)), Tensor("y", (N,), output=True)), flops=N,
    reference=lambda xp, call: {"y": 2 * call.x}, workload=(problem(N=4000),),
    kernels=(Kernel("generic", "NAME/generic.cpp.j2", generic=True, false_reports=FALSE),))
"""
KERNEL = """{{ prelude() }}
{{ no_workspace() }}
#include <omp.h>
static int seen;
{{ kernel_signature("launch") }} {
  BODY
  for (int64_t i = 0; i < {{ dim("N") }}; ++i) {
    {{ store("y", ["i"], "2 * " ~ load("x", ["i"])) }}
  }
  return 0;
}
"""
RACES = """
  #pragma omp parallel num_threads(2)
  seen += 1;
  if (seen < 0) return 7;
"""
PAST_STACK = "float taps[4] = {2, 1, 1, 2}; float* volatile last = taps + 4; if (*last == 0.3f) return 5;"
OVERFLOWS = "volatile int most = 2147483647; if (most + 1 == 5) return 5;"
SHARES = """
  int64_t up = 0, down = 0, entered = 0, all = 0;
  #pragma omp parallel
  {
    #pragma omp for schedule(dynamic, 3)
    for (int i = 0; i < 100; ++i) __atomic_fetch_add(&up, i, __ATOMIC_RELAXED);
    #pragma omp for schedule(guided) nowait
    for (int i = 100; i > 0; i -= 2) __atomic_fetch_add(&down, i, __ATOMIC_RELAXED);
    #pragma omp critical
    ++entered;
    #pragma omp barrier
    if (omp_get_thread_num() == 1) all = up + down + 10000 * entered;
  }
  if (all != 27500) return 6;
"""
"""What OpenMP can do, without a race."""


def write(root: Path, name: str, body: str = "", false: str = "{}") -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "operator.py").write_text(OPERATOR.replace("NAME", name).replace("FALSE", false))
    (folder / "generic.cpp.j2").write_text(KERNEL.replace("BODY", body))
    return folder


def test_what_sanitizers_of_the_compiler_report_does_not_ship(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOT_TUNE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    write(tmp_path / "t", "bad", PAST_STACK)
    write(tmp_path / "t", "declared", OVERFLOWS + RACES, '{"thread": "it only counts"}')
    write(tmp_path / "t", "good", SHARES)
    request = Request(
        name="l", prefix="l", header="l", templates=(str(tmp_path / "t"),), options={"AOT_TUNE_TARGETS": "cpu-x86-64"}
    )
    with session_of(request, Progress()) as session:

        def generics() -> dict[str, list[Variant]]:
            variants = {name: session.generic_variants(operator) for name, operator in session.operators.items()}
            return {name: [with_object(v, name, tmp_path) for v in of] for name, of in variants.items()}

        sanitize.sanitize_kept(session, {}, generics())
        reported = "\n".join(session.failures.told())
        for pattern in (
            "bad: address,undefined reports its variant generic (problem 'N=",
            "why: AddressSanitizer: stack-buffer-overflow candidate.cpp:",
            "declared: address,undefined reports",
            "runtime error: signed integer overflow",
            'false_reports={"address,undefined": "the reason"}',
        ):
            assert pattern in reported
        assert "good" not in reported
        clean = {"address,undefined": "clean", "thread": "clean"}
        assert session.verdicts == {
            "bad": {},
            "good": clean,
            "declared": {"thread": "reported falsely: it only counts"},
        }
        said = capsys.readouterr().out
        false = "thread reports generic of declared falsely, its kernel declares: "
        assert f"{false}ThreadSanitizer: data race candidate.cpp:" in said
        assert "thread: 1 variant clean" in said
        session.verdicts.clear()  # the store knows it all the same
        sanitize.sanitize_kept(session, {}, {**generics(), "bad": [], "declared": []})
        assert session.verdicts == {"good": clean}


def with_object(variant: Variant, name: str, folder: Path) -> Variant:
    """As if it were compiled, without OpenMP if it is that of `bad`."""
    path = str(folder / "t" / "bad" / "operator.py") if name == "bad" else ""
    return msgspec.structs.replace(variant, object=Object(status="ok", digest=name, path=path))


PROGRAM = """#!{python} -S
import json, sys, time
symbols = [v["symbol"] for v in json.load(open(sys.argv[-1]))["variants"]]
assert "aot_tune.bench.worker.watched_calls" in sys.argv
tool = sys.argv[sys.argv.index("--tool") + 1]
print("========= COMPUTE-SANITIZER")
if tool == "synccheck":
    sys.exit("========= Error: process didn't terminate successfully")
for number, symbol in enumerate(symbols):
    print(f"@{{number}} problem 'N=7'", flush=True)
    if tool == "memcheck" and symbol == "reads":
        print("========= Invalid __global__ read of size 4 bytes\\n=========     at reads+0x40")
        print("========= ERROR SUMMARY: 1 error")
        sys.exit(86)
    if tool == "initcheck" and symbol == "hangs":
        time.sleep(60)
print("@ done")
for symbol in symbols:
    if tool == "racecheck" and symbol in ("races", "bulk"):
        print("========= Error: Race reported between Write access at races+0x10 and Read access at races+0x20")
        print("========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)")
        sys.exit(86)
"""


def gpu_session(folder: Path, lines: list[str], path: str) -> Any:
    names = {"reads": "{}", "races": "{}", "bulk": '{"racecheck": "it does not know bulk copies"}', "hangs": "{}"}
    return SimpleNamespace(
        failures=Failures(),
        operators={name: load_operator(write(folder / "t", name, false=false)) for name, false in names.items()},
        device_for=lambda target: H200 if target.family == "cuda" else None,
        progress=SimpleNamespace(line=lines.append, now=lambda: 0.0, count=lambda *_, **__: None),
        policy=lambda name: family(name).policy(),
        checks=Checks(),
        store=MeasurementStore(None),
        verdicts={},
        executor=None,
        environment={"PATH": path},
        jobs_of=lambda _backend: SimpleNamespace(count=2),
        time=SimpleNamespace(budget=None),
        threads=1,
    )


def test_compute_sanitizer_tells_which_variant_it_reports_and_what_it_cannot_say_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sanitizer that reports, reports falsely, hangs, does not start, or is missing."""
    program, lines = tmp_path / "compute-sanitizer", list[str]()
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr(sanitize, "SECONDS", (0.8, 0.1))
    monkeypatch.setattr(BenchFiles, "link", lambda *_: tmp_path / "any.so")
    session = gpu_session(tmp_path, lines, str(tmp_path))
    candidate = SimpleNamespace(target="cuda-sm_90a", kernel="generic", backend="nvcc", dtypes={}, label="generic f32")
    generics = {}
    for name in session.operators:
        of_name = SimpleNamespace(**vars(candidate), id=name, operator=name)
        generics[name] = [linked_variant(of_name, tmp_path / "any.so", name, name)]
    sanitize.sanitize_kept(session, {}, generics)
    assert session.failures.operators == ["races", "reads"]
    told = session.failures.told()
    assert "races: racecheck reports its variant generic f32 (problem 'N=7')" in told
    assert "  why: Invalid __global__ read of size 4 bytes" in told
    assert [line for line in lines if line.startswith("NOTE")] == [
        "NOTE initcheck has no verdict on generic f32 of hangs: it did not end within 1.2 s (problem 'N=7')",
        *(
            f"NOTE synccheck has no verdict on generic f32 of {name}: it ended with status 1: "
            "========= Error: process didn't terminate successfully"
            for name in session.operators
        ),
    ]
    assert session.verdicts["bulk"] == {
        "memcheck": "clean",
        "racecheck": "reported falsely: it does not know bulk copies",
        "initcheck": "clean",
    }
    assert session.verdicts["races"] == {"memcheck": "clean", "initcheck": "clean"}
    monkeypatch.setattr(sanitize, "find_compute_sanitizer", lambda _environ: None)
    lines.clear()
    session.verdicts.clear()
    session.store = MeasurementStore(None)
    sanitize.sanitize_kept(session, {}, generics, ["memcheck"])
    session.executor = SimpleNamespace(has=lambda _device: True)
    sanitize.sanitize_kept(session, {}, generics)
    missing, away = lines
    assert missing.startswith(
        "NOTE memcheck did not run (AOT_TUNE_SANITIZE): compute-sanitizer is neither on PATH nor "
    )
    assert away == "NOTE no sanitizer ran on NVIDIA H200 (AOT_TUNE_SANITIZE): it is of a cluster"
