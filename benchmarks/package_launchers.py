"""CUDA kernels of packages that examples/cuda_packages declares, each called by a few lines that are compiled here.

The lines are written after the packages' own launches. Nothing of the library's rendering is in them.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from package_calls import PackageCall

from aot_tune.compile.device_targets import code_flags
from aot_tune.compile.toolchain import target_by_name
from aot_tune.spec import DTYPES, Operator

__all__ = ["SOURCES", "TEMPLATES", "Build", "compiled", "launcher"]

TEMPLATES = Path(__file__).resolve().parents[1] / "examples" / "cuda_packages" / "templates"
_FLAGS = ("-O3", "-DNDEBUG", "--expt-relaxed-constexpr", "-w", "-shared")
_HOST = "-Xcompiler=-fPIC,-fvisibility=hidden,-fno-gnu-unique"


@dataclass(frozen=True)
class Own:
    """The lines of a call. Tensors, their strides (`x_0`), dims, dtypes and the config have the operator's names.

    `known` are numbers and types that a kernel has beside its config.
    """

    lines: str
    known: Mapping[str, Mapping[str, int | str]] = field(default_factory=dict)


_GENERIC = {"generic": {"THREADS": 128}}
SOURCES = {
    "rms_norm": Own(
        "return flashinfer::norm::RMSNorm<T>(input, weight, output, R, D, input_0, output_0, 1e-6f, false, stream);"
    ),
    "add_rms_norm": Own(
        "return flashinfer::norm::FusedAddRMSNorm<T>("
        "input, residual, weight, R, D, input_0, residual_0, 1e-6f, false, stream);"
    ),
    "rope": Own("""\
return flashinfer::BatchQKApplyRotaryPosIdsCosSinCache<T, int32_t>(
    q, k, q_rope, k_rope, cos_sin_cache, pos_ids, N, HQ, HK, D, D, q_0, q_1, k_0, k_1, q_rope_0, q_rope_1,
    k_rope_0, k_rope_1, false, stream);"""),
    "merge_states": Own(
        "return flashinfer::MergeState<T, T>(v_a, s_a, v_b, s_b, v_merged, s_merged, S, H, D, stream);"
    ),
    "softmax": Own("""\
const size_t bytes = R * ((V + 8191) / 8192) * 8 + 256;
return flashinfer::sampling::OnlineSoftmax<float>(
    logits, output, R, V, nullptr, 0.7f, workspace, bytes, false, stream);"""),
    "silu_and_mul": Own("""\
using S = torch::headeronly::Of<T>;
using P = typename vllm::PackedTypeConverter<S>::Type;
vllm::act_and_mul_kernel<S, P, vllm::silu_kernel<S>, vllm::packed_silu_kernel<P>, true, use_vec, false>
    <<<R, THREADS, 0, stream>>>(
        reinterpret_cast<S*>(out), reinterpret_cast<const S*>(input), W / 2, 0.0f, 1.0f, 0.0f);"""),
    "quantize_rows": Own(
        "vllm::dynamic_scaled_int8_quant_kernel<T, float><<<R, THREADS, 0, stream>>>(input, output, scale, D);"
    ),
    "embedding": Own(
        """\
const int64_t vectors = D / ELEMENTS;
const dim3 grid((vectors + THREADS - 1) / THREADS, std::min<int64_t>(N, 65535));
vllm::vocab_embedding::vocab_parallel_embedding_kernel<I, Vector><<<grid, THREADS, 0, stream>>>(
    reinterpret_cast<Vector*>(out), input_ids, reinterpret_cast<const Vector*>(weight), N, vectors, 0, V, 0, 0, 0);""",
        {
            "vectors": {"ELEMENTS": 8, "Vector": "uint4"},
            "generic": {"ELEMENTS": 1, "Vector": "uint16_t", "THREADS": 256},
        },
    ),
    "rope_in_place": Own("""\
