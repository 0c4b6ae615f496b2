"""Numbers and layouts of vendors' libraries that we wrote down, compared with their headers, where there are any."""

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

FOLDERS = ("nvidia/cu13/include", "nvidia/cublas/include", "nvidia/cudnn/include")

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
    "kFloat8": "CUDA_R_8F_E4M3",
    "kScalePointerA": "CUBLASLT_MATMUL_DESC_A_SCALE_POINTER",
    "kScalePointerB": "CUBLASLT_MATMUL_DESC_B_SCALE_POINTER",
    "kScaleModeA": "CUBLASLT_MATMUL_DESC_A_SCALE_MODE",
    "kScaleModeB": "CUBLASLT_MATMUL_DESC_B_SCALE_MODE",
    "kScaleOne": "CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F",
    "kScaleLines": "CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F",
    "kScaleVectors": "CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F",
    "kScaleSquares": "CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F",
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
CUDNN = {
    "kNotInitialized": "CUDNN_STATUS_NOT_INITIALIZED",
    "kBadParam": "CUDNN_STATUS_BAD_PARAM",
    "kNotSupported": "CUDNN_STATUS_NOT_SUPPORTED",
    "kFloat32": "CUDNN_DATA_FLOAT",
    "kFloat16": "CUDNN_DATA_HALF",
    "kInt32": "CUDNN_DATA_INT32",
    "kBfloat16": "CUDNN_DATA_BFLOAT16",
    "kBoolean": "CUDNN_DATA_BOOLEAN",
    "kPointwise": "CUDNN_BACKEND_POINTWISE_DESCRIPTOR",
    "kEngineConfig": "CUDNN_BACKEND_ENGINECFG_DESCRIPTOR",
    "kHeuristics": "CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR",
    "kPlan": "CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR",
    "kOperationPointwise": "CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR",
    "kGraph": "CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR",
    "kPack": "CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR",
    "kTensor": "CUDNN_BACKEND_TENSOR_DESCRIPTOR",
    "kMatmul": "CUDNN_BACKEND_MATMUL_DESCRIPTOR",
    "kOperationMatmul": "CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR",
    "kReduction": "CUDNN_BACKEND_REDUCTION_DESCRIPTOR",
    "kOperationReduction": "CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR",
    "kOperationAttention": "CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR",
    "kOfHandle": "CUDNN_TYPE_HANDLE",
    "kOfDataType": "CUDNN_TYPE_DATA_TYPE",
    "kOfBool": "CUDNN_TYPE_BOOLEAN",
    "kOfInt64": "CUDNN_TYPE_INT64",
    "kOfPointer": "CUDNN_TYPE_VOID_PTR",
    "kOfHeuristicMode": "CUDNN_TYPE_HEUR_MODE",
    "kOfPointwiseMode": "CUDNN_TYPE_POINTWISE_MODE",
    "kOfDescriptor": "CUDNN_TYPE_BACKEND_DESCRIPTOR",
    "kOfReduction": "CUDNN_TYPE_REDUCTION_OPERATOR_TYPE",
    "kPointwiseMode": "CUDNN_ATTR_POINTWISE_MODE",
    "kPointwisePrecision": "CUDNN_ATTR_POINTWISE_MATH_PREC",
    "kPointwiseAxis": "CUDNN_ATTR_POINTWISE_AXIS",
    "kHeuristicsMode": "CUDNN_ATTR_ENGINEHEUR_MODE",
    "kHeuristicsGraph": "CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH",
    "kHeuristicsResults": "CUDNN_ATTR_ENGINEHEUR_RESULTS",
    "kPlanHandle": "CUDNN_ATTR_EXECUTION_PLAN_HANDLE",
    "kPlanConfig": "CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG",
    "kPlanWorkspace": "CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE",
    "kPointwiseOf": "CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR",
    "kPointwiseX": "CUDNN_ATTR_OPERATION_POINTWISE_XDESC",
    "kPointwiseB": "CUDNN_ATTR_OPERATION_POINTWISE_BDESC",
    "kPointwiseY": "CUDNN_ATTR_OPERATION_POINTWISE_YDESC",
    "kPointwiseT": "CUDNN_ATTR_OPERATION_POINTWISE_TDESC",
    "kGraphHandle": "CUDNN_ATTR_OPERATIONGRAPH_HANDLE",
    "kGraphOperations": "CUDNN_ATTR_OPERATIONGRAPH_OPS",
    "kTensorAlignment": "CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT",
    "kTensorType": "CUDNN_ATTR_TENSOR_DATA_TYPE",
    "kTensorDims": "CUDNN_ATTR_TENSOR_DIMENSIONS",
    "kTensorStrides": "CUDNN_ATTR_TENSOR_STRIDES",
    "kTensorId": "CUDNN_ATTR_TENSOR_UNIQUE_ID",
    "kTensorVirtual": "CUDNN_ATTR_TENSOR_IS_VIRTUAL",
    "kTensorByValue": "CUDNN_ATTR_TENSOR_IS_BY_VALUE",
    "kPackIds": "CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS",
    "kPackPointers": "CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS",
    "kPackWorkspace": "CUDNN_ATTR_VARIANT_PACK_WORKSPACE",
    "kMatmulPrecision": "CUDNN_ATTR_MATMUL_COMP_TYPE",
    "kMatmulA": "CUDNN_ATTR_OPERATION_MATMUL_ADESC",
    "kMatmulB": "CUDNN_ATTR_OPERATION_MATMUL_BDESC",
    "kMatmulC": "CUDNN_ATTR_OPERATION_MATMUL_CDESC",
    "kMatmulOf": "CUDNN_ATTR_OPERATION_MATMUL_DESC",
    "kReductionOperator": "CUDNN_ATTR_REDUCTION_OPERATOR",
    "kReductionPrecision": "CUDNN_ATTR_REDUCTION_COMP_TYPE",
    "kReductionX": "CUDNN_ATTR_OPERATION_REDUCTION_XDESC",
    "kReductionY": "CUDNN_ATTR_OPERATION_REDUCTION_YDESC",
    "kReductionOf": "CUDNN_ATTR_OPERATION_REDUCTION_DESC",
    "kAttentionQ": "CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC",
    "kAttentionK": "CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC",
    "kAttentionV": "CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC",
    "kAttentionO": "CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC",
    "kAttentionScale": "CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC",
    "kAdd": "CUDNN_POINTWISE_ADD",
    "kMultiply": "CUDNN_POINTWISE_MUL",
    "kDivide": "CUDNN_POINTWISE_DIV",
    "kSubtract": "CUDNN_POINTWISE_SUB",
    "kExp": "CUDNN_POINTWISE_EXP",
    "kLog": "CUDNN_POINTWISE_LOG",
    "kAtLeast": "CUDNN_POINTWISE_CMP_GE",
    "kIndex": "CUDNN_POINTWISE_GEN_INDEX",
    "kSelect": "CUDNN_POINTWISE_BINARY_SELECT",
    "kSum": "CUDNN_REDUCE_TENSOR_ADD",
    "kMaximum": "CUDNN_REDUCE_TENSOR_MAX",
    "kFallback": "CUDNN_HEUR_MODE_FALLBACK",
    "kBest": "CUDNN_HEUR_MODE_A",
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


def header_folders(name: str, variable: str) -> list[Path]:
    """Folders with a header: of wheels on the import path, of the toolkit, or what an environment variable names."""
    found = [Path(root, folder) for root in sys.path for folder in FOLDERS]
    found += [Path(p) for p in os.environ.get(variable, "").split(os.pathsep) if p]
    with contextlib.suppress(ToolchainError):
        found.append(Path(toolchain_for("nvcc").toolkit().include))  # type: ignore[attr-defined]
    return [f for f in found if (f / name).is_file()]


def compiles(tmp_path: Path, header: Path, ours: str, asserts: str) -> str:
    """The errors of a source that includes the header and what templates write in its stead."""
    try:
        runtime = str(toolchain_for("nvcc").toolkit().include)  # type: ignore[attr-defined]
    except ToolchainError:
        pytest.skip("the headers of the CUDA runtime are not here")
    source = tmp_path / "check.cpp"
    source.write_text(f"#include <{header.name}>\n#include <cstddef>\n#include <cstring>\n{ours}\n{asserts}")
    command = [*toolchain_for("cxx").command(), "-std=c++17", "-fsyntax-only"]  # type: ignore[attr-defined]
    command += ["-isystem", str(header.parent), "-isystem", runtime, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize(
    ("name", "variable", "path", "numbers", "shapes"),
    [
        ("cublasLt.h", "CUBLASLT_INCLUDE", "gemm/vendor/cublaslt.h.j2", CXX, SHAPES),
        ("cudnn.h", "CUDNN_INCLUDE", "flash_attention/vendor/cudnn.h.j2", CUDNN, ""),
    ],
)
def test_numbers_and_structures_of_the_template(
    name: str, variable: str, path: str, numbers: dict[str, str], shapes: str, tmp_path: Path
) -> None:
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(bundled_templates()), trim_blocks=True)
    ours = environment.get_template(path).render(batch=["batch"], wide=True, scaled=True)
    own = {"kSuccess", "kUnavailable", "kParents", "kDevices", "kMost", "kMostOperations", "kMostGiven", "kMostConfigs"}
    assert set(re.findall(r"\b(k\w+) = \d+,?", ours)) <= set(numbers) | own, "a number that nothing is compared with"
    folders = header_folders(name, variable)
    if not folders:
        pytest.skip(f"there is no {name}: set {variable} to its folder, or install the library's wheel")
    same = [f"static_assert(int64_t{{{mine}}} == int64_t{{{theirs}}});" for mine, theirs in numbers.items()]
    for folder in folders:
        assert not compiles(tmp_path, folder / name, ours, "\n".join(same) + shapes)
        wrong = f"static_assert(int64_t{{kSuccess}} == int64_t{{{next(iter(numbers.values()))}}});"
        assert "static assertion" in compiles(tmp_path, folder / name, ours, wrong)
