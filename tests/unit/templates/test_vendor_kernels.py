"""Kernels that call cuBLASLt, beside a stand-in: what it is asked for, and what is done where it fails or is missing.

What has kernels of its own, copies of factors and an epilogue, runs on the host with them.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundled import OPERATORS
from host_kernels import CpuKernel
from stand_ins import build, with_cublaslt
from vendor_calls import Call, OnHost, render

from aot_tune.bench.worker.loaded_objects import RefusedError
from aot_tune.bench.worker.process_state import openmp_threads
from aot_tune.compile.object_files import symbols_of, why_unlinkable
from aot_tune.compile.toolchain import toolchain_for
from aot_tune.render import Renderer, candidate_for
from aot_tune.spec import problem
from aot_tune.spec.load_operators import bundled_templates, without_backends
from aot_tune.support.errors import RenderError

GEMM, BATCHED = OPERATORS["gemm"], OPERATORS["batched_gemm"]
UNAVAILABLE = -100
RECORDED: dict[str, Any] = {
    "ALGO": 66,
    "TILE": 20,
    "STAGES": 36,
    "SPLITK": 3,
    "REDUCTION": 2,
    "SWIZZLE": 1,
    "CUSTOM": 5,
    "INNER": 4,
    "CLUSTER": 9,
    "VERSION": 130100,
}
OWN: dict[str, Any] = {"ALGO": -1}
CASES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "own": ("gemm", "cublaslt", OWN, "f32"),
    "own bf16": ("gemm", "cublaslt", OWN, "bf16"),
    "recorded": ("gemm", "cublaslt", RECORDED, "f32"),
    "batched": ("batched_gemm", "cublaslt", OWN, "f32"),
    "batched, recorded": ("batched_gemm", "cublaslt", RECORDED, "f32"),
    "epilogue": ("gemm", "cublaslt_then_epilogue", {"VECTORS": 1}, "bf16"),
    "epilogue of f32": ("gemm", "cublaslt_f32_then_epilogue", {"VECTORS": 2}, "f16"),
    "any, few copies": ("gemm", "cublaslt_any", {"PACK": 16, "WORK": 0}, "bf16"),
    "any, no copies": ("gemm", "cublaslt_any", {"PACK": 1 << 40, "WORK": 0}, "bf16"),
}
Built = Callable[[str], OnHost]
ON_HOST: dict[str, OnHost] = {}
PLAIN: Call = {"dims": {"M": 5, "N": 12, "K": 7}, "strides": {"b": (1, 7)}}
EVEN: Call = {"dims": {"B": 3, "M": 8, "N": 12, "K": 4}}
ODD: Call = {"dims": {"B": 3, "M": 5, "N": 11, "K": 7}}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The kernel of a case, compiled once."""

    def build(name: str) -> OnHost:
        if name not in ON_HOST:
            operator, kernel, config, dtype = CASES[name]
            made = render(OPERATORS[operator], kernel, config, dtype)
            ON_HOST[name] = OnHost(tmp_path_factory.mktemp("candidate"), made)
        return ON_HOST[name]

    return build


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_cublaslt(tmp_path_factory.mktemp("stub"))


def logged(answer: Any, function: str) -> list[str]:
    return [line for line in answer["log"] if line.startswith(function)]


def refused(answer: Any) -> bool:
    """Whether a call was left to other variants, with nothing done."""
    return (answer["workspace"], answer["launch"], answer["touched"]) == (UNAVAILABLE, UNAVAILABLE, False)


# -- what the library is asked for -------------------------------------------------------------------------------------


def test_the_recorded_algorithm_runs_with_all_its_attributes(built: Built, stub: Path) -> None:
    [answer] = built("recorded").call([PLAIN | {"stream": 48}], stub)
    # In the order of the library's numbers: tile, split, reduction, swizzle, option, stages, inner shape, cluster.
    [matmul] = logged(answer, "matmul")
    assert matmul.startswith("matmul id=66 20 3 2 1 5 36 4 9 ")
    assert "workspace=4096 stream=48" in matmul
    assert (answer["bytes"], answer["note"]) == (4096, "cuBLASLt 13.1.0: the recorded algorithm")


