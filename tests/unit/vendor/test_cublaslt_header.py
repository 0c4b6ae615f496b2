"""Numbers and layouts of cuBLASLt that we wrote down, compared with its header, where there is one."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest

from aot_tune.compile.toolchain import toolchain_for
from aot_tune.spec.load_operators import bundled_templates
from aot_tune.support.errors import ToolchainError

FOLDERS = ("nvidia/cu13/include", "nvidia/cublas/include")

CXX = {
    "kNotInitialized": "CUBLAS_STATUS_NOT_INITIALIZED",
    "kInvalidValue": "CUBLAS_STATUS_INVALID_VALUE",
    "kNotSupported": "CUBLAS_STATUS_NOT_SUPPORTED",
    "kFloat32": "CUDA_R_32F",
    "kFloat16": "CUDA_R_16F",
    "kBfloat16": "CUDA_R_16BF",
    "kCompute32F": "CUBLAS_COMPUTE_32F",
    "kComputeFastTf32": "CUBLAS_COMPUTE_32F_FAST_TF32",
    "kTransA": "CUBLASLT_MATMUL_DESC_TRANSA",
    "kTransB": "CUBLASLT_MATMUL_DESC_TRANSB",
    "kEpilogue": "CUBLASLT_MATMUL_DESC_EPILOGUE",
    "kBiasPointer": "CUBLASLT_MATMUL_DESC_BIAS_POINTER",
    "kType": "CUBLASLT_MATRIX_LAYOUT_TYPE",
    "kBatchCount": "CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT",
    "kStridedBatchOffset": "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET",
    "kEpilogueDefault": "CUBLASLT_EPILOGUE_DEFAULT",
    "kEpilogueRelu": "CUBLASLT_EPILOGUE_RELU",
    "kEpilogueBias": "CUBLASLT_EPILOGUE_BIAS",
    "kEpilogueGelu": "CUBLASLT_EPILOGUE_GELU",
    "(kEpilogueRelu | kEpilogueBias)": "CUBLASLT_EPILOGUE_RELU_BIAS",
    "(kEpilogueGelu | kEpilogueBias)": "CUBLASLT_EPILOGUE_GELU_BIAS",
    "kReductionComputeType": "CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE",
    "kReductionAny": "CUBLASLT_REDUCTION_SCHEME_MASK",
    "kMaxWorkspaceBytes": "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES",
    "kReductionMask": "CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK",
    "kMinAlignmentA": "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES",
    "kMinAlignmentB": "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES",
    "kMinAlignmentC": "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES",
    "kMinAlignmentD": "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES",
    "kTileId": "CUBLASLT_ALGO_CONFIG_TILE_ID",
    "kSplitK": "CUBLASLT_ALGO_CONFIG_SPLITK_NUM",
    "kReductionScheme": "CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME",
    "kSwizzle": "CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING",
    "kCustomOption": "CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION",
    "kStagesId": "CUBLASLT_ALGO_CONFIG_STAGES_ID",
    "kInnerShapeId": "CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID",
    "kClusterShapeId": "CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID",
}
SHAPES = """
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(Heuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(Heuristic, workspace) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(Heuristic, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(offsetof(Heuristic, waves) == offsetof(cublasLtMatmulHeuristicResult_t, wavesCount));
static_assert(sizeof(Layout) >= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(MatmulDesc) >= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(sizeof(Preference) >= sizeof(cublasLtMatmulPreferenceOpaque_t));
static_assert(sizeof(cublasStatus_t) == 4 && sizeof(cublasComputeType_t) == 4 && sizeof(cudaDataType_t) == 4);
"""


def header_folders() -> list[Path]:
    """Folders with cublasLt.h: of wheels on the import path, of the toolkit, or what CUBLASLT_INCLUDE names."""
    found = [Path(root, folder) for root in sys.path for folder in FOLDERS]
    found += [Path(p) for p in os.environ.get("CUBLASLT_INCLUDE", "").split(os.pathsep) if p]
    with contextlib.suppress(ToolchainError):
        found.append(Path(toolchain_for("nvcc").toolkit().include))  # type: ignore[attr-defined]
    return [f for f in found if (f / "cublasLt.h").is_file()]


@pytest.fixture(params=header_folders() or [None], ids=str)
def headers(request: pytest.FixtureRequest) -> Path:
    if request.param is None:
        pytest.skip("there is no cublasLt.h: set CUBLASLT_INCLUDE to its folder, or install nvidia-cublas")
    return Path(request.param)


def template() -> str:
    """What templates write in the header's stead, for wide batches: that has it all."""
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(bundled_templates()), trim_blocks=True)
    return environment.get_template("gemm/vendor/cublaslt.h.j2").render(batch=["batch"], wide=True)


def compiles(tmp_path: Path, headers: Path, asserts: str) -> str:
    """The errors of a source that includes the header and what templates write in its stead."""
    try:
        runtime = str(toolchain_for("nvcc").toolkit().include)  # type: ignore[attr-defined]
    except ToolchainError:
        pytest.skip("the headers of the CUDA runtime are not here")
    source = tmp_path / "check.cpp"
    source.write_text(f"#include <cublasLt.h>\n#include <cstddef>\n#include <cstring>\n{template()}\n{asserts}")
    command = [*toolchain_for("cxx").command(), "-std=c++17", "-fsyntax-only"]  # type: ignore[attr-defined]
    command += ["-isystem", str(headers), "-isystem", runtime, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def test_numbers_and_structures_of_the_template(headers: Path, tmp_path: Path) -> None:
    same = [f"static_assert(int64_t{{{ours}}} == int64_t{{{theirs}}});" for ours, theirs in CXX.items()]
    assert not compiles(tmp_path, headers, "\n".join(same) + SHAPES)
    numbered = re.findall(r"\b(k\w+) = \d+,?", template())
    own = {"kSuccess", "kUnavailable", "kParents", "kDevices"}
    assert set(numbered) <= set(CXX) | own, "a number that is not compared with the header"
    assert "static assertion" in compiles(
        tmp_path, headers, "static_assert(int64_t{kTransA} == CUBLASLT_EPILOGUE_BIAS);"
    )
