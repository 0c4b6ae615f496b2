"""The source of a Triton candidate: what its kernel is compiled from, and the C++ that launches it.

A launcher has a candidate's four functions, over `runtime/triton`. Its text is in `cpp/`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aot_tune.expr.integer_expressions import Root, as_expr
from aot_tune.render.candidate import Candidate
from aot_tune.render.environment import Hooks, text_templates
from aot_tune.render.template_functions import CPP, SYMBOL, TENSOR, CxxFunctions, parameters
from aot_tune.render.triton.binding import Argument, bind, inspections_of, pin_of
from aot_tune.render.triton.grid import grid_values, print_expr, trace_grid
from aot_tune.render.triton.recipe import Recipe, as_data, fragment_data, of_data, with_recipes
from aot_tune.spec import (
    AMD_OPTIONS,
    OPTIONS,
    Declarations,
    Expr,
    Kernel,
    Operator,
    Target,
    Tensor,
    TritonFunction,
    dtype,
)
from aot_tune.spec.targets import refuse_device_facts
from aot_tune.support.errors import AotTuneError, RenderError, did_you_mean

_HEADERS = {"hip": "launcher_hip.h"}
_TEMPLATES = text_templates(CPP)
INTEGERS = {
    "i1": "uint8_t",
    "u1": "uint8_t",
    **{f"i{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}_t" for bits in (8, 16, 32, 64)},
}
FLOATS = {"fp16": "uint16_t", "bf16": "uint16_t", "fp32": "float", "fp64": "double"}
_ELEMENTS = {
    "f32": "fp32",
    "f64": "fp64",
    "f16": "fp16",
    "bf16": "bf16",
    "f8e4m3": "fp8e4nv",
    "f8e5m2": "fp8e5",
    "bool": "u1",
    **{f"{sign}{bits}": f"{sign}{bits}" for sign in "iu" for bits in (8, 16, 32, 64)},
}
"""Element type to its name in Triton's signatures."""
_SCALARS = {
    "f32": "fp32",
    "f64": "fp32",
    "bool": "u1",
    **dict.fromkeys(("i8", "i16", "i32", "u8", "u16"), "i32"),
    **dict.fromkeys(("i64", "u32"), "i64"),
    "u64": "u64",
}
"""Scalars as the JIT passes Python's numbers: a float has 32 bits whatever it was, an integer what its range needs."""
_TYPES = ("i1", "i8", "i16", "i32", "i64", "u1", "u8", "u16", "u32", "u64", "fp16", "bf16", "fp32", "fp64")
_OWN = ("dtype", "fragment")
"""Kinds of constexprs that a recipe holds apart from others."""
_FIRST_WITH_PDL = 90
"""The level from which on kernels may begin before the one in front of them has ended."""


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
        number: ends the names of what a launcher has for it: empty, `_2` for a second function, and so on.
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
    number: str = ""

    def __post_init__(self) -> None:
        kept = tuple(p for p in self.passed if p.type != "constexpr")
        object.__setattr__(self, "parameters", kept)


def render_triton(
    operator: Operator, candidate: Candidate, target: Target, constants: Mapping[str, int] | None = None
) -> tuple[list[Recipe], str]:
    """The recipes of a candidate's functions, and its source: the recipes with the launcher.

    Args:
        operator: with the candidate's dtypes.
        candidate: of a kernel with a Triton function.
        target: what it is compiled for.
        constants: facts that hold in every call that the candidate gets.

    Raises:
        RenderError: naming kernel, argument and remedy, for what a Triton kernel cannot be passed.
    """
    kernel = operator.kernel(candidate.kernel)
    what = f"operator {operator.name!r}: kernel {kernel.name!r}"
    scene = _Scene(operator, kernel, candidate, target, what)
    recipes: list[Recipe] = []
    launches: list[Launch] = []
    try:
        bound = bind(operator, kernel, target.name)
        for launch, (function, inspection) in enumerate(inspections_of(kernel, target.name)):
            arguments = [a for a in bound if a.launch == launch]
            passed = [scene.passed(a) for a in arguments]
            recipes.append(scene.recipe(launch, function, inspection, passed))
            launches.append(
                Launch(
                    operator=operator,
                    family=target.family,
                    function=function,
                    passed=tuple(passed),
                    values=grid_values(arguments, candidate.config, candidate.pins, scene.facts),
                    facts=scene.facts,
                    constants=dict(constants or {}),
                    zeroed=_zeroed(operator, function, inspection, passed, _buffers(launches), what),
                    what=what,
                    number=f"_{launch + 1}" if launch else "",
                )
            )
        return recipes, with_recipes(recipes, _render_launcher(launches))
    except RenderError:
        raise
    except AotTuneError as error:
        placed = error.what if error.what.startswith("operator") else f"{what}: {error.what}"
        raise RenderError(placed, why=error.why, fix=error.fix) from error