vllm::rotary_embedding_kernel<T, float, true><<<N, THREADS, 0, stream>>>(
    positions, query, key, cos_sin_cache, D, query_0, key_0, query_1, HQ, HK, D, 0, false);"""),
    "causal_conv": Own(
        """\
ConvParamsBase p{};
p.batch = B, p.dim = D, p.seqlen = L, p.width = W, p.silu_activation = true;
p.x_ptr = x, p.weight_ptr = weight, p.bias_ptr = bias, p.out_ptr = out;
p.x_batch_stride = x_0, p.x_c_stride = x_1, p.x_l_stride = x_2;
p.out_batch_stride = out_0, p.out_c_stride = out_1, p.out_l_stride = out_2;
p.weight_c_stride = weight_0, p.weight_width_stride = weight_1;
causal_conv1d_fwd_launch<THREADS, 4, T, T>(p, stream);""",
        _GENERIC,
    ),
    "selective_scan": Own(
        """\
SSMParamsBase p{};
p.batch = B, p.dim = D, p.seqlen = L, p.dstate = N, p.n_groups = G, p.dim_ngroups_ratio = D / G;
p.n_chunks = (L + THREADS * ITEMS - 1) / (THREADS * ITEMS);
p.is_variable_B = p.is_variable_C = p.delta_softplus = true;
p.A_ptr = a, p.B_ptr = b, p.C_ptr = c, p.D_ptr = skip, p.delta_bias_ptr = delta_bias, p.x_ptr = workspace;
p.u_ptr = u, p.delta_ptr = delta, p.z_ptr = z, p.out_ptr = out, p.out_z_ptr = out_z;
p.A_d_stride = a_0, p.A_dstate_stride = a_1;
p.B_batch_stride = b_0, p.B_group_stride = b_1, p.B_dstate_stride = b_2;
p.C_batch_stride = c_0, p.C_group_stride = c_1, p.C_dstate_stride = c_2;
p.u_batch_stride = u_0, p.u_d_stride = u_1, p.delta_batch_stride = delta_0, p.delta_d_stride = delta_1;
p.z_batch_stride = z_0, p.z_d_stride = z_1, p.out_batch_stride = out_0, p.out_d_stride = out_1;
p.out_z_batch_stride = out_z_0, p.out_z_d_stride = out_z_1;
selective_scan_fwd_launch<THREADS, ITEMS, T, float>(p, stream);""",
        {"generic": {"THREADS": 64, "ITEMS": 8}},
    ),
    "layer_norm": Own("layer_norm_cuda(stream, x, w, b, y, 1e-5f, R, D);"),
    "hadamard": Own("""\
