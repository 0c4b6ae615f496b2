"""What templates of CUDA C++ may call: as in C++, but everything is read from one struct that the kernel is passed."""

from __future__ import annotations

from collections.abc import Sequence

from aot_tune.render.cxx_functions import CxxFunctions, scalar_type
from aot_tune.render.dlpack_tensor import TENSOR
from aot_tune.render.formula_statements import Dialect
from aot_tune.spec import Tensor
from aot_tune.spec.dtypes import dtype
from aot_tune.support.errors import RenderError

__all__ = ["CudaFunctions"]

_HEAD = f"""\
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

{TENSOR}
"""

_FP8 = "#include <cuda_fp8.h>\n#include <cuda_runtime.h>"

_CONVERSIONS = """\
__host__ __device__ inline float to_float(float x) { return x; }
__host__ __device__ inline float to_float(__half x) { return __half2float(x); }
__host__ __device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T>
__host__ __device__ inline T from_float(float x);
template <>
__host__ __device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__host__ __device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__host__ __device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
"""

_FUNCTIONS = {
    "exp": "expf", "log": "logf", "sqrt": "sqrtf", "tanh": "tanhf", "erf": "erff", "abs": "fabsf", "floor": "floorf",
}  # fmt: skip


# Of NVIDIA's types, whose constructors round to the nearest and saturate: in instructions from sm_89 on, else in code.
_CONVERSIONS_OF_EIGHT_BITS = """\
__host__ __device__ inline float to_float({type} x) {{ return static_cast<float>(x); }}
template <>
__host__ __device__ inline {type} from_float<{type}>(float x) {{
  return {type}(x);
}}
"""


