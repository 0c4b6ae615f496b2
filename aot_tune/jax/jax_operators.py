"""Handlers of a library in JAX's registry, and a function for each of its operators."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from types import ModuleType

import jax

from aot_tune.jax.jax_calls import OperatorCall
from aot_tune.jax.jax_errors import JaxError
from aot_tune.signatures.operator_signature import OperatorSignature, read_signatures

__all__ = ["JaxOperators", "register"]

_VMAP_METHODS = (None, "sequential", "sequential_unrolled")

_lock = threading.Lock()
_modules: dict[str, ModuleType] = {}
"""The module whose handlers JAX has, by namespace. JAX keeps handlers until the process ends."""


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
        module: the Python module of the library, such as `aot_tune.ops`, built with AOT_TUNE_XLA_FFI.
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
            fix="build it with AOT_TUNE_XLA_FFI=1, or with XLA_FFI 1 in aot_tune_add_library",
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
