"""The C++ that launches a Triton kernel: a candidate's four functions, over `runtime/triton`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aot_tune.expr.integers import Root, as_expr
from aot_tune.render.environment import Hooks, text_templates
from aot_tune.render.template_functions import CPP, SYMBOL, TENSOR, CxxFunctions, parameters
from aot_tune.render.triton.binding import Argument
from aot_tune.render.triton.grid import print_expr, trace_grid
from aot_tune.spec import Expr, Operator, Tensor, TritonFunction, dtype
from aot_tune.support.errors import RenderError, did_you_mean

__all__ = ["FLOATS", "INTEGERS", "Launch", "Passed", "constant", "passed_number", "passed_scalar", "render_launcher"]

_HEADERS = {"hip": "launcher_hip.h"}
_TEMPLATE = text_templates(CPP).get_template("triton_launcher.cpp.j2")
INTEGERS = {
    "i1": "uint8_t",
    "u1": "uint8_t",
    **{f"i{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}_t" for bits in (8, 16, 32, 64)},
}
FLOATS = {"fp16": "uint16_t", "bf16": "uint16_t", "fp32": "float", "fp64": "double"}


@dataclass(frozen=True)
class Passed:
    """An argument of a function with its type in Triton's signature; `value` is a constant's, `expr` an integer's."""

    argument: Argument
    type: str
    value: Any = None
    expr: Expr | None = None
    divisible: bool = False

    @property
    def name(self) -> str:
        """The parameter's name."""
        return self.argument.name


@dataclass(frozen=True)
class Launch:
    """What a launcher is rendered from.

    Args:
        operator: with concrete dtypes.
        family: of the target's devices.
        function: for its grid.
        passed: all parameters of the function, in order.
        values: what the grid may ask for, by name.
        facts: numbers that are the same in all calls, for expressions.
        constants: facts that hold in every call that the candidate gets.
        zeroed: arguments whose memory is set to 0 before a launch.
        what: names operator and kernel in messages.
    """

    operator: Operator
    family: str
    function: TritonFunction
    passed: tuple[Passed, ...]
    values: Mapping[str, Any]
    facts: Mapping[str, int]
    constants: Mapping[str, int]
    zeroed: tuple[Passed, ...]
    what: str
    parameters: tuple[Passed, ...] = field(init=False)

    def __post_init__(self) -> None:
        kept = tuple(p for p in self.passed if p.type != "constexpr")
        object.__setattr__(self, "parameters", kept)


def render_launcher(launch: Launch) -> str:
    """The launcher of one kernel.

    Raises:
        RenderError: for a grid or an expression that cannot be had at a call.
    """
    hooks = Hooks()
    writer = _Writer(launch, CxxFunctions(launch.operator, launch.constants, hooks))
    return hooks.finalize(writer.text())