class _Scene:
    """What is known of a candidate: its config, its pins and the numbers of its target."""

    def __init__(self, operator: Operator, kernel: Kernel, candidate: Candidate, target: Target, what: str) -> None:
        self.operator, self.config, self.pins = operator, dict(candidate.config), candidate.pins
        self.several = len(kernel.triton_functions) > 1
        self.target, self.what = target, what
        self.facts = {f"target.{n}": v for n, v in target.facts.items()}
        for name, value in self.config.items():
            spread = next((p.values for p in kernel.parameters if p.name == name), ())
            named = isinstance(value, str)
            fact = value if not named else spread.index(value) if value in spread else None
            if fact is not None and not isinstance(value, float):
                self.facts[f"parameter.{name}"] = int(fact)
        for variable, choices in operator.dtypes.items():
            chosen = candidate.dtypes.get(variable, choices[0])
            self.facts[f"dtype.{variable}"] = choices.index(chosen)

    def passed(self, a: Argument) -> Passed:
        """An argument with its type in the signature."""
        lower: dict[str, Callable[[Argument], Passed]] = {
            "pointer": self._pointer,
            "integer": self._integer,
            "scalar": self._scalar,
            "quotient": self._quotient,
            "descriptor": self._descriptor,
            "buffer": self._buffer,
            "dtype": self._dtype,
            "fragment": self._fragment,
            "parameter": self._parameter,
            "constant": lambda a: self._constant(a, a.value),
        }
        return lower[a.kind](a)

    def recipe(
        self, launch: int, function: TritonFunction, inspection: Declarations, passed: Sequence[Passed]
    ) -> Recipe:
        """How one of the kernel's functions is compiled."""
        constexprs = {p.name: as_data(p.value) for p in passed if p.type == "constexpr" and p.argument.kind not in _OWN}
        return Recipe(
            function=function.function,
            digest=inspection.digest,
            signature={p.name: p.type for p in passed},
            constexprs=constexprs,
            dtypes={p.name: p.value for p in passed if p.argument.kind == "dtype"},
            divisible=[p.name for p in passed if p.divisible],
            ranges=[p.name for p in passed if f"{p.argument.pin}.range" in self.pins],
            options=self._options(launch, function, inspection),
            fragments={p.name: p.value for p in passed if p.argument.kind == "fragment"},
        )

    def _options(self, launch: int, function: TritonFunction, inspection: Declarations) -> dict[str, int | bool]:
        """Launch options. A config's value goes before that of a kernel's only function."""
        options: dict[str, int | bool] = {}
        for name, option in function.options.items():
            if (pin := f"option.{pin_of(launch, name)}") in self.pins:
                options[name] = self.pins[pin]
            elif isinstance(option, Expr):
                options[name] = self._known(option, f"the launch option {name!r}")
            else:
                options[name] = option
        for name in (*OPTIONS, *(AMD_OPTIONS if self.target.family == "hip" else ())):
            value = self.config.get(name)
            if isinstance(value, (str, float)):
                raise RenderError(f"{self.what}: launch option {name}={value!r} is not an integer")
            if value is not None and not (self.several and name in options):
                options[name] = value
        if function.launch_pdl and self.target.family == "cuda" and self.target.level >= _FIRST_WITH_PDL:
            options["launch_pdl"] = True
        if function.cooperative:
            options["launch_cooperative_grid"] = True
        if inspection.debug:
            options["debug"] = True
        return dict(sorted(options.items()))

    def _pointer(self, a: Argument) -> Passed:
        if self.pins.get(f"{a.pin}.none"):
            return Passed(argument=a, type="constexpr")
        if a.parameter.constexpr:
            raise RenderError(
                f"{self.what}: the constexpr argument {a.name!r} is passed the tensor {a.tensor!r}",
                why="a constexpr is a number that is known when the kernel is compiled",
                fix="pass an integer, an expression of dims or DTypeOf",
            )
        kind = a.parameter.annotation or f"*{self._element(a, self.operator.tensor(a.tensor).dtype.name)}"
        if not kind.startswith("*"):
            raise RenderError(
                f"{self.what}: the argument {a.name!r} is annotated {kind!r} and passed the tensor {a.tensor!r}",
                fix="pass a scalar, or remove the annotation",
            )
        return Passed(argument=a, type=kind, divisible=f"{a.pin}%16" in self.pins)

    def _parameter(self, a: Argument) -> Passed:
        p = a.parameter
        if a.name not in self.config and not p.has_default:
            raise RenderError(
                f"{self.what}: the config {self.config} has no value for the argument {a.name!r}",
                fix=f"give {a.name!r} in every config, or a default in the function",
            )
        return self._constant(a, self.config.get(a.name, of_data(p.default)))

    def _buffer(self, a: Argument) -> Passed:
        assert a.buffer is not None
        kind = a.parameter.annotation or f"*{self._element(a, a.buffer.dtype_name)}"
        return Passed(argument=a, type=kind, divisible=a.parameter.special and a.parameter.align)

    def _dtype(self, a: Argument) -> Passed:
        return Passed(argument=a, type="constexpr", value=self._element(a, self.operator.tensor(a.tensor).dtype.name))

    def _fragment(self, a: Argument) -> Passed:
        return Passed(argument=a, type="constexpr", value=fragment_data(self.operator, a.value))

    def _scalar(self, a: Argument) -> Passed:
        scalar = next(s for s in self.operator.scalars if s.name == a.value)
        return Passed(argument=a, type=self._number(a, a.parameter.annotation or _SCALARS[scalar.dtype_name]))

    def _quotient(self, a: Argument) -> Passed:
        kind = "constexpr" if a.parameter.constexpr else a.parameter.annotation or "fp32"
        if kind not in FLOATS:
            raise RenderError(
                f"{self.what}: argument {a.name!r} is {a.value!r}, and {kind}",
                why="a quotient of a call is passed as a float",
                fix="round it by // or math.ceil, or pass a constant",
            )
        return Passed(argument=a, type=kind)

    def _descriptor(self, a: Argument) -> Passed:
        assert a.descriptor is not None
        tensor, block = self.operator.tensor(a.tensor), a.descriptor.block
        where = f"{self.what}: argument {a.name!r}: the descriptor of {a.tensor!r}"
        if len(block) != tensor.rank or tensor.rank > 5:
            raise RenderError(
                f"{where} has a block of {len(block)} axes, and the tensor has {tensor.rank}",
                fix="give a block with one extent per axis; descriptors have at most five",
            )
        if a.descriptor.order and sorted(a.descriptor.order) != list(range(tensor.rank)):
            raise RenderError(
                f"{where} has the order {a.descriptor.order}", fix=f"list each of its {tensor.rank} axes once, from 0"
            )
        if a.descriptor.padding not in ("zero", "nan"):
            raise RenderError(f"{where}: padding {a.descriptor.padding!r}", fix="use 'zero' or 'nan'")
        extents = [self._known(e, f"the block of argument {a.name!r}") if isinstance(e, Expr) else e for e in block]
        return Passed(argument=a, type=f"tensordesc<{self._element(a, tensor.dtype.name)}{extents}>")

    def _integer(self, a: Argument) -> Passed:
        p = a.parameter
        assert a.expr is not None
        expr = a.expr.substitute(self.facts)
        if a.pin in self.pins:
            pinned = self.pins[a.pin]
            return Passed(argument=a, type="constexpr", value=bool(pinned) if a.boolean else pinned)
        if expr.op == "const":
            return self._constant(a, bool(expr.value) if a.boolean else int(expr.value))
        unknown = [f for f in expr.facts() if f.startswith("target.")]
        if unknown:
            raise RenderError(
                f"{self.what}: argument {a.name!r} asks for {unknown[0]!r}, which {self.target.name} does not tell",
                fix=did_you_mean(unknown[0], self.facts),
            )
        if p.constexpr:
            raise RenderError(
                f"{self.what}: the constexpr argument {a.name!r} is {expr.key()}, which has no value here",
                why="a constexpr is known when the kernel is compiled",
                fix="tune the kernel on problems, or pass a constant",
            )
        kind = self._number(a, p.annotation or ("i64" if self.pins.get(f"{a.pin}.bits") == 64 else "i32"))
        return Passed(argument=a, type=kind, expr=expr, divisible=f"{a.pin}%16" in self.pins)

    def _constant(self, a: Argument, value: Any) -> Passed:
        """A value that all calls share, by the rules of the JIT for a number that it is passed."""
        p = a.parameter
        if p.constexpr or value is None:
            return Passed(argument=a, type="constexpr", value=value)
        if isinstance(value, bool):
            return Passed(argument=a, type=self._number(a, p.annotation or "u1"), value=value)
        if isinstance(value, float):
            return Passed(argument=a, type=self._number(a, p.annotation or "fp32"), value=value)
        if not isinstance(value, int) or not -(2**63) <= value < 2**63:
            raise RenderError(
                f"{self.what}: argument {a.name!r} is {str(value)[:60]!r}",
                why="a kernel is passed tensors, numbers of 64 bits, booleans and None",
                fix="declare it tl.constexpr in the function, or pass another value",
            )
        if value == 1 and p.special and not p.annotation:
            return Passed(argument=a, type="constexpr", value=1)
        kind = self._number(a, p.annotation or ("i32" if -(2**31) <= value < 2**31 else "i64"))
        marked = value % 16 == 0 and p.special and p.align and kind[0] in "iu" and kind != "u1"
        return Passed(argument=a, type=kind, value=value, divisible=marked)

    def _number(self, a: Argument, kind: str) -> str:
        if kind not in _TYPES:
            raise RenderError(
                f"{self.what}: argument {a.name!r} has the type {kind!r}, which a number cannot be passed as",
                fix=f"use one of {', '.join(_TYPES)}",
            )
        return kind

    def _element(self, a: Argument, dtype: str) -> str:
        if dtype not in _ELEMENTS:
            raise RenderError(
                f"{self.what}: argument {a.name!r}: Triton kernels are not passed {dtype}",
                fix=f"use one of {', '.join(_ELEMENTS)}",
            )
        return _ELEMENTS[dtype]

    def _known(self, expr: Expr, which: str) -> int:
        value = expr.substitute(self.facts)
        refuse_device_facts(value.facts(), f"{self.what}: {which}")
        if value.op != "const":
            raise RenderError(
                f"{self.what}: {which} is {value.key()}, which has no value here",
                why="it is fixed when the kernel is compiled",
                fix="use parameters and numbers of the target",
            )
        return int(value.value)


