"""What a build covers of a trace: by calls, by time, and for whose trace."""

from pathlib import Path

import msgspec
import pytest
from bundled import OPERATORS

from aot_tune.report.report_records import OperatorReport, ProblemRow, Report
from aot_tune.spec import problem
from aot_tune.spec.workload import problem_named
from aot_tune.support.errors import AotTuneError, BuildError, ManifestError, SpecError
from aot_tune.workloads.coverage import BuiltLibrary, coverage_on, coverage_table, of_library, read_library
from aot_tune.workloads.workload_lines import CountedProblem, decode_workload

CPU, CUDA = "cpu-x86-64-v3", "cuda-sm_90a"
TUNED = {
    ("gemm", CPU): {"M=16 N=4096 K=4096 b:10": 1000.0, "M=64 N=4096 K=4096 b:10 +bias": 3000.0},
    ("softmax", CPU): {"R=4 D=1024": 50.0},
    ("gemm", CUDA): {"M=16 N=4096 K=4096 b:10 T=bf16": 10.0, "M=16 N=4096 K=4096 b:10": 40.0},
}


def row(operator: str, name: str, ns: float) -> ProblemRow:
    declared = OPERATORS[operator]
    one = problem_named(declared, name)
    return ProblemRow(
        problem=name, winner="a_1", ns=ns, spread=0.1, picked="b_2", regret=0.1, tie=False, baselines={},
        flops=declared.flops.evaluate(declared.facts(one)), bytes=declared.compulsory_bytes(one),
    )  # fmt: skip


