"""Operators of a library in JAX: functions whose calls are checked when they are traced, and which XLA calls."""

from __future__ import annotations

import ctypes
import inspect
import math
import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aot_tune.expr.integer_expressions import FUNCTIONS
from aot_tune.signatures.call_checks import CallChecks
from aot_tune.signatures.operator_signature import OperatorSignature, ScalarSignature, TensorSignature, read_signatures
from aot_tune.support.errors import AotTuneError

_DTYPES_OF_JAX = {
    name: jnp.dtype(kind)
    for name, kind in {
        "f32": jnp.float32, "f64": jnp.float64, "f16": jnp.float16, "bf16": jnp.bfloat16,
        "f8e4m3": jnp.float8_e4m3fn, "f8e5m2": jnp.float8_e5m2, "bool": jnp.bool_,
        "i8": jnp.int8, "i16": jnp.int16, "i32": jnp.int32, "i64": jnp.int64,
        "u8": jnp.uint8, "u16": jnp.uint16, "u32": jnp.uint32, "u64": jnp.uint64,
    }.items()
}  # fmt: skip
"""Element types of operators, as JAX names them."""

_ERRORS = jax.errors if hasattr(jax.errors, "InconclusiveDimensionOperation") else jax.core
"""Where JAX has the error for sizes that it cannot compare: since 0.10 beside its other errors."""

_FUNCTIONS = {**FUNCTIONS, "min": jax.core.min_dim, "max": jax.core.max_dim}
_LARGEST_F32, _SMALLEST_F32 = 3.4028235677973366e38, 2.0**-150  # they become infinite and 0
"""Numbers from here on round to infinity as f32: this is halfway beyond its largest value."""

_VMAP_METHODS = (None, "sequential", "sequential_unrolled")

_lock = threading.Lock()
_modules: dict[str, ModuleType] = {}
"""The module whose handlers JAX has, by namespace. JAX keeps handlers until the process ends."""


class JaxError(AotTuneError):
    """Operators of a library cannot be registered with JAX."""