def _buffers(launches: Sequence[Launch]) -> dict[int, tuple[Launch, Passed]]:
    """The buffers of launches by `id`, each with the first that has it, and what it is passed as there."""
    buffers: dict[int, tuple[Launch, Passed]] = {}
    for launch in launches:
        for p in launch.parameters:
            if p.argument.buffer is not None:
                buffers.setdefault(id(p.argument.buffer), (launch, p))
    return buffers


def _zeroed(
    operator: Operator,
    function: TritonFunction,
    inspection: Declarations,
    passed: list[Passed],
    earlier: Container[int],
    what: str,
) -> tuple[Passed, ...]:
    """What a launch sets to 0: `reset_to_zero`, and `zero` buffers whose `id` is of no `earlier` launch."""
    by_name = {p.name: p for p in passed}
    new = (p for p in passed if id(p.argument.buffer) not in earlier)
    zeroed = [p for p in new if p.argument.buffer is not None and p.argument.buffer.zero]
    for name in dict.fromkeys((*function.reset_to_zero, *inspection.reset_to_zero)):
        entry = by_name.get(name)
        written = entry is not None and entry.argument.tensor and operator.tensor(entry.argument.tensor).output
        if entry is None or not (written or entry.argument.buffer is not None):
            raise RenderError(
                f"{what}: reset_to_zero names {name!r}, which is no output or buffer that the kernel is passed",
                why="inputs are not changed, and the kernel reads what an inout tensor holds",
                fix="name a kernel argument that is an output, or make it a Buffer",
            )
        if entry not in zeroed and entry.type != "constexpr":
            zeroed.append(entry)
    return tuple(zeroed)