class _Writer:
    def __init__(self, launch: Launch, cxx: CxxFunctions) -> None:
        self.launch, self.cxx, self.op = launch, cxx, launch.operator
        self.descriptors = [p for p in launch.parameters if p.argument.kind == "descriptor"]

    def text(self) -> str:
        launch, op = self.launch, self.op
        names, declared = op.arguments, parameters(op)
        computed = any(p.expr is not None or p.argument.kind in ("scalar", "quotient") for p in launch.parameters)
        described = [f"launcher::descriptor_parameters({self._rank(p)})" for p in self.descriptors]
        return _TEMPLATE.render(
            tensor=TENSOR,
            header=_HEADERS.get(launch.family, "launcher.h"),
            symbol=SYMBOL,
            signature=self.cxx.kernel_signature,
            device=f"{next(t for t in op.tensors if not t.optional).name}->device.device_id",
            descriptors=[(p, self._described(p)) for p in self.descriptors],
            members=[(p, self._member_type(p)) for p in launch.parameters],
            plan_parameters=_unused([*declared, "int32_t aot_device"]),
            plan_arguments=", ".join([*names, "aot_device", "&aot_plan"]),
            note_parameters=_unused([*declared, "char* buffer", "size_t buffer_size"]),
            extents=self._extents(),
            buffers=[self._counted(p) for p in launch.parameters if p.argument.kind == "buffer"],
            zeroing=[line for p in launch.zeroed for line in self._zero(p)],
            checked=computed,
            values=[line for p in launch.parameters for line in self._values(p, f"aot_arguments.p_{p.name}")],
            most=" + ".join([str(len(launch.parameters) - len(self.descriptors) + 2), *described]),
            adding=[line for p in launch.parameters for line in self._add(p)],
        )

    def _extents(self) -> list[tuple[str, str]]:
        """The extents of the grid, by axis."""
        passed = [p.argument for p in self.launch.passed]
        extents = trace_grid(self.op, self.launch.function, passed, self.launch.values, self.launch.what)
        texts = [self._print(extent, "the grid") for extent in extents]
        return list(zip("xyz", [*texts, "1", "1"], strict=False))

    def _counted(self, p: Passed) -> tuple[Passed, str, int]:
        """A buffer with the count of its elements and their size in bytes."""
        buffer = p.argument.buffer
        assert buffer is not None
        return (
            p,
            self._print(as_expr(buffer.count), f"the count of buffer {p.name!r}"),
            dtype(buffer.dtype_name).itemsize,
        )

    def _zero(self, p: Passed) -> list[str]:
        if p.argument.kind == "buffer":
            there = f"aot_plan.bytes_{p.name} != 0"
            call = f"launcher::zero(aot_plan.memory.start + aot_plan.at_{p.name}, aot_plan.bytes_{p.name}, stream)"
        else:
            tensor = self.op.tensor(p.argument.tensor)
            there = self.cxx.present(tensor.name)
            call = f"launcher::clear(*{tensor.name}, {tensor.dtype.itemsize}, stream)"
        line = f"if (const int32_t aot_status = {call}) return aot_status;"
        return [line] if there == "true" else [f"if ({there}) {{", f"  {line}", "}"]

    def _add(self, p: Passed) -> list[str]:
        if p.argument.kind != "descriptor":
            return [f"*aot_next++ = &aot_arguments.p_{p.name};"]
        tensor = self.op.tensor(p.argument.tensor)
        if self.cxx.present(tensor.name) != "true":
            raise RenderError(
                f"{self.launch.what}: argument {p.name!r} is a descriptor of {tensor.name!r}, which may be left out",
                why="there is no descriptor of nothing",
                fix=f"add present({tensor.name!r}) == 1 to the kernel's requires",
            )
        passed = f"call::aot_kernel, call::described_{p.name}, *{tensor.name}, &aot_arguments.p_{p.name}, &aot_next"
        return ["if (const int32_t aot_status =", f"        launcher::describe({passed}))", "  return aot_status;"]

    def _rank(self, p: Passed) -> int:
        return self.op.tensor(p.argument.tensor).rank

    def _described(self, p: Passed) -> str:
        tensor, descriptor = self.op.tensor(p.argument.tensor), p.argument.descriptor
        assert descriptor is not None
        nan = "true" if descriptor.padding == "nan" else "false"
        order = ", ".join(map(str, descriptor.order or range(tensor.rank)))
        return f"{{{tensor.rank}, {tensor.dtype.itemsize}, {nan}, {{{order}}}, kernel::meta_{p.name}, nullptr, 0}}"

    def _member_type(self, p: Passed) -> str:
        if p.argument.kind == "descriptor":
            return "launcher::Descriptor"
        return "void*" if p.type.startswith("*") else (INTEGERS | FLOATS)[p.type]

    def _values(self, p: Passed, to: str) -> list[str]:
        return self._quotient(p, to) if p.argument.kind == "quotient" else self._value(p, to)

    def _value(self, p: Passed, to: str) -> list[str]:
        a = p.argument
        if a.kind == "pointer":
            return [f"{to} = {self._data(self.op.tensor(a.tensor))};"]
        if a.kind == "buffer":
            return [f"{to} = aot_plan.memory.start + aot_plan.at_{p.name};"]
        if a.kind == "descriptor":
            return []  # is described where it is added
        if a.kind == "scalar":
            scalar = next(s for s in self.op.scalars if s.name == a.value)
            if scalar.dtype_name in ("f32", "f64") and p.type in INTEGERS and p.type not in ("i1", "u1"):
                raise RenderError(
                    f"{self.launch.what}: argument {p.name!r}: the scalar {scalar.name!r} is a float, not {p.type}",
                    fix="declare the scalar i64 or another integer, or change the annotation",
                )
            return [passed_scalar(scalar.name, scalar.dtype_name, p.type, to)]
        if p.expr is not None:
            return [passed_number(self._print(p.expr, f"argument {p.name!r}"), p.type, to)]
        return [f"{to} = {constant(p.value, p.type, f'{self.launch.what}: argument {p.name!r}')};"]

    def _quotient(self, p: Passed, to: str) -> list[str]:
        """As Python divides, in double precision."""
        given = p.argument.value
        parts = given.of.parts if isinstance(given, Root) else given.parts
        above, below = (self._print(as_expr(part), f"argument {p.name!r}") for part in parts)
        quotient = f"static_cast<double>({above}) / static_cast<double>({below})"
        value = f"__builtin_sqrt({quotient})" if isinstance(given, Root) else quotient
        return [f"aot_undefined |= {below} == 0;", passed_number(value, p.type, to)]

    def _data(self, tensor: Tensor) -> str:
        there = self.cxx.present(tensor.name)
        return f"{tensor.name}->data" if there == "true" else f"{there} ? {tensor.name}->data : nullptr"

    def _print(self, expr: Expr, which: str) -> str:
        return print_expr(expr.substitute(self.launch.facts), lambda fact: self._fact(fact, which))

    def _fact(self, fact: str, which: str) -> str:
        kind, _, rest = fact.partition(".")
        if not rest and fact in self.op.dims:
            return self.cxx.dim(fact)
        if kind == "attribute":
            return f"int64_t{{{self.cxx.attr(rest)}}}"
        if fact == "device.multiprocessors":
            return "launcher::multiprocessors(call::aot_kernel, aot_device)"
        name, _, axis = rest.partition(".")
        tensor = next((t for t in self.op.tensors if t.name == name), None)
        if kind == "stride" and tensor is not None and axis.isdigit() and int(axis) < tensor.rank:
            return self._stride(tensor, int(axis))
        if kind == "present" and tensor is not None:
            return f"int64_t{{{self.cxx.present(name)}}}"
        if kind == "alignment" and tensor is not None:
            return f"launcher::alignment_of({self._data(tensor)})"
        known = [*self.op.dims, *self.launch.facts, "device.multiprocessors"]
        raise RenderError(
            f"{self.launch.what}: {which} uses {fact!r}, which is not known at a call", fix=did_you_mean(fact, known)
        )

    def _stride(self, tensor: Tensor, axis: int) -> str:
        read, there = self.cxx.stride(tensor.name, axis), self.cxx.present(tensor.name)
        if there == "true" or "->" not in read:
            return read
        later = [print_expr(e, lambda fact: self._fact(fact, "a shape")) for e in tensor.shape[axis + 1 :]]
        return f"({there} ? {read} : {' * '.join(later) or 'INT64_C(1)'})"  # absent: as if row-major