class JaxCallChecks(CallChecks):
    """Checks calls when they are traced. Sizes may be symbols of jax.export."""

    functions = _FUNCTIONS

    def __init__(self, module: ModuleType, op: OperatorSignature) -> None:
        super().__init__(module, op, _DTYPES_OF_JAX)

    def results(
        self, inputs: Mapping[str, Any], wanted: Mapping[str, Any], given: Mapping[str, Any]
    ) -> tuple[dict[str, jax.ShapeDtypeStruct], list[Any] | None]:
        """Shapes and dtypes of all tensors that a call writes; and leading dims, None if no dim folds.

        Shapes have one axis for leading dims, as the library's handler takes them.

        Args:
            inputs: the arrays that are passed.
            wanted: what is passed for outputs: None, a boolean, or an object with a shape and a dtype.
            given: all arguments, including scalars and attributes.
        """
        told = {name: value for name, value in wanted.items() if self._describes(name, value)}
        tensors = {t.name: {**inputs, **told}[t.name] for t in self.op.tensors if t.name in inputs or t.name in told}
        for scalar in self.op.scalars:
            if scalar.name in given:
                self.check_scalar(scalar, given[scalar.name])
        try:
            names = [t.name for t in self.op.tensors if self._is_written(t, inputs, wanted)]
            made, lead = self.infer(tensors, given, names)
            return {name: jax.ShapeDtypeStruct(*told) for name, told in made.items()}, lead
        except _ERRORS.InconclusiveDimensionOperation as error:
            raise self.value_error(
                f"{self.op.name}: symbolic sizes do not tell whether this call is legal, or how large its results are; "
                f"add constraints to jax.export.symbolic_shape: {str(error).partition(chr(10))[0]}"
            ) from error

    def check_scalar(self, scalar: ScalarSignature, value: Any) -> None:
        """Check that a scalar is a plain value, and that its type can hold it."""
        where = f"{self.op.name}: scalar '{scalar.name}'"
        if isinstance(value, jax.core.Tracer):
            raise self.type_error(
                f"{where} is traced, but it is a constant of the compiled program; pass a Python number, by "
                "static_argnames of jax.jit"
            )
        if scalar.dtype == "bool":
            if not isinstance(value, bool) and getattr(value, "dtype", None) != jnp.bool_:
                raise self.type_error(f"{where} is {value!r:.60}, wanted True or False")
        elif scalar.dtype in ("f32", "f64"):
            try:
                number = float(value)
            except (TypeError, ValueError):
                raise self.type_error(f"{where} is {value!r:.60}, wanted a number") from None
            tiny = 0 < abs(number) <= _SMALLEST_F32
            if scalar.dtype == "f32" and math.isfinite(number) and (tiny or abs(number) >= _LARGEST_F32):
                raise self.value_error(f"{where} is {number}, which f32 does not hold")
        else:
            try:
                whole = operator.index(value)
            except TypeError:
                raise self.type_error(f"{where} is {value!r:.60}, wanted a whole number") from None
            limits = jnp.iinfo(_DTYPES_OF_JAX[scalar.dtype])
            if not int(limits.min) <= whole <= int(limits.max):
                raise self.value_error(f"{where} is {whole}, wanted one from {limits.min} to {limits.max}")

    def layouts(
        self, layouts: Mapping[str, Sequence[int]], present: Sequence[TensorSignature], lead: Sequence[Any] | None
    ) -> dict[str, tuple[int, ...]]:
        """Orders of axes that are not row-major, by tensors that a call passes or makes.

        `layouts` are for tensors as the caller has them. The results are for tensors with one axis for the leading dims
        `lead`.
        """
        ranks = {t.name: len(t.shape) for t in present}
        orders = {}
        for name, order in layouts.items():
            if name not in ranks:
                raise self.value_error(
                    f"{self.op.name}: layouts names '{name}', which is not a tensor of this call: {', '.join(ranks)}"
                )
            leading = len(lead) if lead is not None and self.op.tensor(name).folds else 1
            rank = ranks[name] - 1 + leading
            axes = tuple(operator.index(axis) for axis in order)
            if sorted(axes) != list(range(rank)):
                raise self.value_error(
                    f"{self.op.name}: the layout of tensor '{name}' is {axes}, wanted an order of its {rank} axes"
                )
            axes = self._folded_order(name, axes, leading)
            if axes != tuple(range(ranks[name])):
                orders[name] = axes
        return orders

    def _folded_order(self, name: str, axes: tuple[int, ...], leading: int) -> tuple[int, ...]:
        """An order of axes in which the leading axes are one."""
        first = axes.index(0) if leading else 0
        if axes[first : first + leading] != tuple(range(leading)):
            raise self.value_error(
                f"{self.op.name}: the leading dims of '{name}' cannot be taken as one without a copy: its layout is "
                f"{axes}; wanted the axes {', '.join(map(str, range(leading)))} beside each other, in this order"
            )
        rest = [axis - leading + 1 for axis in axes if axis >= leading]
        return (*rest[:first], 0, *rest[first:])

    def _describes(self, name: str, value: Any) -> bool:
        """Whether the argument for an output describes it."""
        tensor = self.op.tensor(name)
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            return True
        if tensor.optional and (value is None or isinstance(value, bool)):
            return False
        if value is None and not tensor.to_pass:
            return False
        wanted = "True, False or a jax.ShapeDtypeStruct" if tensor.optional else "a jax.ShapeDtypeStruct"
        raise self.type_error(f"{self.op.name}: output '{name}' is {value!r:.60}, wanted {wanted}")

    def _is_written(self, tensor: TensorSignature, inputs: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
        if tensor.output:
            asked = wanted.get(tensor.name)
            return not (tensor.optional and (asked is None or asked is False))
        return tensor.inout and tensor.name in inputs


class OperatorCall:
    """An operator as a function of JAX's arrays. `help` shows its arguments.

    Inputs are passed by position, in the order of the module's function, or by name. Scalars and attributes are passed
    by name, as plain Python values. To get an optional output, pass `True` for it. For an output that determines a dim
    or a dtype, pass a `jax.ShapeDtypeStruct`. `layouts` names tensors that are not row-major in memory, each with its
    axes from the slowest to the fastest.

    Returns what the operator writes, in the order of its declaration, as one array or a tuple. Tensors that it changes
    in place are among them, as new arrays: nothing that is passed is changed.
    """

    def __init__(self, module: ModuleType, op: OperatorSignature, target: str, vmap_method: str | None) -> None:
        self._op, self._target, self._vmap_method = op, target, vmap_method
        self._checks = JaxCallChecks(module, op)
        self.__name__, self.__doc__ = op.name, op.documentation
        self.__signature__ = inspect.Signature(self._parameters())

    def __call__(self, *arguments: Any, layouts: Mapping[str, Sequence[int]] | None = None, **named: Any) -> Any:
        """Make a call, or a part of a traced program."""
        given = self._bound(arguments, named)
        inputs = {t.name: jnp.asarray(given[t.name]) for t in self._op.positional if given.get(t.name) is not None}
        wanted = {t.name: given.get(t.name) for t in self._op.outputs}
        made, lead = self._checks.results(inputs, wanted, given)
        present = [t for t in self._op.tensors if t.name in inputs or t.name in made]
        operands = [t for t in present if not t.output]
        results = [t for t in present if t.output or t.inout]
        attributes = self._attributes(given, present)
        orders = self._checks.layouts(layouts or {}, present, lead)
        attributes |= {f"{name}.layout": np.array(order, np.int64) for name, order in orders.items()}
        described = [made[t.name] for t in results]
        aliases = {operands.index(t): results.index(t) for t in operands if t.inout}

        def run(*arrays: Any) -> Any:
            return jax.ffi.ffi_call(
                self._target,
                described,
                vmap_method=self._vmap_method,
                input_layouts=[orders.get(t.name) for t in operands],
                output_layouts=[orders.get(t.name) for t in results],
                input_output_aliases=aliases,
            )(*arrays, **attributes)

        call = run if self._vmap_method is not None else self._without_vmap(run)
        arrays_made = call(*(self._folded(t, inputs[t.name], lead) for t in operands))
        arrays_made = [self._unfolded(t, array, lead) for t, array in zip(results, arrays_made, strict=True)]
        return arrays_made[0] if len(arrays_made) == 1 else tuple(arrays_made)

    def __repr__(self) -> str:
        return f"<operator {self._op.name}{self.__signature__}>"

    def _folded(self, tensor: TensorSignature, array: Any, lead: Sequence[Any] | None) -> Any:
        """An array whose leading dims are one axis."""
        if lead is None or not tensor.folds:
            return array
        return array.reshape([math.prod(lead), *array.shape[len(lead) :]])

    def _unfolded(self, tensor: TensorSignature, array: Any, lead: Sequence[Any] | None) -> Any:
        """A result in the shape that the caller sees."""
        shape = self._checks.unfold(tensor.name, array.shape, lead)
        return array if lead is None or not tensor.folds else array.reshape(shape)

    def _parameters(self) -> list[inspect.Parameter]:
        parameter, empty = inspect.Parameter, inspect.Parameter.empty
        parameters = [
            parameter(t.name, parameter.POSITIONAL_OR_KEYWORD, default=None if t.optional else empty)
            for t in self._op.positional
        ]
        named: dict[str, Any] = {s.name: empty if s.default is None else s.default for s in self._op.scalars}
        named |= {a.name: a.choices[0] for a in self._op.attributes}
        named |= {t.name: False if t.optional else empty for t in self._op.outputs if t.optional or t.to_pass}
        parameters += [parameter(name, parameter.KEYWORD_ONLY, default=default) for name, default in named.items()]
        return [*parameters, parameter("layouts", parameter.KEYWORD_ONLY, default=None)]

    def _bound(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return dict(self.__signature__.bind(*arguments, **named).arguments)
        except TypeError as error:
            raise self._checks.type_error(f"{self._op.name}: {error}; its arguments are {self.__signature__}") from None

    def _attributes(self, given: Mapping[str, Any], present: Sequence[TensorSignature]) -> dict[str, Any]:
        """What the handler needs beside tensors."""
        bits = sum(1 << bit for bit, t in enumerate(self._op.tensors) if t in present)
        attributes: dict[str, Any] = {".tensors": np.int64(bits)}
        attributes |= {s.name: self._scalar(s, given[s.name]) for s in self._op.scalars if s.name in given}
        return attributes | {a.name: given[a.name] for a in self._op.attributes if a.name in given}

    def _scalar(self, scalar: ScalarSignature, value: Any) -> Any:
        self._checks.check_scalar(scalar, value)
        return _DTYPES_OF_JAX[scalar.dtype].type(value)

    def _without_vmap(self, run: Callable[..., Any]) -> Any:
        """The call, which raises an error that names the operator below jax.vmap."""

        def refuse(*_arguments: Any) -> Any:
            raise self._checks.call_error(
                f"{self._op.name}: it has no rule for jax.vmap; call it outside, or pass vmap_method='sequential' to "
                "aot_tune.jax.register(), which makes a call for each row"
            )

        call: Any = jax.custom_batching.custom_vmap(run)
        call.def_vmap(refuse)
        return call


class JaxOperators:
    """The operators of a library. Each is an attribute: a function of JAX's arrays.

    Iterating gives their names. In lowered programs, the names of targets begin with `namespace`.
    """

    def __init__(self, namespace: str, calls: dict[str, OperatorCall]) -> None:
        self.namespace = namespace
        self._calls = calls

    def __getattr__(self, name: str) -> OperatorCall:
        try:
            return self.__dict__["_calls"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(
                f"{self.__dict__.get('namespace')} has no operator {name!r}; it has {', '.join(self)}"
            ) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__.get("_calls", ()))

    def __repr__(self) -> str:
        return f"<operators of {self.namespace}: {', '.join(self)}>"


def register(module: ModuleType, namespace: str | None = None, *, vmap_method: str | None = None) -> JaxOperators:
    """Give JAX the handlers of a library, for CPUs and GPUs, and return its operators.

    Args:
        module: the Python module of the library, such as `aot_tune.ops`, built where jaxlib is installed.
        namespace: the beginning of targets' names; the default is the module's name.
        vmap_method: with None, calls below `jax.vmap` raise. With `sequential` or `sequential_unrolled`, they are made
            one after the other.

    Registering the same module again under the same namespace changes nothing.

    Raises:
        JaxError: when the module is not a library's, when the library has no handlers, or when the namespace is taken.
    """
    if vmap_method not in _VMAP_METHODS:
        raise JaxError(
            f"vmap_method={vmap_method!r} is not one of {', '.join(map(repr, _VMAP_METHODS))}",
            why="other methods add an axis to the tensors of a call, which operators do not take",
        )
    operators = read_signatures(module, JaxError)
    handlers = module.signatures().get("xla_ffi")
    if handlers is None:
        raise JaxError(
            f"the library of {module.__name__} has no handlers of XLA's FFI",
            why="they are compiled only if CMake is asked for them",
            fix="build it with --no-build-isolation where jaxlib is installed, or with AOT_TUNE_XLA_FFI=1",
        )
    namespace = module.__name__ if namespace is None else namespace
    with _lock:
        before = _modules.get(namespace)
        if before is not None and before is not module:
            raise JaxError(
                f"the namespace {namespace!r} has the operators of {before.__name__} already",
                why="JAX keeps handlers until the process ends",
                fix="pass another namespace=",
            )
        if before is None:
            _register_handlers(module, namespace, operators, handlers)
            _modules[namespace] = module
    return JaxOperators(
        namespace, {op.name: OperatorCall(module, op, _target(namespace, op), vmap_method) for op in operators}
    )


def _register_handlers(
    module: ModuleType, namespace: str, operators: tuple[OperatorSignature, ...], handlers: dict[str, dict[str, str]]
) -> None:
    library = ctypes.CDLL(str(module.__file__))  # finds symbols of libraries that the module is linked with, too
    for op in operators:
        for platform, symbol in handlers[op.name].items():
            try:
                function = getattr(library, symbol)
            except AttributeError as error:
                raise JaxError(
                    f"the library of {module.__name__} does not export {symbol}",
                    why="module and library are of different builds",
                    fix="install both of one build",
                ) from error
            jax.ffi.register_ffi_target(_target(namespace, op), jax.ffi.pycapsule(function), platform=platform)


def _target(namespace: str, op: OperatorSignature) -> str:
    return f"{namespace}.{op.name}"