def test_the_math_mode_and_the_types_are_those_of_the_call(built: Built, stub: Path) -> None:
    floats = built("own").call([PLAIN, PLAIN | {"attributes": {"math": "tf32"}}], stub)
    halves = built("own bf16").call([PLAIN], stub)
    ran = [line for answer in (*floats, *halves) for line in logged(answer, "matmul")]
    kinds = [line[line.index("type=") : line.index(" epilogue")] for line in ran]
    assert kinds == ["type=0 compute=68", "type=0 compute=77", "type=14 compute=68"]
    limits = [line.partition(" alignment")[0] for a in (floats[0], *halves) for line in logged(a, "heuristic")]
    assert limits == [f"heuristic limit={32 << 20} reduction={r}" for r in (7, 2)]


ALIGNMENTS: list[tuple[str, Call, str]] = [  # of b, a, and out twice; of a and b where they change places
    ("any, no copies", {}, "16,16,16,16"),
    ("any, no copies", {"shifted": ["a"]}, "16,2,16,16"),
    ("any, no copies", {"shifted": ["b"]}, "2,16,16,16"),
    ("any, no copies", {"shifted": ["out"]}, "16,16,2,2"),
    ("any, no copies", {"strides": {"out": (1, 8)}, "shifted": ["a"]}, "2,16,16,16"),
    ("batched", {"dims": EVEN["dims"]}, "16,16,16,16"),
    ("batched", {"dims": ODD["dims"]}, "4,4,4,4"),  # other matrices than the first are not aligned
    ("batched", {"dims": ODD["dims"] | {"B": 1}}, "16,16,16,16"),
    ("batched", {"dims": {"B": 3, "M": 3, "N": 12, "K": 6}}, "16,8,16,16"),
]


@pytest.mark.parametrize("name", ["any, no copies", "batched"])
def test_the_library_is_told_what_addresses_are_aligned_to(name: str, built: Built, stub: Path) -> None:
    rows = [(one, wanted) for kind, one, wanted in ALIGNMENTS if kind == name]
    answers = built(name).call([{"dims": {"M": 8, "N": 16, "K": 24}} | one for one, _ in rows], stub)
    for (one, wanted), answer in zip(rows, answers, strict=True):
        [line] = logged(answer, "heuristic")
        assert line.split("alignment=")[1] == wanted, one


def test_a_plan_is_made_once_for_each_kind_of_call_and_only_its_first_launch_is_relaxed(
    built: Built, stub: Path
) -> None:
    first, second = built("recorded").call([PLAIN, PLAIN], stub)
    assert [line.split()[0] for line in first["log"]] == ["create", "check", "matmul"]
    assert all(line.endswith("mode=2") for line in first["log"])
    [matmul] = second["log"]
    assert matmul.endswith("mode=0")
    others = [EVEN, {"dims": EVEN["dims"] | {"B": 4}}, EVEN | {"strides": {"b": (0, 12, 1)}}, EVEN]
    *made, again = built("batched").call(others, stub)
    assert [len(logged(a, "heuristic")) for a in (*made, again)] == [1, 1, 1, 0]
    shapes = [{"dims": {"M": 1 + i, "N": 12, "K": 7}} for i in range(150)]  # more than are remembered
    answers = built("own").call([*shapes, *shapes], stub)
    assert all(a["launch"] == 0 and a["touched"] for a in answers)


# What kernels with copies and an epilogue of their own take for workspace and say of it. The stand-in's own algorithm
# takes 1024 bytes; lines of copies begin at whole 16 bytes, copies at whole 256.
HEURISTIC = "cuBLASLt 13.1.0: its own heuristic"
THEN = ", then the epilogue in a kernel of its own"
BIAS: Call = {"present": ["bias"]}
TOLD: list[tuple[str, tuple[int, int, int], Call, int, str, str]] = [
    ("any, few copies", (40, 8, 24), {"strides": {"a": (25, 1)}}, 0, "", "40x8x24"),
    ("any, few copies", (40, 8, 24), {"strides": {"a": (48, 2)}}, 2048, ", of a copy of a", "40x8x24"),
    ("any, few copies", (40, 16, 23), {}, 2048 + 768, ", of copies of a and b", "40x16x24"),
    ("any, few copies", (40, 16, 24), {"strides": {"out": (32, 2)}}, 1280, ", then a copy of its result", "40x16x24"),
    (
        "any, few copies",
        (40, 13, 24),
        {"present": ["residual"], "strides": {"b": (1, 24)}},
        768 + 40 * 16 * 4,
        f", of a copy of b{THEN}",
        "40x16x24",
    ),
    ("any, few copies", (40, 16, 24), BIAS, 0, "", "40x16x24"),
    ("epilogue", (5, 13, 3), BIAS, 0, THEN, "5x13x3"),
    ("epilogue of f32", (5, 13, 3), BIAS, 512, THEN, "5x13x3"),
]


