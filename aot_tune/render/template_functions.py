"""What templates may call: the operator's arguments, sizes, strides, loads, stores and epilogue, as C++ and CUDA C++.

In CUDA C++ everything is read from one struct that the kernel is passed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar

from aot_tune.expr.cpp_formulas import Dialect, Elements, cpp_statements
from aot_tune.expr.formulas import Program
from aot_tune.render.environment import Hooks
from aot_tune.spec import Activate, AddTensor, Compute, Expr, Operator, Scalar, Tensor
from aot_tune.spec.calls import BoundDim, bound_dims
from aot_tune.spec.dtypes import DTYPES, dtype
from aot_tune.spec.fragment_programs import program_of, step_program
from aot_tune.spec.fragments import Epilogue, EpilogueStep
from aot_tune.support.errors import RenderError, did_you_mean

CPP = Path(__file__).parent / "cpp"
"""The folder of C++ that is part of sources."""


def cpp_text(file: str) -> str:
    """C++ that is part of sources: a file of the folder `cpp`."""
    return (CPP / file).read_text(encoding="utf-8")


SYMBOL = "AOT_TUNE_SYMBOL"
"""Stands for the candidate's symbol until the digest of the source is known."""
TENSOR = cpp_text("dlpack_tensor.h")
"""DLPack's tensor as sources declare it: a library's own, whatever headers they include."""
NARROW = MappingProxyType({name: cpp_text(f"{name}.h") for name in ("bf16", "f16", "f8e4m3", "f8e5m2")})
"""The types of floats of 16 and 8 bits in C++, by the dtype's name. Compilers name theirs differently, or have none."""
_PRELUDE = f"""\
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

{TENSOR}"""
_CUDA_HEAD = f"""\
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

{TENSOR}
"""
_HIP_HEAD = f"""\
#include <hip/hip_bfloat16.h>
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>

#include <cstddef>
#include <cstdint>

{TENSOR}
using __nv_bfloat16 = hip_bfloat16;
__host__ __device__ inline float __bfloat162float(hip_bfloat16 x) {{ return static_cast<float>(x); }}
__host__ __device__ inline hip_bfloat16 __float2bfloat16_rn(float x) {{ return hip_bfloat16(x); }}
"""
_CUDA_FP8 = "#include <cuda_fp8.h>\n#include <cuda_runtime.h>"
_CUDA_CONVERSIONS = cpp_text("cuda_conversions.cuh")
# Of NVIDIA's types, whose constructors round to the nearest and saturate: in instructions from sm_89 on, else in code.
_CUDA_CONVERSIONS_OF_EIGHT_BITS = """\
__host__ __device__ inline float to_float({type} x) {{ return static_cast<float>(x); }}
template <>
__host__ __device__ inline {type} from_float<{type}>(float x) {{
  return {type}(x);
}}
"""
_CUDA_FUNCTIONS = {
    "exp": "expf", "log": "logf", "sqrt": "sqrtf", "tanh": "tanhf", "erf": "erff", "abs": "fabsf", "floor": "floorf",
}  # fmt: skip

_FORMULA_FUNCTIONS = {
    "exp": "std::exp", "log": "std::log", "sqrt": "std::sqrt", "tanh": "std::tanh", "erf": "std::erf",
    "abs": "std::fabs", "floor": "std::floor",
}  # fmt: skip
_LANE_FUNCTIONS = {
    "exp": "expf_fast", "tanh": "tanh_fast", "erf": "erf_fast", "abs": "fabs_fast", "relu": "relu", "gelu": "gelu",
    "gelu_tanh": "gelu_tanh", "silu": "silu",
}  # fmt: skip


