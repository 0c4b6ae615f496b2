"""The stub of a library's Python module, for type checkers and editors."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from aot_tune.link.emit.call_tables import FLOATS, scalar_default
from aot_tune.link.emit.python_module import python_doc, python_results
from aot_tune.link.library_records import LibrarySpec
from aot_tune.spec import Operator, Scalar, Tensor
from aot_tune.spec.bound_dims import outputs_to_pass

__all__ = ["render_stub"]

_HEAD = '''\
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, overload, type_check_only

@type_check_only
class Tensor(Protocol):
    """What DLPack reads: numpy.ndarray, torch.Tensor, ... It only exists for annotations, under TYPE_CHECKING."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...

@type_check_only
class _TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...

@type_check_only
class _CupyStream(Protocol):
    @property
    def ptr(self) -> int: ...

@type_check_only
class _CudaStream(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...

_Stream: TypeAlias = int | _TorchStream | _CupyStream | _CudaStream | None
# The type of the first tensor, whose framework makes the results. A subclass of its tensors gets a plain tensor.
_T = TypeVar("_T", bound=Tensor)
'''
_ERRORS = (
    "class Error(Exception): ...",
    "class ArgumentTypeError(Error, TypeError): ...",
    "class ArgumentValueError(Error, ValueError): ...",
    "class CallError(Error, RuntimeError): ...",
)
_QUESTIONS = (
    "def is_tuned(operator: str, /, *tensors: Tensor | None, **tensors_or_dims: Any) -> bool: ...",
    "def explain(operator: str, /, *tensors: Tensor | None, **tensors_or_dims: Any) -> dict[str, Any]: ...",
    "def manifest() -> dict[str, Any]: ...",
    "def preload(device: Any, /) -> None: ...  # 'cuda:0', 0, a torch.device",
    "def signatures() -> dict[str, Any]: ...",
    "def set_num_threads(threads: int, /) -> None: ...",
    "def get_num_threads() -> int: ...",
    "__tables__: Any",
)
_WIDTH = 120
_MOST_CHOICES = 3
"""The most outputs that may be left out. Each doubles the overloads. With more of them, a result is `Any`."""


def render_stub(spec: LibrarySpec) -> str:
    """The module's .pyi."""
    operators = [table.operator for table in spec.operators]
    names = ", ".join(f'Literal["{op.name}"]' for op in operators)
    parts = [f'"""Stub of the module {spec.face}. Written by aot_tune."""\n', _HEAD]
    parts += [f"operators: tuple[{names}]\n", *_ERRORS, ""]
    for op in operators:
        parts += _functions(op)
    return "\n".join([*parts, *_QUESTIONS]) + "\n"


def _functions(op: Operator) -> list[str]:
    """The function of an operator: an overload for each choice of the outputs that are written."""
    optional = [t.name for t in python_results(op) if t.optional]
    if not optional or len(optional) > _MOST_CHOICES:
        wanted = dict.fromkeys(optional)
        returned = "Any" if optional else _returned(op, {})
        return [_function(op, wanted, returned), ""]
    lines: list[str] = []
    for choice in itertools.product((False, True), repeat=len(optional)):
        wanted = dict(zip(optional, choice, strict=True))
        lines += ["@overload", _function(op, wanted, _returned(op, wanted), documented=not lines)]
    return [*lines, ""]


def _returned(op: Operator, wanted: Mapping[str, bool | None]) -> str:
    types = [_type(op, t) for t in python_results(op) if wanted.get(t.name, True)]
    if not python_results(op):
        return "None"
    return types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"


def _function(op: Operator, wanted: Mapping[str, bool | None], returned: str, *, documented: bool = True) -> str:
    head = f"def {op.name}({', '.join(_parameters(op, wanted))}) -> {returned}:"
    if len(head) > _WIDTH:
        lines = "".join(f"    {parameter},\n" for parameter in _parameters(op, wanted))
        head = f"def {op.name}(\n{lines}) -> {returned}:"
    if not documented:
        return f"{head} ..."
    first, *rest = python_doc(op).replace("\\", "\\\\").replace('"""', "'''").splitlines()
    return "\n".join([head, f'    """{first}', *(f"    {line}".rstrip() for line in rest), '    """'])


def _parameters(op: Operator, wanted: Mapping[str, bool | None]) -> list[str]:
    """Like `python_signature`. `wanted` says which optional outputs are written. None means either."""
    like = _like(op) if "_T" in [_type(op, t) for t in python_results(op)] else None
    found = [f"{t.name}: {'_T' if t is like else 'Tensor'}" for t in op.inputs if not t.optional]
    found += [f"{t.name}: Tensor | None = None" for t in op.inputs if t.optional]
    found.append("*")
    for s in op.scalars:
        found.append(f"{s.name}: {_number(s)}" + (f" = {scalar_default(s)}" if s.default is not None else ""))
    for a in op.attributes:
        choices = ", ".join(f'"{c}"' for c in a.choices)
        found.append(f'{a.name}: Literal[{choices}] = "{a.choices[0]}"')
    to_pass = outputs_to_pass(op)
    for t in python_results(op):
        kind = _type(op, t) if _type(op, t) != "Any" else "Tensor"
        if t.optional:
            kinds = {None: f"{kind} | bool | None = None", False: "Literal[False] | None = None"}
            kinds |= {True: f"{kind} | Literal[True]"}
            found.append(f"{t.name}: {kinds[wanted[t.name]]}")
        else:
            found.append(f"{t.name}: {kind}" + ("" if t.name in to_pass else " | None = None"))
    return [*found, "stream: _Stream = None", "workspace: Tensor | None = None"]


def _like(op: Operator) -> Tensor | None:
    """The tensor whose type the results have: the first that every call passes."""
    to_pass = outputs_to_pass(op)
    return next((t for t in op.inputs if not t.optional), None) or next(
        (t for t in python_results(op) if t.name in to_pass), None
    )


def _type(op: Operator, output: Tensor) -> str:
    """`_T` if a result is like the first tensor. The types of arrays may have dtype and rank as parameters."""
    like = _like(op)
    same = like is not None and (output.dtype_name, output.rank) == (like.dtype_name, like.rank)
    return "_T" if same else "Any"


def _number(scalar: Scalar) -> str:
    return "float" if scalar.dtype_name in FLOATS else "bool" if scalar.dtype_name == "bool" else "int"