def write_build(folder: Path, **changes: object) -> Path:
    """The files that a build leaves: what was measured on two targets."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted({name for name, _ in TUNED} | {"rms_norm"})
    tables = {
        name: [{"target": t, "level": 1, "tuned": list(ids)} for (n, t), ids in TUNED.items() if n == name]
        for name in names
    }
    manifest = {
        "schema": 1,
        "library": "ops",
        "prefix": "aot_tune",
        "module": "ops",
        "operators": [{"name": name, "variants": [], "tables": tables[name]} for name in names],
    }
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest | changes))
    reports = [
        OperatorReport(
            operator=name, target=target, tried=1, statuses={}, variants=(), failures=(), mean_regret=0.0,
            held_out_regret=None, problems=tuple(row(name, p, ns) for p, ns in ids.items()),
        )
        for (name, target), ids in TUNED.items()
    ]  # fmt: skip
    report = Report(
        library="ops", mode="auto", targets=(CPU, CUDA), devices=(), toolchains={}, policy="", operators=tuple(reports)
    )
    (folder / "report.json").write_bytes(msgspec.json.encode(report))
    return folder


@pytest.fixture
def library(tmp_path: Path) -> BuiltLibrary:
    return read_library(write_build(tmp_path / "build"))


def called(operator: str, calls: float, **stated: object) -> CountedProblem:
    return CountedProblem(operator=operator, problem=problem(**stated), weight=calls)  # type: ignore[arg-type]


def test_calls_are_covered_as_is_tuned_compares_them(library: BuiltLibrary) -> None:
    """By dims, dtypes, attributes, presence and the order of strides, but not by alignment."""
    problems = [
        called("gemm", 10, M=16, N=4096, K=4096, strides={"b": (1, 4096)}, alignment={"a": 16}),
        called("gemm", 10, M=16, N=4096, K=4096, strides={"b": (1, 5000)}),  # padded, and so of one class
        called("gemm", 10, M=64, N=4096, K=4096, order={"b": (1, 0)}, present=["bias"]),
        called("gemm", 1, M=16, N=4096, K=4096),
        called("gemm", 1, M=64, N=4096, K=4096, order={"b": (1, 0)}),
        called("gemm", 1, M=17, N=4096, K=4096, order={"b": (1, 0)}),
        called("gemm", 1, M=16, N=4096, K=4096, order={"b": (1, 0)}, dtypes={"T": "bf16"}),
    ]
    on_cpu = coverage_on(CPU, problems, library, OPERATORS)
    assert [one.tuned for one in on_cpu] == [True, True, True, False, False, False, False]
    on_cuda = coverage_on(CUDA, problems, library, OPERATORS)
    assert [one.tuned for one in on_cuda] == [True, True, False, False, False, False, True]
    assert on_cpu[0].ns == pytest.approx(1100)  # of the variant that is picked, 10 % slower than the winner
    assert on_cpu[2].total == pytest.approx(33000)


def test_other_times_are_estimates_by_the_nearest(library: BuiltLibrary) -> None:
    gemm = OPERATORS["gemm"]
    tall = called("gemm", 2, M=128, N=4096, K=4096, order={"b": (1, 0)}, present=["bias"])
    (one,) = coverage_on(CPU, [tall], library, OPERATORS)
    assert one.near == "M=64 N=4096 K=4096 b:10 +bias"
    assert one.ns == pytest.approx(3300 * 2)  # twice the FLOPs, and less than twice the bytes
    narrow = called("gemm", 1, M=1, N=4096, K=4096, order={"b": (1, 0)})
    (one,) = coverage_on(CPU, [narrow], library, OPERATORS)
    near = next(iter(library.rows["gemm", CPU]))
    assert one.near == near.problem
    assert one.ns == pytest.approx(1100 * gemm.compulsory_bytes(narrow.problem) / near.bytes)
    half = called("gemm", 1, M=17, N=4096, K=4096, order={"b": (1, 0)}, dtypes={"T": "bf16"})
    (one,) = coverage_on(CUDA, [half], library, OPERATORS)
    assert one.near == "M=16 N=4096 K=4096 b:10 T=bf16"  # of the same dtypes
    (one,) = coverage_on(CPU, [called("rms_norm", 1, R=1, D=8)], library, OPERATORS)
    assert (one.ns, one.near, one.tuned) == (None, "", False)


def test_the_table(library: BuiltLibrary) -> None:
    problems = [
        called("gemm", 10, M=16, N=4096, K=4096, order={"b": (1, 0)}),
        called("gemm", 30, M=128, N=4096, K=4096, order={"b": (1, 0)}, present=["bias"]),
        called("softmax", 5, R=4, D=1024),
        called("softmax", 5, R=8, D=1024),
        called("rms_norm", 3, R=1, D=8),
    ]
    told = coverage_table(CPU, coverage_on(CPU, problems, library, OPERATORS), top=2).splitlines()
    assert [line.split() for line in told[:6]] == [
        ["on", CPU],
        ["operator", "problems", "measured", "calls", "covered", "time", "covered"],
        ["gemm", "2", "1", "40", "25.0", "%", "209.00", "us", "5.3", "%"],
        ["rms_norm", "1", "0", "3", "0.0", "%", "unknown", "-"],
        ["softmax", "2", "1", "10", "50.0", "%", "825", "ns", "33.3", "%"],
        ["all", "5", "2", "53", "28.3", "%", "209.83", "us", "5.4", "%"],
    ]
    rest = "\n".join(told[6:])
    assert "is an estimate" in rest
    assert f"without 3 calls of rms_norm, of which nothing was measured for {CPU}" in rest
    assert "30 calls  about 198.00 us, by M=64 N=4096 K=4096 b:10 +bias" in rest
    assert rest.endswith("and 1 more problem")


HEAD = b'{"trace": {"library": "%s", "prefix": "aot_tune", "build": "%s"}}\n'
CALLS = b'{"operator": "softmax", "dims": {"R": 4, "D": 1024}, "calls": 5}\n'
STRANGE = b'{"operator": "softmax", "dims": {"R": 4, "C": 1024}, "calls": 5}\n'


def trace(lines: bytes, name: bytes = b"ops", build: bytes = b"") -> list[CountedProblem]:
    return decode_workload(HEAD % (name, build) + lines, "t.jsonl")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (trace(CALLS, name=b"mine"), "t.jsonl:1: this is a trace of library 'mine' with the prefix 'aot_tune'"),
        (trace(STRANGE, build=b"0" * 64), "t.jsonl:1: this is a trace of another build of 'ops', with other operators"),
        (trace(STRANGE), "t.jsonl:2: operator 'softmax': problem 'R=4 C=1024': dim 'D' is not bound"),
        (trace(CALLS.replace(b"softmax", b"sofmax")), "t.jsonl:2: library 'ops' has no operator 'sofmax'"),
        (trace(CALLS.replace(b"softmax", b"rms_norm")), "t.jsonl:2: operator 'rms_norm' of library 'ops' is not decl"),
    ],
)
def test_traces_of_others_are_named(library: BuiltLibrary, lines: list[CountedProblem], said: str) -> None:
    here = {name: operator for name, operator in OPERATORS.items() if name != "rms_norm"}
    with pytest.raises(SpecError) as error:
        of_library(lines, library, here)
    assert error.value.what.startswith(said)
    assert error.value.why
    assert error.value.fix


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"schema": 99}, ManifestError, "has schema 99, wanted 1"),
        ({"operators": 3}, ManifestError, "manifest.json cannot be read"),
        ({"library": "mine"}, BuildError, "is of library 'ops', the manifest beside it of 'mine'"),
    ],
)
def test_files_that_do_not_fit_are_named(
    tmp_path: Path, changes: dict[str, object], kind: type[AotTuneError], said: str
) -> None:
    with pytest.raises(kind, match=said) as error:
        read_library(write_build(tmp_path / "build", **changes))
    assert error.value.fix