class CxxFunctions:
    """Template functions for one candidate; `constants` are the facts that it is specialised on."""

    _argument = ""
    """What stands before the name of a scalar."""

    _activation_qualifiers = "[[gnu::noinline]]"
    _activations = "common/math.h.j2"

    required: ClassVar[tuple[str, ...]] = ("workspace", "launch")
    """Functions that every template of the language must define."""

    _public = (
        "prelude kernel_signature no_workspace dtype dim size stride ptr address present attr attr_value load store "
        "store_output epilogue_functions unroll scratch has_eight_bit_floats apply_fragment rank"
    )

    def __init__(
        self, operator: Operator, constants: Mapping[str, int], hooks: Hooks, scratch: Expr | None = None
    ) -> None:
        self._op, self._constants, self._hooks, self._scratch = operator, dict(constants), hooks, scratch
        self._named: set[str] = set()

    def names(self) -> dict[str, Callable[..., Any]]:
        """Function name to function, as templates see them."""
        return {name: getattr(self, name) for name in self._public.split()}

    # -- signature -----------------------------------------------------------------------------------------------

    def prelude(self) -> str:
        """Declarations that every candidate needs, and the types of elements that its text names."""
        return self._hooks.open_once("prelude", lambda: _PRELUDE + _narrow_types(self._named))

    def kernel_signature(self, function: str) -> str:
        """The head of `launch`, `workspace`, `preload` or `note`, to be followed by its body in braces."""
        ends: dict[str, tuple[str, ...]] = {
            "launch": ("void* workspace", "size_t workspace_size", "void* stream"),
            "workspace": ("size_t* workspace_size",),
            "preload": (),
            "note": ("char* buffer", "size_t buffer_size"),
        }
        if function not in ends:
            raise RenderError(f"kernel_signature({function!r})", fix=did_you_mean(function, ends))
        given = (*parameters(self._op), *ends[function]) if function != "preload" else ()
        listed = ",\n    ".join(f"[[maybe_unused]] {a}" for a in given) or "void"
        head = f'extern "C" __attribute__((visibility("default"))) int32_t {SYMBOL}_{function}(\n    {listed})'
        return self._hooks.open_once(f"kernel_signature_{function}", lambda: head)

    def no_workspace(self) -> str:
        """A whole `workspace` function of a kernel that needs none."""
        return self.kernel_signature("workspace") + " {\n  *workspace_size = 0;\n  return 0;\n}\n"

    def scratch(self) -> str:
        """The bytes between the stages of a composed kernel, as it declares them."""
        scratch = self._scratch
        if scratch is None:
            raise RenderError(
                "scratch(): the kernel declares none",
                fix="give it scratch=, bytes as an expression of dims and parameters",
            )
        return self._hooks.open("scratch", lambda: scratch.cpp(self.dim))

    # -- facts ---------------------------------------------------------------------------------------------------

    def dtype(self, tensor: str) -> str:
        """The C++ type of a tensor's elements."""
        declared = self._tensor(tensor).dtype
        self._named.add(declared.name)
        return declared.c

    def has_eight_bit_floats(self) -> bool:
        """Whether a tensor of the operator is of a floating dtype of 8 bits."""
        return any(t.dtype.saturates for t in self._op.tensors)

    def dim(self, name: str) -> str:
        """The extent of a dim: a constant when the candidate is specialised on it, else read from an argument."""
        if name not in self._op.dims:
            raise RenderError(f"dim({name!r}): no such dim", fix=did_you_mean(name, self._op.dims))
        if name in self._constants:
            return f"INT64_C({self._constants[name]})"
        return self._bound[name].cpp(lambda other: CxxFunctions.dim(self, other))

    def rank(self, tensor: str) -> int:
        """How many axes a tensor has."""
        return self._tensor(tensor).rank

    def size(self, tensor: str, axis: int) -> str:
        """The extent of a tensor's axis."""
        self._axis(tensor, axis)
        return self._tensor(tensor).shape[axis].cpp(self.dim)

    def stride(self, tensor: str, axis: int) -> str:
        """The stride of a tensor's axis in elements."""
        self._axis(tensor, axis)
        constant = self._stride_constant(tensor, axis)
        return f"{tensor}->strides[{axis}]" if constant is None else f"INT64_C({constant})"

    def present(self, tensor: str) -> str:
        """Whether an optional tensor was passed, as a C++ condition."""
        if not self._tensor(tensor).optional:
            return "true"
        constant = self._constants.get(f"present.{tensor}")
        return f"({tensor} != nullptr)" if constant is None else ("true" if constant else "false")

    def attr(self, name: str) -> str:
        """The index of an attribute's value."""
        self._attribute_choices(name)
        constant = self._constants.get(f"attribute.{name}")
        return name if constant is None else str(constant)

    def attr_value(self, name: str, choice: str) -> int:
        """The index of one choice of an attribute."""
        choices = self._attribute_choices(name)
        if choice not in choices:
            raise RenderError(f"attribute {name!r} has no choice {choice!r}", fix=did_you_mean(choice, choices))
        return choices.index(choice)

    def unroll(self, count: int) -> str:
        """Ask the compiler to unroll the loop that follows."""
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 65534:
            raise RenderError(f"unroll({count!r}) is not a count from 1 to 65534")
        return f"#pragma GCC unroll {count}"

    # -- loads and stores ----------------------------------------------------------------------------------------

    def ptr(self, tensor: str) -> str:
        """The typed data pointer of a tensor."""
        declared = self._tensor(tensor)
        const = "" if declared.written else "const "
        return f"static_cast<{const}{self.dtype(tensor)}*>({tensor}->data)"

    def address(self, tensor: str, indices: Sequence[str]) -> str:
        """A pointer to the element at `indices` (leading axes only, or all)."""
        declared = self._tensor(tensor)
        if len(indices) > declared.rank:
            raise _wrong_indices(tensor, declared.rank, indices, "that many or fewer")
        terms = []
        for axis, index in enumerate(indices):
            constant = self._stride_constant(tensor, axis)
            if constant == 0:
                continue
            terms.append(f"({index})" if constant == 1 else f"({index}) * {self.stride(tensor, axis)}")
        return " + ".join([self.ptr(tensor), *terms])

    def load(self, tensor: str, indices: Sequence[str], lanes: int = 1, count: str | None = None) -> str:
        """The element at `indices`, or `lanes` of them along the last axis (of which `count` exist)."""
        self._all_indices(tensor, indices)
        if lanes == 1:
            return self._element(tensor, indices)
        self._unit_last(tensor)
        if count is None:
            return f"vload<{lanes}>({self.address(tensor, indices)})"
        return f"vload_partial<{lanes}>({self.address(tensor, indices)}, {count})"

    def store(self, tensor: str, indices: Sequence[str], value: str, lanes: int = 1, count: str | None = None) -> str:
        """A statement that stores `value` at `indices`."""
        self._all_indices(tensor, indices)
        declared = self._tensor(tensor)
        if not declared.written:
            raise self._is_input(tensor)
        if lanes == 1:
            return f"*({self.address(tensor, indices)}) = static_cast<{self.dtype(tensor)}>({value});"
        self._unit_last(tensor)
        if count is None:
            return f"vstore<{lanes}>({self.address(tensor, indices)}, {value});"
        return f"vstore_partial<{lanes}>({self.address(tensor, indices)}, {value}, {count});"

    def store_output(
        self, tensor: str, indices: Sequence[str], value: str, lanes: int = 1, count: str | None = None
    ) -> str:
        """As `store`, after the operator's epilogue; a statement in braces."""
        statement = self.store(tensor, indices, "aot_v", lanes, count)
        steps = self._steps(tensor)
        if any(isinstance(s, Activate) for s in steps) and not self._hooks.opened("epilogue_functions"):
            raise RenderError(
                f"store_output({tensor!r}): the operator has an activation whose functions are not there",
                fix=f'write {{% include "{self._activations}" %}} above',
            )

        declared = self._real() if lanes == 1 and any(isinstance(s, Compute) for s in steps) else "auto"
        lines = [f"{declared} aot_v = {value};", *self._applied(steps, indices, lanes, count), statement]
        return self._hooks.open("store_output", lambda: "{ " + " ".join(lines) + " }")

    def _steps(self, tensor: str) -> tuple[EpilogueStep, ...]:
        """The steps of the epilogue that a tensor gets."""
        epilogue = self._op.epilogue
        return epilogue.steps if epilogue is not None and epilogue.output == tensor else ()

    def _applied(
        self, steps: Sequence[EpilogueStep], indices: Sequence[str], lanes: int = 1, count: str | None = None
    ) -> list[str]:
        """Statements that take the variable `aot_v` through steps."""
        statements: list[str] = []
        for s in steps:
            if isinstance(s, Compute):
                statements += self._compute(s, indices, "aot_v", lanes, count)
            elif isinstance(s, AddTensor):
                statements.append(self._add(s, indices, lanes, count))
            else:
                statements.append(self._activate(s.attribute))
        return statements

    def epilogue_functions(self) -> str:
        """Functions that `store_output` calls; `common/math.h.j2` has it at its end."""
        return self._hooks.open_once("epilogue_functions", self._activation_functions)

    def epilogue_output(self) -> str:
        """The tensor that the operator's epilogue is applied to."""
        return self._epilogue().output

    def epilogue_steps(self, indices: Sequence[str]) -> list[SimpleNamespace]:
        """The steps of the epilogue at an element of its output, for templates that load and apply them on their own.

        Of an added tensor: `tensor`, `axes` (those of the output that its own are) and `indices`; of an activation:
        `attribute`, and `functions`, pairs of the attribute's index and the name of a function; of a formula:
        `compute(indices, variable)`, a statement.
        """
        self._all_indices(self.epilogue_output(), indices)
        steps = []
        for step in self._epilogue().steps:
            if isinstance(step, AddTensor):
                selected = [indices[axis] for axis in step.axes]
                steps.append(SimpleNamespace(tensor=step.tensor, axes=step.axes, indices=selected))
            elif isinstance(step, Compute):
                steps.append(SimpleNamespace(compute=self._computing(step)))
            else:
                choices = enumerate(self._attribute_choices(step.attribute))
                functions = [(i, self.activation(c)) for i, c in choices if c != "none"]
                steps.append(SimpleNamespace(attribute=step.attribute, functions=functions))
        return steps

    def activation(self, choice: str) -> str:
        """The name of the function that an activation other than `none` calls."""
        return choice

    def _epilogue(self) -> Epilogue:
        if self._op.epilogue is None:
            raise RenderError(f"operator {self._op.name!r} has no epilogue", fix="declare epilogue=Epilogue(...)")
        return self._op.epilogue

    @cached_property
    def _bound(self) -> dict[str, BoundDim]:
        return bound_dims(self._op)

    # -- pieces --------------------------------------------------------------------------------------------------

    def _element(self, tensor: str, indices: Sequence[str]) -> str:
        """The element as a value, which is float where its own dtype is narrower."""
        element = f"*({self.address(tensor, indices)})"
        return f"static_cast<float>({element})" if self._tensor(tensor).dtype.name in NARROW else element

    def _activation_functions(self) -> str:
        steps = self._op.epilogue.steps if self._op.epilogue else ()
        functions = []
        for step in steps:
            if not isinstance(step, Activate):
                continue
            choices = self._attribute_choices(step.attribute)
            cases = "".join(
                f"    case {i}:\n      return {self.activation(c)}(v);\n" for i, c in enumerate(choices) if c != "none"
            )
            functions.append(
                f"template <typename V>\n{self._activation_qualifiers} "
                f"V apply_{step.attribute}(V v, int32_t choice) {{\n"
                f"  switch (choice) {{\n{cases}    default:\n      return v;\n  }}\n}}\n"
            )
        return "namespace {\n" + "".join(functions) + "}  // namespace\n" if functions else ""

    def _activate(self, attribute: str) -> str:
        constant = self._constants.get(f"attribute.{attribute}")
        if constant is not None:
            choice = self._attribute_choices(attribute)[constant]
            return "" if choice == "none" else f"aot_v = {self.activation(choice)}(aot_v);"
        value = self.attr(attribute)
        choices = self._attribute_choices(attribute)
        skip = f"{value} != {choices.index('none')}" if "none" in choices else "true"
        return f"if ({skip}) aot_v = apply_{attribute}(aot_v, {value});"

    def _add(self, step: AddTensor, indices: Sequence[str], lanes: int, count: str | None) -> str:
        selected = [indices[a] for a in step.axes]
        add = self._add_lanes(step, selected, lanes, count, last_axis=len(indices) - 1)
        return f"if ({self.present(step.tensor)}) {{ {add} }}"

    def _add_lanes(self, step: AddTensor, selected: list[str], lanes: int, count: str | None, last_axis: int) -> str:
        element = self._element(step.tensor, selected)
        if lanes == 1 or step.axes[-1] != last_axis:  # lanes run along the output's last axis
            return f"aot_v += {element};"
        axis = len(selected) - 1
        start = self.address(step.tensor, selected)
        many = f"vload<{lanes}>({start})" if count is None else f"vload_partial<{lanes}>({start}, {count})"
        constant = self._stride_constant(step.tensor, axis)
        if constant == 1:
            return f"aot_v += {many};"
        upto = str(lanes) if count is None else f"({count})"
        gather = (
            f"for (int64_t aot_l = 0; aot_l < {upto}; ++aot_l) "
            f"aot_v[aot_l] += ({start})[aot_l * {self.stride(step.tensor, axis)}];"
        )
        if constant is not None:
            return gather
        return f"if ({self.stride(step.tensor, axis)} == 1) {{ aot_v += {many}; }} else {{ {gather} }}"

    def _tensor(self, name: str) -> Tensor:
        names = [t.name for t in self._op.tensors]
        if name not in names:
            raise RenderError(f"operator {self._op.name!r} has no tensor {name!r}", fix=did_you_mean(str(name), names))
        return self._op.tensor(name)

    def _axis(self, tensor: str, axis: int) -> None:
        rank = self._tensor(tensor).rank
        if isinstance(axis, bool) or not isinstance(axis, int) or not 0 <= axis < rank:
            raise RenderError(f"{tensor!r} has no axis {axis!r}", fix=f"use 0 to {rank - 1}")

    def _all_indices(self, tensor: str, indices: Sequence[str]) -> None:
        if len(indices) != self._tensor(tensor).rank:
            raise _wrong_indices(tensor, self._tensor(tensor).rank, indices, "one for each axis")

    def _is_input(self, tensor: str) -> RenderError:
        outputs = ", ".join(t.name for t in self._op.outputs)
        return RenderError(f"store({tensor!r}): it is an input", fix=f"store to an output: {outputs}")

    def _unit_last(self, tensor: str) -> None:
        last = self._tensor(tensor).rank - 1
        if self._stride_constant(tensor, last) != 1:
            raise RenderError(
                f"lanes > 1 on {tensor!r}, whose last stride is not known to be 1",
                fix=f"add stride({tensor!r}, {last}) == 1 to the kernel's requires",
            )

    def _stride_constant(self, tensor: str, axis: int) -> int | None:
        return self._constants.get(f"stride.{tensor}.{axis}")

    def _attribute_choices(self, name: str) -> tuple[str, ...]:
        choices = self._op.choices
        if name not in choices:
            raise RenderError(f"operator {self._op.name!r} has no attribute {name!r}", fix=did_you_mean(name, choices))
        return choices[name]

    # -- formulas ------------------------------------------------------------------------------------------------

    def apply_fragment(
        self, name: str, indices: Sequence[str], variable: str, lanes: int = 1, count: str | None = None
    ) -> str:
        """A statement that takes the float `variable` through a fragment of the operator at these indices.

        With `lanes` it is a vector, whose values are along the last index; of these `count` exist.
        """
        if name not in self._op.fragments:
            raise RenderError(
                f"operator {self._op.name!r} has no fragment {name!r}", fix=did_you_mean(name, self._op.fragments)
            )
        wanted = list(self._op.fragments[name].indices)
        if isinstance(indices, str) or len(indices) != len(wanted):
            raise RenderError(
                f"apply_fragment({name!r}): its indices are {', '.join(wanted)}, {indices!r} were given",
                fix="give a list with a C++ expression for each",
            )
        lines = self._statements(name, program_of(self._op, name), Elements(variable, indices, lanes, count))
        return self._hooks.open("apply_fragment", lambda: " ".join(lines))

    def scalar(self, name: str) -> str:
        """A scalar of the call."""
        return f"{self._argument}{name}"

    def dtype_of(self, tensor: str) -> str:
        """The name of a tensor's element type."""
        return self._op.tensor(tensor).dtype.name

    def _compute(
        self, step: Compute, indices: Sequence[str], variable: str, lanes: int = 1, count: str | None = None
    ) -> list[str]:
        """Statements that take a variable through a step of the epilogue."""
        return self._statements("e", step_program(self._op, step), Elements(variable, indices, lanes, count))

    def _computing(self, step: Compute) -> Callable[[Sequence[str], str], str]:
        """The same as a function of indices and a variable."""
        return lambda indices, variable: " ".join(self._compute(step, indices, variable))

    def _statements(self, name: str, program: Program, at: Elements) -> list[str]:
        return cpp_statements(name, program, self, self._dialect(), at)

    def _real(self) -> str:
        """The type of floats that formulas are computed in: that of f64 where the operator has such a tensor."""
        return "double" if any(t.dtype.name == "f64" for t in self._op.tensors) else "float"

    def _dialect(self) -> Dialect:
        """How floats are written, and which functions there are; those of vectors where they are included."""
        included = self._real() == "float" and self._hooks.opened("epilogue_functions")
        return Dialect(self._real(), _FORMULA_FUNCTIONS, _LANE_FUNCTIONS if included else {}, self._rounded)

    def _rounded(self, dtype_name: str, value: str) -> str:
        self._named.add(dtype_name)
        return f"static_cast<float>({dtype(dtype_name).c}(static_cast<float>({value})))"


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
    _head = _CUDA_HEAD
    _activation_qualifiers = "__device__ inline"
    _activations = "common/math.cuh.j2"
    _argument = "args."

    def prelude(self) -> str:
        """Includes, `DLTensor`, `Arguments`, `to_float` and `from_float`."""
        short = {t.dtype.cuda: None for t in self._op.tensors if t.dtype.saturates}
        head = self._head.replace("#include <cuda_runtime.h>", _CUDA_FP8) if short else self._head
        more = "".join(_CUDA_CONVERSIONS_OF_EIGHT_BITS.format(type=name) for name in short)
        return self._hooks.open_once(
            "prelude", lambda: f"{head}namespace {{\n\n{self._struct()}\n{_CUDA_CONVERSIONS}{more}}}  // namespace\n"
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
        lines += [f"  {scalar_type(s)} {s.name};" for s in self._op.scalars]
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
        constant = self._stride_constant(tensor, axis)
        return f"args.stride_{tensor}[{axis}]" if constant is None else f"INT64_C({constant})"

    def present(self, tensor: str) -> str:
        """Whether an optional tensor was passed, as a C++ condition."""
        condition = super().present(tensor)
        return f"(args.{tensor} != nullptr)" if condition == f"({tensor} != nullptr)" else condition

    def attr(self, name: str) -> str:
        """The index of an attribute's value."""
        text = super().attr(name)
        return f"args.{name}" if text == name else text

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
        return Dialect("float", _CUDA_FUNCTIONS, {}, self._rounded)

    def _rounded(self, dtype_name: str, value: str) -> str:
        return f"to_float(from_float<{dtype(dtype_name).cuda}>({value}))"

    def _element(self, tensor: str, indices: Sequence[str]) -> str:
        element = f"*({self.address(tensor, indices)})"
        return f"to_float({element})" if _is_computed_as_float(self._tensor(tensor)) else element

    def _single(self, lanes: int, count: str | None) -> None:
        if lanes != 1 or count is not None:
            raise RenderError(
                "CUDA templates load and store one element at a time",
                fix="take address(...) and load a vector yourself",
            )


class HipFunctions(CudaFunctions):
    """Template functions of `.hip.j2` files: those of CUDA, in HIP C++."""

    _head = _HIP_HEAD

    def prelude(self) -> str:
        """Includes, `DLTensor`, `Arguments`, `to_float` and `from_float`."""
        if any(t.dtype.saturates for t in self._op.tensors):
            raise RenderError("HIP templates have no floats of 8 bits", fix="leave these dtypes out of the kernel's")
        return super().prelude()


def _is_computed_as_float(tensor: Tensor) -> bool:
    """Whether kernels compute with a tensor's elements as floats, which would lose bits of others."""
    return tensor.dtype.is_floating and tensor.dtype.bits <= 32


def _wrong_indices(tensor: str, rank: int, indices: Sequence[str], wanted: str) -> RenderError:
    given = f"{len(indices)} {'index was' if len(indices) == 1 else 'indices were'} given"
    return RenderError(f"{tensor!r} has {rank} axes, {given}", fix=f"give {wanted}, as a list of C++ expressions")


def scalar_type(scalar: Scalar) -> str:
    """The C type that a scalar is passed as."""
    return DTYPES[scalar.dtype_name].c


def parameters(operator: Operator) -> list[str]:
    """Declarations of the tensors, scalars and attributes, in the order of the C functions."""
    result = [f"const DLTensor* {t.name}" for t in operator.tensors]
    result += [f"{scalar_type(s)} {s.name}" for s in operator.scalars]
    return result + [f"int32_t {a.name}" for a in operator.attributes]


def _narrow_types(dtypes: Collection[str]) -> str:
    """The types of those dtypes that need one, with internal linkage. Empty if none does."""
    types = [text for name, text in NARROW.items() if name in dtypes]
    return "namespace {\n\n" + "\n".join([cpp_text("bits_as.h"), *types]) + "\n}  // namespace\n" if types else ""
