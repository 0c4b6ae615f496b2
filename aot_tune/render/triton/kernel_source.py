"""The source of a Triton candidate: what its kernel is compiled from, and the C++ that launches it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aot_tune.render.candidate import Candidate
from aot_tune.render.triton.binding import Argument, bind, inspection_of
from aot_tune.render.triton.fragment_source import fragment_data
from aot_tune.render.triton.grid import grid_values
from aot_tune.render.triton.launcher import FLOATS, Launch, Passed, render_launcher
from aot_tune.render.triton.recipe import Recipe, as_data, of_data, with_recipe
from aot_tune.spec import AMD_OPTIONS, OPTIONS, Declarations, Expr, Kernel, Operator, Target, TritonFunction
from aot_tune.spec.targets import refuse_device_facts
from aot_tune.support.errors import AotTuneError, RenderError, did_you_mean

__all__ = ["render_triton"]

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


def render_triton(
    operator: Operator, candidate: Candidate, target: Target, constants: Mapping[str, int] | None = None
) -> tuple[Recipe, str]:
    """The recipe of a candidate's kernel, and its source: the recipe with the launcher.

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
    try:
        function, inspection = inspection_of(kernel, target.name)
        arguments = bind(operator, kernel, target.name)
        scene = _Scene(operator, kernel, candidate, target, what)
        passed = [scene.passed(a) for a in arguments]
        recipe = Recipe(
            function=function.function,
            digest=inspection.digest,
            signature={p.name: p.type for p in passed},
            constexprs={
                p.name: as_data(p.value) for p in passed if p.type == "constexpr" and p.argument.kind not in _OWN
            },
            dtypes={p.name: p.value for p in passed if p.argument.kind == "dtype"},
            divisible=[p.name for p in passed if p.divisible],
            ranges=[p.name for p in passed if f"{p.name}.range" in candidate.pins],
            options=scene.options(function, inspection),
            fragments={p.name: p.value for p in passed if p.argument.kind == "fragment"},
        )
        launch = Launch(
            operator=operator,
            family=target.family,
            function=function,
            passed=tuple(passed),
            values=grid_values(arguments, candidate.config, candidate.pins, scene.facts),
            facts=scene.facts,
            constants=dict(constants or {}),
            zeroed=_zeroed(operator, function, inspection, passed, what),
            what=what,
        )
        return recipe, with_recipe(recipe, render_launcher(launch))
    except RenderError:
        raise
    except AotTuneError as error:
        placed = error.what if error.what.startswith("operator") else f"{what}: {error.what}"
        raise RenderError(placed, why=error.why, fix=error.fix) from error


class _Scene:
    """What is known of a candidate: its config, its pins and the numbers of its target."""

    def __init__(self, operator: Operator, kernel: Kernel, candidate: Candidate, target: Target, what: str) -> None:
        self.operator, self.config, self.pins = operator, dict(candidate.config), candidate.pins
        self.target, self.what = target, what
        self.facts = {f"target.{n}": v for n, v in target.facts.items()}
        for name, value in self.config.items():
            spread = next((p.values for p in kernel.parameters if p.name == name), ())
            named = isinstance(value, str)
            known = value if not named else spread.index(value) if value in spread else None
            if known is not None and not isinstance(value, float):
                self.facts[f"parameter.{name}"] = int(known)
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

    def options(self, function: TritonFunction, inspection: Declarations) -> dict[str, int | bool]:
        """Launch options: a config's before the function's."""
        found: dict[str, int | bool] = {}
        for name, option in function.options.items():
            if f"option.{name}" in self.pins:
                found[name] = self.pins[f"option.{name}"]
            elif isinstance(option, Expr):
                found[name] = self._known(option, f"the launch option {name!r}")
            else:
                found[name] = option
        for name in (*OPTIONS, *(AMD_OPTIONS if self.target.family == "hip" else ())):
            value = self.config.get(name)
            if isinstance(value, (str, float)):
                raise RenderError(f"{self.what}: launch option {name}={value!r} is not an integer")
            if value is not None:
                found[name] = value
        if function.launch_pdl and self.target.family == "cuda" and self.target.level >= _FIRST_WITH_PDL:
            found["launch_pdl"] = True
        if function.cooperative:
            found["launch_cooperative_grid"] = True
        if inspection.debug:
            found["debug"] = True
        return dict(sorted(found.items()))

    def _pointer(self, a: Argument) -> Passed:
        if self.pins.get(f"{a.name}.none"):
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
        return Passed(argument=a, type=kind, divisible=f"{a.name}%16" in self.pins)

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
                f"{where} has the order {a.descriptor.order}",
                fix=f"list each of its {tensor.rank} axes once, from 0",
            )
        if a.descriptor.padding not in ("zero", "nan"):
            raise RenderError(f"{where}: padding {a.descriptor.padding!r}", fix="use 'zero' or 'nan'")
        extents = [self._known(e, f"the block of argument {a.name!r}") if isinstance(e, Expr) else e for e in block]
        return Passed(argument=a, type=f"tensordesc<{self._element(a, tensor.dtype.name)}{extents}>")

    def _integer(self, a: Argument) -> Passed:
        p = a.parameter
        assert a.expr is not None
        expr = a.expr.substitute(self.facts)
        if a.name in self.pins:
            pinned = self.pins[a.name]
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
        kind = self._number(a, p.annotation or ("i64" if self.pins.get(f"{a.name}.bits") == 64 else "i32"))
        return Passed(argument=a, type=kind, expr=expr, divisible=f"{a.name}%16" in self.pins)

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


def _zeroed(
    operator: Operator, function: TritonFunction, inspection: Declarations, passed: list[Passed], what: str
) -> tuple[Passed, ...]:
    """Arguments whose memory is set to 0 before a launch: those declared, and those of the autotuner."""
    by_name = {p.name: p for p in passed}
    found = [p for p in passed if p.argument.buffer is not None and p.argument.buffer.zero]
    for name in dict.fromkeys((*function.reset_to_zero, *inspection.reset_to_zero)):
        one = by_name.get(name)
        written = one is not None and one.argument.tensor and operator.tensor(one.argument.tensor).output
        if one is None or not (written or one.argument.buffer is not None):
            raise RenderError(
                f"{what}: reset_to_zero names {name!r}, which is no output or buffer that the kernel is passed",
                why="inputs are not changed, and the kernel reads what an inout tensor holds",
                fix="name a kernel argument that is an output, or make it a Buffer",
            )
        if one not in found and one.type != "constexpr":
            found.append(one)
    return tuple(found)