def _render_launcher(launches: Sequence[Launch]) -> str:
    """The launcher of a kernel's functions. Raises RenderError for what cannot be had at a call."""
    first, buffers = launches[0], _buffers(launches)
    op, hooks = first.operator, Hooks()
    cxx = CxxFunctions(op, first.constants, hooks)
    declared = parameters(op)
    text = _TEMPLATES.get_template("triton_launcher.cpp.j2").render(
        tensor=TENSOR,
        header=_HEADERS.get(first.family, "launcher.h"),
        symbol=SYMBOL,
        signature=cxx.kernel_signature,
        device=f"{next(t for t in op.tensors if not t.optional).name}->device.device_id",
        plan_parameters=_unused([*declared, "int32_t aot_device"]),
        plan_arguments=", ".join([*op.arguments, "aot_device", "&aot_plan"]),
        note_parameters=_unused([*declared, "char* buffer", "size_t buffer_size"]),
        launches=[_Writer(launch, cxx, buffers).pieces() for launch in launches],
    )
    return hooks.finalize(text)


class _Writer:
    def __init__(self, launch: Launch, cxx: CxxFunctions, buffers: Mapping[int, tuple[Launch, Passed]]) -> None:
        self.launch, self.cxx, self.op, self.buffers = launch, cxx, launch.operator, buffers
        self.descriptors = [p for p in launch.parameters if p.argument.kind == "descriptor"]

    def pieces(self) -> dict[str, Any]:
        launch = self.launch
        computed = any(p.expr is not None or p.argument.kind in ("scalar", "quotient") for p in launch.parameters)
        described = [f"launcher::descriptor_parameters({self._rank(p)})" for p in self.descriptors]
        own = [p for first, p in self.buffers.values() if first is launch]
        return {
            "n": launch.number,
            "descriptors": [(p, self._described(p)) for p in self.descriptors],
            "members": [(p, self._member_type(p)) for p in launch.parameters],
            "extents": self._extents(),
            "buffers": [self._counted(p) for p in own],
            "zeroing": [line for p in launch.zeroed for line in self._zero(p)],
            "checked": computed,
            "values": [line for p in launch.parameters for line in self._values(p, f"aot_arguments.p_{p.name}")],
            "most": " + ".join([str(len(launch.parameters) - len(self.descriptors) + 2), *described]),
            "adding": [line for p in launch.parameters for line in self._add(p)],
        }

    def _place(self, p: Passed) -> str:
        """Ends the names of what the plan has for a buffer, `at_x` and `bytes_x`."""
        first, named = self.buffers[id(p.argument.buffer)]
        return f"{first.number}_{named.name}"

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
            exists, place = f"aot_plan.bytes{self._place(p)} != 0", self._place(p)
            call = f"launcher::zero(aot_plan.memory.start + aot_plan.at{place}, aot_plan.bytes{place}, stream)"
        else:
            tensor = self.op.tensor(p.argument.tensor)
            exists = self.cxx.present(tensor.name)
            call = f"launcher::clear(*{tensor.name}, {tensor.dtype.itemsize}, stream)"
        line = f"if (const int32_t aot_status = {call}) return aot_status;"
        return [line] if exists == "true" else [f"if ({exists}) {{", f"  {line}", "}"]

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
        n, to = self.launch.number, f"&aot_arguments.p_{p.name}, &aot_next"
        passed = f"call::aot_kernel{n}, call::described{n}_{p.name}, *{tensor.name}, {to}"
        return ["if (const int32_t aot_status =", f"        launcher::describe({passed}))", "  return aot_status;"]

    def _rank(self, p: Passed) -> int:
        return self.op.tensor(p.argument.tensor).rank

    def _described(self, p: Passed) -> str:
        tensor, descriptor = self.op.tensor(p.argument.tensor), p.argument.descriptor
        assert descriptor is not None
        nan = "true" if descriptor.padding == "nan" else "false"
        order = ", ".join(map(str, descriptor.order or range(tensor.rank)))
        meta = f"kernel{self.launch.number}::meta_{p.name}"
        return f"{{{tensor.rank}, {tensor.dtype.itemsize}, {nan}, {{{order}}}, {meta}, nullptr, 0}}"

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
            return [f"{to} = aot_plan.memory.start + aot_plan.at{self._place(p)};"]
        if a.kind == "descriptor":
            return []  # is described where it is added
        if a.kind == "scalar":
            scalar = next(s for s in self.op.scalars if s.name == a.value)
            if scalar.dtype_name in ("f32", "f64") and p.type in INTEGERS and p.type not in ("i1", "u1"):
                raise RenderError(
                    f"{self.launch.what}: argument {p.name!r}: the scalar {scalar.name!r} is a float, not {p.type}",
                    fix="declare the scalar i64 or another integer, or change the annotation",
                )
            return [_passed_scalar(scalar.name, scalar.dtype_name, p.type, to)]
        if p.expr is not None:
            return [_passed_number(self._print(p.expr, f"argument {p.name!r}"), p.type, to)]
        return [f"{to} = {_constant(p.value, p.type, f'{self.launch.what}: argument {p.name!r}')};"]

    def _quotient(self, p: Passed, to: str) -> list[str]:
        """As Python divides, in double precision."""
        given = p.argument.value
        parts = given.of.parts if isinstance(given, Root) else given.parts
        above, below = (self._print(as_expr(part), f"argument {p.name!r}") for part in parts)
        quotient = f"static_cast<double>({above}) / static_cast<double>({below})"
        value = f"__builtin_sqrt({quotient})" if isinstance(given, Root) else quotient
        return [f"aot_undefined |= {below} == 0;", _passed_number(value, p.type, to)]

    def _data(self, tensor: Tensor) -> str:
        passed = self.cxx.present(tensor.name)
        return f"{tensor.name}->data" if passed == "true" else f"{passed} ? {tensor.name}->data : nullptr"

    def _print(self, expr: Expr, which: str) -> str:
        return print_expr(expr.substitute(self.launch.facts), lambda fact: self._fact(fact, which))

    def _fact(self, fact: str, which: str) -> str:
        kind, _, rest = fact.partition(".")
        if not rest and fact in self.op.dims:
            return self.cxx.dim(fact)
        if kind == "attribute":
            return f"int64_t{{{self.cxx.attr(rest)}}}"
        if fact == "device.multiprocessors":
            return f"launcher::multiprocessors(call::aot_kernel{self.launch.number}, aot_device)"
        name, _, axis = rest.partition(".")
        tensor = next((t for t in self.op.tensors if t.name == name), None)
        if kind == "stride" and tensor is not None and axis.isdigit() and int(axis) < tensor.rank:
            return self._stride(tensor, int(axis))
        if kind == "present" and tensor is not None:
            return f"int64_t{{{self.cxx.present(name)}}}"
        if kind == "alignment" and tensor is not None:
            return f"launcher::alignment_of({self._data(tensor)})"
        facts = [*self.op.dims, *self.launch.facts, "device.multiprocessors"]
        raise RenderError(
            f"{self.launch.what}: {which} uses {fact!r}, which is not known at a call", fix=did_you_mean(fact, facts)
        )

    def _stride(self, tensor: Tensor, axis: int) -> str:
        read, passed = self.cxx.stride(tensor.name, axis), self.cxx.present(tensor.name)
        if passed == "true" or "->" not in read:
            return read
        later = [print_expr(e, lambda fact: self._fact(fact, "a shape")) for e in tensor.shape[axis + 1 :]]
        return f"({passed} ? {read} : {' * '.join(later) or 'INT64_C(1)'})"  # absent: as if row-major


def _passed_number(value: str, kind: str, to: str) -> str:
    """The statement that passes a C++ number as a type of the signature."""
    if kind in ("fp16", "bf16"):
        convert = "float16_bits" if kind == "fp16" else "bfloat16_bits"
        return f"{to} = launcher::{convert}(static_cast<double>({value}));"
    if kind in FLOATS:
        return f"{to} = static_cast<{FLOATS[kind]}>({value});"
    if kind in ("i1", "u1"):
        return f"{to} = {value} != 0;"
    return f"aot_fits &= launcher::narrow({value}, &{to});"


def _passed_scalar(name: str, dtype_name: str, kind: str, to: str) -> str:
    """The statement that passes a scalar argument: as `passed_number`, but u64 need not fit 64 bits with a sign."""
    if dtype_name != "u64" or kind in FLOATS or kind in ("i1", "u1"):
        return _passed_number(name, kind, to)
    if kind == "u64":
        return f"{to} = {name};"
    return f"aot_fits &= {name} <= INT64_MAX && launcher::narrow(static_cast<int64_t>({name}), &{to});"


def _constant(value: Any, kind: str, what: str) -> str:
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