class CudaFunctions(CxxFunctions):
    """Template functions of `.cu.j2` files. `args` is a variable of the type `Arguments`.

    Values of floats are float, but of f64; those of f64 and of integers are what they are.
    """

    required = ("workspace", "launch", "preload")
    _public = (
        "prelude kernel_signature no_workspace pack dtype dtype_name itemsize dim size stride ptr address present attr "
        "attr_value load store store_output apply_epilogue epilogue_functions epilogue_output epilogue_steps rank "
        "scratch activation unroll apply_fragment"
    )
    _activation_qualifiers = "__device__ inline"
    _activations = "common/math.cuh.j2"
    _argument = "args."

    def prelude(self) -> str:
        """Includes, `DLTensor`, `Arguments`, `to_float` and `from_float`."""
        short = {t.dtype.cuda: None for t in self._op.tensors if t.dtype.saturates}
        head = _HEAD.replace("#include <cuda_runtime.h>", _FP8) if short else _HEAD
        more = "".join(_CONVERSIONS_OF_EIGHT_BITS.format(type=name) for name in short)
        return self._hooks.open_once(
            "prelude", lambda: f"{head}namespace {{\n\n{self._struct()}\n{_CONVERSIONS}{more}}}  // namespace\n"
        )

    def _struct(self) -> str:
        lines = [
            "// The arguments of a call, as they are passed to kernels; an absent tensor is null.",
            "struct Arguments {",
        ]
        lines += [f"  int64_t dim_{d};" for d in self._op.dims]
        for tensor in self._op.tensors:
            const = "" if tensor.written else "const "
            lines += [
                f"  {const}{tensor.dtype.cuda}* {tensor.name};",
                f"  int64_t stride_{tensor.name}[{tensor.rank}];",
            ]
        lines += [f"  {scalar_type(s.dtype_name)} {s.name};" for s in self._op.scalars]
        lines += [f"  int32_t {a.name};" for a in self._op.attributes]
        return "\n".join([*lines, "};", ""])

    def pack(self) -> str:
        """The initialiser of `Arguments` from what `launch` or `workspace` is given."""
        values = [super(CudaFunctions, self).dim(d) for d in self._op.dims]
        for tensor in self._op.tensors:
            const = "" if tensor.written else "const "
            pointer = f"static_cast<{const}{tensor.dtype.cuda}*>({tensor.name}->data)"
            strides = ", ".join(f"{tensor.name}->strides[{i}]" for i in range(tensor.rank))
            if tensor.optional:
                pointer = f"{tensor.name} != nullptr ? {pointer} : nullptr"
                strides = ", ".join(
                    f"{tensor.name} != nullptr ? {tensor.name}->strides[{i}] : 0" for i in range(tensor.rank)
                )
            values += [pointer, f"{{{strides}}}"]
        values += [s.name for s in self._op.scalars] + [a.name for a in self._op.attributes]
        return "{" + ", ".join(values) + "}"

    def dtype(self, tensor: str) -> str:
        """The C++ type of a tensor's elements."""
        return self._tensor(tensor).dtype.cuda

    def dtype_name(self, tensor: str) -> str:
        """The name of a tensor's element type: f32, f16, bf16, f8e4m3."""
        return self._tensor(tensor).dtype.name

    def itemsize(self, tensor: str) -> int:
        """Bytes of one element of a tensor."""
        return self._tensor(tensor).dtype.itemsize

    def dim(self, name: str) -> str:
        """The extent of a dim."""
        super().dim(name)
        return f"INT64_C({self._constants[name]})" if name in self._constants else f"args.dim_{name}"

    def stride(self, tensor: str, axis: int) -> str:
        """The stride of a tensor's axis in elements."""
        self._axis(tensor, axis)
        known = self._stride_constant(tensor, axis)
        return f"args.stride_{tensor}[{axis}]" if known is None else f"INT64_C({known})"

    def present(self, tensor: str) -> str:
        """Whether an optional tensor was passed, as a C++ condition."""
        known = super().present(tensor)
        return f"(args.{tensor} != nullptr)" if known == f"({tensor} != nullptr)" else known

    def attr(self, name: str) -> str:
        """The index of an attribute's value."""
        known = super().attr(name)
        return f"args.{name}" if known == name else known

    def unroll(self, count: int) -> str:
        """Ask the compiler to unroll the loop that follows."""
        return super().unroll(count).replace("GCC ", "")

    def ptr(self, tensor: str) -> str:
        """The typed data pointer of a tensor."""
        return f"args.{self._tensor(tensor).name}"

    def load(self, tensor: str, indices: Sequence[str], lanes: int = 1, count: str | None = None) -> str:
        """The element at `indices`: as a float, of f64 and integers as it is."""
        self._single(lanes, count)
        return super().load(tensor, indices)

    def store(self, tensor: str, indices: Sequence[str], value: str, lanes: int = 1, count: str | None = None) -> str:
        """A statement that converts `value`, a float but for f64 and integers, and stores it at `indices`."""
        self._single(lanes, count)
        self._all_indices(tensor, indices)
        declared = self._tensor(tensor)
        if not declared.written:
            raise self._is_input(tensor)
        convert = "from_float" if _is_computed_as_float(declared) else "static_cast"
        return f"*({self.address(tensor, indices)}) = {convert}<{declared.dtype.cuda}>({value});"

    def apply_epilogue(self, tensor: str, indices: Sequence[str], variable: str) -> str:
        """A statement that takes the float `variable` through the operator's epilogue at `indices`, without a store."""
        self._all_indices(tensor, indices)
        lines = [f"float& aot_v = {variable};", *self._applied(self._steps(tensor), indices), "(void)aot_v;"]
        return self._hooks.open("apply_epilogue", lambda: "{ " + " ".join(lines) + " }")

    def activation(self, choice: str) -> str:
        """The name of the function that an activation calls: an approximate one where the output hides its error."""
        epilogue = self._op.epilogue
        output = self._tensor(epilogue.output).dtype if epilogue is not None else None
        short = output is not None and output.is_floating and output.itemsize <= 2
        return f"{choice}_approximate" if short and choice != "relu" else choice

    def apply_fragment(
        self, name: str, indices: Sequence[str], variable: str, lanes: int = 1, count: str | None = None
    ) -> str:
        """A statement that takes the float `variable` through a fragment of the operator at these indices."""
        self._single(lanes, count)
        return super().apply_fragment(name, indices, variable)

    def _dialect(self) -> Dialect:
        return Dialect("float", _FUNCTIONS, {}, self._rounded)

    def _rounded(self, dtype_name: str, value: str) -> str:
        return f"to_float(from_float<{dtype(dtype_name).cuda}>({value}))"

    def _element(self, tensor: str, indices: Sequence[str]) -> str:
        one = f"*({self.address(tensor, indices)})"
        return f"to_float({one})" if _is_computed_as_float(self._tensor(tensor)) else one

    def _single(self, lanes: int, count: str | None) -> None:
        if lanes != 1 or count is not None:
            raise RenderError(
                "CUDA templates load and store one element at a time",
                fix="take address(...) and load a vector yourself",
            )


def _is_computed_as_float(tensor: Tensor) -> bool:
    """Whether kernels compute with a tensor's elements as floats, which would lose bits of others."""
    return tensor.dtype.is_floating and tensor.dtype.bits <= 32