using Traits = sglang::FastHadamardKernelTraits<THREADS, 12, T>;
HadamardParamsBase p{};
p.batch = R, p.dim = D, p.log_N = 12, p.scale = 1.0f / 64;
p.x_ptr = x, p.out_ptr = out, p.x_batch_stride = x_0, p.out_batch_stride = out_0;
sglang::fast_hadamard_transform_kernel<Traits><<<R, THREADS, Traits::kSmemSize, stream>>>(p);"""),
}

_FUNCTION = """\
#define SGL_CUDA_ARCH {capability}0
#include <algorithm>
#include <cstdint>
#include <tuple>
#include "{file}"
extern "C" __attribute__((visibility("default"))) int own_call(void** tensors, const long long* numbers,
                                                               void* workspace, void* given) try {{
[[maybe_unused]] const auto stream = static_cast<cudaStream_t>(given);
{names}
{lines}
return static_cast<int>(cudaGetLastError());
}} catch (...) {{
  return -1;
}}
"""


def source_of(
    operator: Operator, kernel: str, config: Mapping[str, Any], dtypes: Mapping[str, str], capability: int
) -> str:
    """The source of a call. `dtypes` are the problem's, where it has others than the operator's first."""
    own, known = SOURCES[operator.name], operator.concrete(dtypes)
    types = {v: DTYPES[dtypes.get(v, choices[0])].cuda for v, choices in operator.dtypes.items()}
    names = []
    for number, tensor in enumerate(known.tensors):
        names.append(f"const auto {tensor.name} = static_cast<{tensor.dtype.cuda}*>(tensors[{number}]);")
    numbers = [*operator.dims, *(f"{t.name}_{axis}" for t in operator.tensors for axis in range(t.rank))]
    names += [f"const int64_t {name} = numbers[{number}];" for number, name in enumerate(numbers)]
    for name, value in {**own.known.get(kernel, {}), **config}.items():
        if isinstance(value, str):
            types[name] = value
        else:
            names.append(f"constexpr int {name} = {int(value)};")
    names += [f"using {name} = {text};" for name, text in types.items()]
    (function,) = operator.kernel(kernel).functions
    file = TEMPLATES.parent / function.path
    unused = "\n".join(f"[[maybe_unused]] {n}" if not n.startswith("using") else n for n in names)
    return _FUNCTION.format(capability=capability, file=file, names=unused, lines=own.lines)


@dataclass(frozen=True)
class Build:
    """A call to compile: a kernel's config and dtypes, and the name of a target."""

    operator: Operator
    kernel: str
    config: Mapping[str, Any]
    dtypes: Mapping[str, str]
    target: str

    @property
    def key(self) -> str:
        """Equal builds have equal keys."""
        return json.dumps([self.operator.name, self.kernel, self.config, self.dtypes, self.target], sort_keys=True)


def compiled(build: Build, folder: Path, nvcc: str) -> Path:
    """The library with the call, in a folder of its own.

    Raises:
        ValueError: with the compiler's message.
    """
    folder.mkdir(parents=True)
    target, options = target_by_name(build.target), build.operator.kernel(build.kernel).compile
    capability = target.facts["capability"]
    text = source_of(build.operator, build.kernel, build.config, build.dtypes, capability)
    (folder / "own.cu").write_text(text)
    standard = () if any(o.startswith("-std=") for o in options.options) else ("-std=c++17",)
    includes = (f"-I{place}" for place in options.include_directories)
    flags = [*standard, *_FLAGS, _HOST, *code_flags(target), *includes, *options.options]
    argv = [nvcc, *flags, *_runtime(nvcc), "own.cu", "-o", "own.so"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr + done.stdout).splitlines()
        wrong = [line for line in lines if "error" in line] or lines[-3:]
        raise ValueError(f"nvcc: {' | '.join(wrong[:3])}")
    return folder / "own.so"


def _runtime(nvcc: str) -> list[str]:
    """Where CUDA's runtime is: nvcc from a wheel does not look there."""
    found = Path(shutil.which(nvcc) or nvcc).resolve().parents[1] / "lib"
    return [f"-L{found}"] if (found / "libcudart_static.a").is_file() else []


def launcher(call: PackageCall, library: Path) -> Callable[[], object]:
    """The call on the current stream."""
    function = ctypes.CDLL(str(library)).own_call
    tensors = [call.tensors.get(t.name) for t in call.operator.tensors]
    pointers = [t.data_ptr() if t is not None else None for t in tensors]
    strides = [s for t, told in zip(tensors, call.operator.tensors, strict=True) for s in _strides(t, told.rank)]
    numbers = [*(call.problem.dims[d] for d in call.operator.dims), *strides]
    given = (
        (ctypes.c_void_p * len(pointers))(*pointers),
        (ctypes.c_longlong * len(numbers))(*numbers),
        ctypes.c_void_p(call.workspace.data_ptr()),
    )

    def run() -> None:
        status = function(*given, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        if status:
            raise ValueError(f"the package's launch fails with {status}")

    return run


def _strides(tensor: Any, rank: int) -> list[int]:
    return list(tensor.stride()) if tensor is not None else [0] * rank