@pytest.mark.parametrize("name", ["any, few copies", "epilogue", "epilogue of f32"])
def test_copies_and_scratch_are_in_the_workspace_and_told_of(name: str, built: Built, stub: Path) -> None:
    """A copy ends in zeros where that makes whole pieces: the library multiplies more than was asked for."""
    rows = [row[1:] for row in TOLD if row[0] == name]
    calls = [one | {"dims": dict(zip("MNK", size, strict=True))} for size, one, *_ in rows]
    answers = built(name).call([{"set": ["tell_sizes", 1]}, *calls, calls[-1] | {"room": 1023}], stub)
    for (size, one, more, note, product), answer in zip(rows, answers[:-1], strict=True):
        assert (answer["bytes"], answer["note"]) == (1024 + more, HEURISTIC + note), (size, one)
        [line] = logged(answer, "size")
        assert line.split()[1] == product, (size, one)
    assert answers[-1]["launch"] == 7
    assert not logged(answers[-1], "matmul")


def test_the_library_does_what_it_can_of_the_epilogue(built: Built, stub: Path) -> None:
    """A bias, ReLU, in 16 bits a GELU: with a bias that is aligned, and results by rows; else it has number 1."""
    cases: list[tuple[int, Call]] = [
        (4, BIAS),
        (2, {"attributes": {"activation": "relu"}}),
        (6, {**BIAS, "attributes": {"activation": "relu"}}),
        (36, {**BIAS, "attributes": {"activation": "gelu_tanh"}}),
        (1, {**BIAS, "shifted": ["bias"]}),
        (1, {**BIAS, "strides": {"bias": (2,)}}),
        (1, {**BIAS, "strides": {"out": (1, 9)}}),
        (1, {"present": ["bias", "residual"]}),
        (1, {**BIAS, "attributes": {"activation": "gelu"}}),
    ]
    calls = [{"dims": {"M": 9, "N": 20, "K": 6}, **one} for _, one in cases]
    host = built("any, no copies")
    for (number, one), answer in zip(cases, host.call(calls, stub), strict=True):
        [ran] = logged(answer, "matmul")
        assert f" epilogue={number} " in ran, one
        assert answer["note"].endswith(THEN) == (number == 1), one
    [told] = host.call([{"set": ["refused_epilogues", 4]}, calls[0]], stub)
    assert (told["launch"], told["note"]) == (0, HEURISTIC + THEN)
    assert told["touched"]


# -- where the library fails, is another one, or is missing ------------------------------------------------------------


def test_without_the_library_nothing_is_done_and_the_note_says_so(built: Built, tmp_path: Path) -> None:
    [answer] = built("own").call([PLAIN | {"preload": True}], None)
    assert refused(answer)
    assert (answer["preload"], answer["bytes"]) == (UNAVAILABLE, 0)
    assert answer["note"] == "cuBLASLt not found (libcublasLt.so.13, libcublasLt.so.12)"
    for name, call, flag, lacks in (
        ("own", PLAIN, "-DLACKS_MATMUL", "cublasLtMatmul"),
        ("batched", EVEN, "-DLACKS_LAYOUT_SET", "cublasLtMatrixLayoutSetAttribute"),
    ):
        [answer] = built(name).call([call], with_cublaslt(tmp_path / name, flag))
        assert refused(answer)
        assert answer["note"] == f"the cuBLASLt that was found lacks {lacks}"


