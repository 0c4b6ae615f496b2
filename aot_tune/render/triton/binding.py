"""What the parameters of a Triton function are passed: tensors, numbers of the call, of the target and of a config."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from aot_tune.expr.integer_expressions import Ratio, Root
from aot_tune.render.triton.recipe import of_data
from aot_tune.spec import (
    OPTIONS,
    Buffer,
    ConfigValue,
    Declarations,
    Descriptor,
    DTypeOf,
    Expr,
    FragmentOf,
    Kernel,
    KernelArgument,
    KernelParameter,
    Operator,
    TritonFunction,
    dim,
)
from aot_tune.spec.calls import dims_of_scalars
from aot_tune.spec.fragments import EPILOGUE
from aot_tune.spec.kernel import check_guard_parameters
from aot_tune.support.errors import SpecError, did_you_mean


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    """What a parameter of a function is in a candidate.

    `kind` is pointer, integer, quotient, scalar, constant, descriptor, buffer, dtype, fragment or parameter (a
    config's). `expr` is there for integers and for constexprs of the call or the target, `value` for constants and
    names of fragments, `tensor` also for dtypes; `boolean` says that a constexpr's expression gives True and False.
    `launch` is the place of its function among the kernel's, from 0.
    """

    parameter: KernelParameter
    kind: str
    tensor: str = ""
    expr: Expr | None = None
    value: Any = None
    descriptor: Descriptor | None = None
    buffer: Buffer | None = None
    boolean: bool = False
    launch: int = 0

    @property
    def name(self) -> str:
        return self.parameter.name

    @property
    def pin(self) -> str:
        """Its name among a candidate's pins: that of a second function's parameter is `2:name`."""
        return pin_of(self.launch, self.name)


def pin_of(launch: int, name: str) -> str:
    """A name of one of a kernel's functions among a candidate's pins."""
    return f"{launch + 1}:{name}" if launch else name


def inspections_of(kernel: Kernel, target: str) -> list[tuple[TritonFunction, Declarations]]:
    """A kernel's functions for a target: launch options of heuristics, declarations. Raises SpecError if not read."""
    return [_inspection_of(kernel, function, target) for function in kernel.triton_functions]


def _inspection_of(kernel: Kernel, function: TritonFunction, target: str) -> tuple[TritonFunction, Declarations]:
    if target not in function.inspections:
        raise SpecError(
            f"kernel {kernel.name!r}: the Triton function {function.function!r} was not read for {target}",
            fix="install Triton, and name the target in AOT_TUNE_TARGETS",
        )
    inspection = function.inspections[target]
    given = {n: Expr.of(e) for n, e in inspection.heuristics.items() if n in OPTIONS and n not in function.options}
    return (replace(function, options={**function.options, **given}) if given else function), inspection


def resolved(kernel: Kernel, target: str) -> Kernel:
    """The kernel with the space of its function's autotuner, where it has none of its own.

    A generic kernel's is its first config.
    """
    if kernel.triton is None or kernel.parameters:
        return kernel
    configs = tuned(kernel, target).configs
    if not configs:
        check_guard_parameters(kernel)
        return kernel
    listed: tuple[dict[str, ConfigValue], ...] = ()
    for config in ({n: v for n, v in c.items() if v is not None} for c in configs):
        listed += (config,) if config not in listed else ()
    complete = replace(kernel, listed=listed, order=listed)
    check_guard_parameters(complete)
    return complete


def tuned(kernel: Kernel, target: str) -> Declarations:
    """What the function with an autotuner declares, else the first. Raises SpecError if several have one."""
    every = inspections_of(kernel, target)
    several = [pair for pair in every if pair[1].configs]
    if len(several) > 1:
        raise SpecError(
            f"kernel {kernel.name!r}: {' and '.join(f.function for f, _ in several)} have autotuners",
            why="a config of the kernel is one for all of its functions",
            fix="give the kernel `parameters`, and pass them in `arguments` and `options` of each function",
        )
    return (several or every)[0][1]


def bind(operator: Operator, kernel: Kernel, target: str) -> tuple[Argument, ...]:
    """What each parameter of a kernel's functions is passed. Raises SpecError for what has no counterpart."""
    every = inspections_of(kernel, target)
    configured = {p.name for p in kernel.parameters} or {n for _, d in every for config in d.configs for n in config}
    return tuple(
        a if not launch else msgspec.structs.replace(a, launch=launch)
        for launch, (function, inspection) in enumerate(every)
        for a in _bound(operator, kernel, function, inspection, configured)
    )


def _bound(
    operator: Operator, kernel: Kernel, function: TritonFunction, inspection: Declarations, configured: set[str]
) -> Iterator[Argument]:
    names = [p.name for p in inspection.parameters]
    for name in (*function.arguments, *function.narrow):
        if name not in names:
            raise SpecError(
                f"operator {operator.name!r}: kernel {kernel.name!r}: {function.function!r} has no argument {name!r}",
                fix=did_you_mean(name, names),
            )
    for name in sorted(configured & set(function.arguments)) if len(kernel.triton_functions) == 1 else ():
        raise SpecError(
            f"operator {operator.name!r}: kernel {kernel.name!r}: {function.function!r}: argument {name!r} is "
            "in `arguments` and in the configs",
            why="the grid would use the config's value, and the code the argument's",
            fix=f"leave it out of the arguments. For one value of it write listed=table('{name} ...', (...))",
        )
    for p in inspection.parameters:
        yield _argument(operator, kernel, function, inspection, configured, p)


def _argument(
    operator: Operator,
    kernel: Kernel,
    function: TritonFunction,
    inspection: Declarations,
    configured: set[str],
    p: KernelParameter,
) -> Argument:
    if p.name in function.arguments:
        return _given(operator, kernel, p, function.arguments[p.name])
    if p.name in inspection.heuristics:
        boolean = p.constexpr and p.name in inspection.booleans
        expr = Expr.of(inspection.heuristics[p.name])
        return Argument(parameter=p, kind="integer", expr=expr, boolean=boolean)
    if p.name in configured:
        return Argument(parameter=p, kind="parameter")
    if p.name in {t.name for t in operator.tensors} | {s.name for s in operator.scalars}:
        return _given(operator, kernel, p, p.name)
    by_name = {**{d: dim(d) for d in operator.dims}, **function.options}  # the JIT passes an option to both
    if p.name in by_name:
        return _given(operator, kernel, p, by_name[p.name])
    if p.has_default:  # a text is no name of a tensor there
        default = of_data(p.default)
        text = Argument(parameter=p, kind="constant", value=default)
        return text if isinstance(default, str) else _given(operator, kernel, p, default)
    raise SpecError(
        f"operator {operator.name!r}: kernel {kernel.name!r}: nothing is passed as argument {p.name!r} of "
        f"{function.function!r}",
        why="it has no default, is no parameter of a config, and no tensor, scalar or dim has its name",
        fix=f"add {p.name!r} to the arguments of TritonFunction",
    )


def _given(operator: Operator, kernel: Kernel, p: KernelParameter, given: KernelArgument) -> Argument:
    where = f"operator {operator.name!r}: kernel {kernel.name!r}: argument {p.name!r}"
    given = dims_of_scalars(operator).get(given, given) if isinstance(given, str) else given
    tensors = [t.name for t in operator.tensors]
    if isinstance(given, (Buffer, Descriptor, DTypeOf, FragmentOf)):
        return _declared(operator, where, p, given)
    if isinstance(given, str) and p.constexpr and given in {s.name for s in operator.scalars}:
        raise SpecError(
            f"{where} is a constexpr, but {given!r} is a scalar",
            why="a constant is compiled in, a scalar is known only at a call",
            fix="pass a constant, or have the function take it as an ordinary argument",
        )
    if isinstance(given, str) and given in tensors:
        return Argument(parameter=p, kind="pointer", tensor=given)
    if isinstance(given, str) and not p.constexpr:
        scalars = [s.name for s in operator.scalars]
        if given not in scalars:
            names = [*tensors, *scalars]
            raise SpecError(f"{where}: {given!r} is no tensor or scalar", fix=did_you_mean(given, names))
        return Argument(parameter=p, kind="scalar", value=given)
    if isinstance(given, Expr):
        return Argument(parameter=p, kind="integer", expr=given)
    if isinstance(given, int) and not isinstance(given, bool) and not p.constexpr:
        return Argument(parameter=p, kind="integer", expr=Expr("const", value=given))
    return Argument(parameter=p, kind="quotient" if isinstance(given, (Ratio, Root)) else "constant", value=given)


def _fragment(operator: Operator, where: str, p: KernelParameter, name: str) -> Argument:
    if not p.constexpr:
        raise SpecError(
            f"{where} is the fragment {name!r}, and no constexpr",
            why="it is a function, which is known when the kernel is compiled",
            fix=f"write {p.name}: tl.constexpr",
        )
    fragments = [*operator.fragments, *([EPILOGUE] if operator.epilogue is not None else [])]
    if name not in fragments:
        raise SpecError(f"{where}: the operator has no fragment {name!r}", fix=did_you_mean(name, fragments))
    return Argument(parameter=p, kind="fragment", value=name)


def _declared(
    operator: Operator, where: str, p: KernelParameter, given: Buffer | Descriptor | DTypeOf | FragmentOf
) -> Argument:
    tensors = [t.name for t in operator.tensors]
    if isinstance(given, FragmentOf):
        return _fragment(operator, where, p, given.name)
    if isinstance(given, Buffer):
        return Argument(parameter=p, kind="buffer", buffer=given)
    if given.tensor not in tensors:
        raise SpecError(f"{where}: there is no tensor {given.tensor!r}", fix=did_you_mean(given.tensor, tensors))
    if isinstance(given, DTypeOf):
        return Argument(parameter=p, kind="dtype", tensor=given.tensor)
    return Argument(parameter=p, kind="descriptor", tensor=given.tensor, descriptor=given)