def passed_number(value: str, kind: str, to: str) -> str:
    """The statement that passes a C++ number as a type of the signature."""
    if kind in ("fp16", "bf16"):
        convert = "float16_bits" if kind == "fp16" else "bfloat16_bits"
        return f"{to} = launcher::{convert}(static_cast<double>({value}));"
    if kind in FLOATS:
        return f"{to} = static_cast<{FLOATS[kind]}>({value});"
    if kind in ("i1", "u1"):
        return f"{to} = {value} != 0;"
    return f"aot_fits &= launcher::narrow({value}, &{to});"


def passed_scalar(name: str, dtype_name: str, kind: str, to: str) -> str:
    """The statement that passes a scalar argument: as `passed_number`, but u64 need not fit 64 bits with a sign."""
    if dtype_name != "u64" or kind in FLOATS or kind in ("i1", "u1"):
        return passed_number(name, kind, to)
    if kind == "u64":
        return f"{to} = {name};"
    return f"aot_fits &= {name} <= INT64_MAX && launcher::narrow(static_cast<int64_t>({name}), &{to});"


def constant(value: Any, kind: str, what: str) -> str:
    """A constant of the type in C++."""
    if kind in FLOATS:
        number = f"{float(value)!r}" if math.isfinite(value) else f"{'-' if value < 0 else ''}__builtin_{_odd(value)}"
        convert = {"fp16": "launcher::float16_bits", "bf16": "launcher::bfloat16_bits"}
        return f"{convert.get(kind, f'static_cast<{FLOATS[kind]}>')}({number})"
    if kind in ("i1", "u1"):
        return "1" if value else "0"
    bits, integer = int(kind[1:]), int(value) if math.isfinite(value) else 0
    low, high = (0, 2**bits) if kind[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    if not low <= integer < high or integer != value:
        raise RenderError(f"{what}: the constant {value!r} does not fit the type {kind}", fix="change it or its type")
    return "INT64_MIN" if integer == -(2**63) else f"INT64_C({integer})"


def _odd(value: float) -> str:
    return "inf()" if math.isinf(value) else 'nan("")'


def _unused(declared: Sequence[str]) -> str:
    """Parameters of a function that may use none of them."""
    return ",\n    ".join(f"[[maybe_unused]] {parameter}" for parameter in declared)