def test_a_handle_that_cannot_be_made_is_not_asked_for_again(built: Built, stub: Path) -> None:
    calls = [{"set": ["create", 1]}, PLAIN, {"set": ["create", 0]}, PLAIN, PLAIN | {"device": 1}]
    first, second, other = built("own").call(calls, stub)
    assert refused(first)
    assert refused(second)
    assert first["note"] == "cuBLASLt 13.1.0: cublasLtCreate failed with 1"
    assert second["log"] == []
    assert other["launch"] == 0


def test_another_version_uses_its_own_heuristic(built: Built, tmp_path: Path) -> None:
    """Such as that of a wheel beside the package, where it is found."""
    [answer] = built("recorded").call([PLAIN], with_cublaslt(tmp_path / "newer", "-DVERSION=130205"))
    assert answer["launch"] == 0
    assert logged(answer, "matmul id=900 ")
    assert answer["note"] == "cuBLASLt 13.2.5, recorded with 13.1.0: its own heuristic"
    build(tmp_path / "nvidia" / "cublas" / "lib", "libcublasLt.so.12", "-DVERSION=120903")
    (tmp_path / "package" / "lib").mkdir(parents=True)
    copy = Path(shutil.copy(built("recorded").program, tmp_path / "package" / "lib" / "ops.so"))
    [answer] = built("recorded").call([PLAIN], None, copy)
    assert (answer["launch"], answer["touched"]) == (0, True)
    assert answer["note"] == "cuBLASLt 12.9.3, recorded with 13.1.0: its own heuristic"


@pytest.mark.parametrize(
    ("name", "one", "fault"),
    [
        ("recorded", PLAIN, ["check", 15]),
        ("recorded", PLAIN, ["check_workspace", (32 << 20) + 1]),
        ("batched, recorded", ODD, ["tell_sizes", 1]),  # it was chosen for matrices that are all aligned
    ],
)
def test_a_call_that_the_recorded_algorithm_cannot_serve(
    name: str, one: Call, fault: list[Any], built: Built, stub: Path
) -> None:
    [answer] = built(name).call([{"set": fault}, one], stub)
    assert (answer["launch"], answer["bytes"]) == (0, 1024)
    assert logged(answer, "matmul id=900 ")
    assert answer["note"] == "cuBLASLt 13.1.0: its own heuristic, the recorded algorithm does not take this call"


@pytest.mark.parametrize("fault", [["heuristic", 15], ["heuristic_count", 0]])
def test_a_call_that_no_algorithm_serves(fault: list[Any], built: Built, stub: Path) -> None:
    first, second = built("own").call([{"set": fault}, PLAIN, {"set": ["heuristic", 0]}, PLAIN], stub)
    assert refused(first)
    assert first["note"] == "cuBLASLt 13.1.0 has no algorithm for this call"
    assert second["log"] == []  # remembered


def test_too_small_a_workspace_is_refused(built: Built, stub: Path) -> None:
    [answer] = built("recorded").call([PLAIN | {"room": 4095}], stub)
    assert (answer["workspace"], answer["launch"], answer["touched"]) == (0, 7, False)


# -- sources and objects ----------------------------------------------------------------------------------------------


def test_a_variant_is_recognised_by_its_algorithm_alone(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match="VERSION"):
        render(GEMM, "cublaslt", {"ALGO": 66, "TILE": 20}, "f32")
    configs = (OWN, RECORDED, RECORDED | {"VERSION": 130200})
    assert len({render(GEMM, "cublaslt", c, "f32").digest for c in configs}) == 3
    shutil.copytree(bundled_templates(), tmp_path / "templates")
    template = tmp_path / "templates" / "gemm" / "vendor" / "cublaslt_product.h.j2"
    template.write_text(template.read_text().replace("kWays = 4", "kWays = 8"))
    made = render(GEMM, "cublaslt", RECORDED, "f32")
    target = next(t for t in toolchain_for("cublaslt").targets() if t.name == made.candidate.target)
    candidate = candidate_for(GEMM, GEMM.kernel("cublaslt"), RECORDED, target, None, {"T": "f32"})
    changed = Renderer([tmp_path / "templates"]).render(GEMM, candidate, target)
    assert (changed.source != made.source, changed.digest == made.digest) == (True, True)


def test_objects_define_only_their_functions_and_run_nothing_when_loaded(built: Built) -> None:
    host = built("own bf16")
    data = host.program.with_suffix(".o").read_bytes()
    names = {f"{host.rendered.symbol}_{f}" for f in ("workspace", "launch", "preload", "note")}
    assert symbols_of(data).defined == names
    assert why_unlinkable(data, host.rendered.symbol, "hip-any") is None


def test_the_kernel_compiles_for_every_cuda_target_without_a_cuda_compiler() -> None:
    toolchain = toolchain_for("cublaslt", dict(os.environ) | {"CUDA_HOME": os.devnull, "NVCC": os.devnull})
    recipes = [toolchain.recipe(t) for t in toolchain.targets()]
    assert all(r == recipes[0] for r in recipes)
    assert [t.name for t in toolchain.targets()] == [t.name for t in toolchain_for("nvcc").targets()]


def test_a_library_without_the_vendors_backend_has_none() -> None:
    gone = {"cublaslt", "cublaslt_then_epilogue", "cublaslt_f32_then_epilogue", "cublaslt_any"}
    without = without_backends(GEMM, ["cublaslt"])
    assert {k.name for k in GEMM.kernels} - {k.name for k in without.kernels} == gone


def test_problems_are_products_in_the_layouts_that_they_say() -> None:
    """What the library is asked about on the device is what the candidate will tell it."""
    algorithms = BATCHED.kernel("cublaslt").algorithms
    assert algorithms is not None
    between = problem(B=6, M=8, N=16, K=24, order={"a": (1, 0, 2), "b": (0, 2, 1), "out": (1, 0, 2)})
    found: Any = algorithms(between)
    wanted = {"batch": 6, "m": 8, "n": 16, "k": 24, "next_a": 24, "lda": 6 * 24, "a_by_columns": False}
    wanted |= {"next_b": 24 * 16, "ldb": 24, "b_by_columns": True, "next_d": 16, "ldd": 6 * 16}
    assert {name: found.get(name, wanted[name]) for name in wanted} == wanted
    shared: Any = algorithms(problem(B=6, M=8, N=16, K=24, strides={"b": (0, 16, 1)}))
    assert shared["next_b"] == 0


@pytest.mark.parametrize("kernel", ["cblas", "cblas_then_epilogue"])
def test_the_cblas_of_the_process_serves_where_it_has_no_threads_of_its_own(tmp_path: Path, kernel: str) -> None:
    config = dict(GEMM.kernel(kernel).listed[0])
    candidate = CpuKernel(tmp_path, GEMM, kernel, config=config, dtypes={"T": "f32"})
    mapped = Path("/proc/self/maps").read_text().split()
    blas = ctypes.CDLL(
        next(path for path in mapped if "numpy" in path and "openblas" in path)
    )  # scipy may have another
    before = blas.scipy_openblas_get_num_threads64_()
    rng = np.random.default_rng(1)
    a, b, bias, residual = (rng.random(s, np.float32) for s in ((53, 70), (70, 131), (131,), (53, 131)))
    wide = np.empty((53, 140), np.float32)
    more = {"bias": bias, "residual": residual} if kernel != "cblas" else {}
    wanted = a @ b + sum(more.values())
    try:
        blas.scipy_openblas_set_num_threads64_(1)
        layouts = (a, np.asfortranarray(a)), (b, np.asfortranarray(b), np.tile(b, 2)[:, :131])
        for left, right, threads in itertools.product(*layouts, (1, 2, 6)):
            wide.fill(np.nan)
            with openmp_threads(threads):
                assert candidate(a=left, b=right, **more, out=wide[:, :131]) == 0
            np.testing.assert_allclose(wide[:, :131], wanted, rtol=1e-5)
            assert np.isnan(wide[:, 131:]).all()
        blas.scipy_openblas_set_num_threads64_(2)
        with pytest.raises(RefusedError):
            candidate(a=a, b=b, **more, out=wide[:, :131])
    finally:
        blas.scipy_openblas_set_num_threads64_(before)
