"""Calls that are wrong in one thing, made of legal ones; each says the error that has to come."""

import math
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from drawn_calls import DrawnCall, folded
from drawn_tensors import Placed
from odd_objects import NoCapsule, NotATensor, Raises
from torch._subclasses.fake_tensor import FakeTensorMode

from aot_tune.expr.integer_expressions import EXTENT, all_of
from aot_tune.spec.calls import bound_dims, outputs_to_pass
from aot_tune.spec.dtypes import dtype

TYPES, VALUES = "ArgumentTypeError", "ArgumentValueError"


@dataclass
class WrongCall:
    """A call that must raise one of `errors`, names of the module's classes or of built-in ones.

    The message has the operator's name, one of `names`, and all of `words`. `positional` are arguments behind the
    others. With `gradients`, they are recorded during the call.
    """

    kind: str
    given: dict[str, Any]
    errors: tuple[str, ...]
    names: tuple[str, ...]
    words: tuple[str, ...] = ()
    positional: tuple[Any, ...] = ()
    gradients: bool = False
    within: Callable[[], Any] | None = None


Maker = Callable[[DrawnCall, random.Random], "WrongCall | None"]


def _tensors(call: DrawnCall, *, framework: str = "") -> list[str]:
    """Names of the tensors that are passed, of a framework if that is said."""
    kinds = {"numpy": np.ndarray, "torch": torch.Tensor}
    return [n for n in call.placed if not framework or isinstance(call.given[n], kinds[framework])]


def _choose(call: DrawnCall, draw: random.Random, framework: str = "", *, output: bool | None = None) -> str | None:
    names = [n for n in _tensors(call, framework=framework) if output in (None, call.operator.tensor(n).written)]
    return draw.choice(names) if names else None


def _replaced(call: DrawnCall, name: str, value: Any) -> dict[str, Any]:
    return {**call.given, name: value}


def other_dtype(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    name = _choose(call, draw)
    if name is None:
        return None
    operator = call.operator
    taken = operator.dtypes.get(operator.tensor(name).dtype_name, (operator.tensor(name).dtype_name,))
    tensor = call.given[name]
    if isinstance(tensor, np.ndarray):
        kinds = {"f8": "f64", "i4": "i32", "u1": "u8", "c8": "complex64", "i8": "i64", "?": "bool", "M8[s]": "datetime"}
        code, told = draw.choice([(c, t) for c, t in kinds.items() if t not in taken])
        other: Any = np.zeros(tensor.shape, code)
    else:
        names = {"float64": "f64", "int32": "i32", "uint8": "u8", "complex64": "64", "int64": "i64", "bool": "bool"}
        code, told = draw.choice([(c, t) for c, t in names.items() if t not in taken])
        other = torch.zeros(tensor.shape, dtype=getattr(torch, code), device=tensor.device)
    return WrongCall("other dtype", _replaced(call, name, other), (TYPES,), (name,), ("wanted", told))


def _of_variable(call: DrawnCall, draw: random.Random) -> tuple[str, list[str], str, str]:
    """A dtype variable, the tensors of torch that have it, its dtype and another one."""
    variable = draw.choice(sorted(call.operator.dtypes) or [""])
    names = [n for n in _tensors(call, framework="torch") if call.operator.tensor(n).dtype_name == variable]
    mine = call.problem.dtypes.get(variable, "")
    others = [c for c in call.operator.dtypes.get(variable, ()) if c != mine]
    return (variable, names, mine, draw.choice(others)) if others else (variable, [], mine, "")


def mixed_dtypes(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    _, shared, mine, other = _of_variable(call, draw)
    if len(shared) < 2:
        return None
    name = draw.choice(shared)
    given = _replaced(call, name, call.given[name].to(getattr(torch, dtype(other).torch)))
    return WrongCall("mixed dtypes", given, (TYPES,), (name,), ("wanted", mine, other))


def dtypes_together(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    """Dtypes that are legal, but not with each other."""
    variable, names, _, other = _of_variable(call, draw)
    changed = msgspec.structs.replace(call.problem, dtypes={**call.problem.dtypes, variable: other})
    if not names or len(names) < len([n for n in call.placed if call.operator.tensor(n).dtype_name == variable]):
        return None
    if all_of(call.operator.legal, call.operator.facts(changed)):
        return None
    made = {n: call.given[n].to(getattr(torch, dtype(other).torch)) for n in names}
    given = {**call.given, **made}
    return WrongCall("dtypes together", given, (TYPES,), (f"dtype.{variable}",), ("must hold", other))


def _fault_of_shape(call: DrawnCall, name: str, shape: tuple[int, ...]) -> str:
    """What the error must tell if a tensor has another shape, with one axis for leading dims; empty if it is legal."""
    operator, dims = call.operator, dict[str, int]()
    shapes = {n: shape if n == name else operator.shape(call.problem, operator.tensor(n)) for n in call.placed}
    for bound, source in bound_dims(operator).items():
        extent = {} if source.scalar else {EXTENT: shapes[source.tensor][source.axis]}
        dims[bound] = call.problem.dims[bound] if source.scalar else source.value.evaluate({**dims, **extent})
    changed = msgspec.structs.replace(call.problem, dims=dims, strides={})
    if any(operator.shape(changed, operator.tensor(n)) != wanted for n, wanted in shapes.items()):
        return "wanted"
    return "" if all_of(operator.legal, operator.facts(changed)) else "must hold"


def extent(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    name = _choose(call, draw)
    if name is None:
        return None
    operator, tensor = call.operator, call.operator.tensor(name)
    axis, step = draw.randrange(tensor.rank), draw.choice((1, 1, 2, -1))
    shape = list(call.shape(tensor))
    place = axis - tensor.rank + len(shape)
    if place < 0 or (call.lead == () and folded(operator, tensor) and axis == 0):
        return None
    shape[place] += step if shape[place] > 0 else 1
    lead = len(shape) - tensor.rank + 1
    told = _fault_of_shape(call, name, (math.prod(shape[:lead]), *shape[lead:]))
    facts = tensor.shape[axis].facts()
    names = operator.dims
    if told == "wanted":
        names = tuple(n for n in call.placed if any(s.facts() & facts for s in operator.tensor(n).shape))
    given = _replaced(call, name, _like(call.given[name], shape))
    return WrongCall("extent", given, (VALUES,), names, (told,)) if told else None


def _like(tensor: Any, shape: Any, fill: float = 0.25) -> Any:
    """A new tensor of a shape, else as that one."""
    if isinstance(tensor, np.ndarray):
        return np.full(shape, fill, tensor.dtype)
    return torch.full(tuple(shape), fill, dtype=tensor.dtype, device=tensor.device)


def rank(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    names = [n for n in call.placed if not folded(call.operator, call.operator.tensor(n))]
    folding = [n for n in call.placed if n not in names]
    names += folding if len(folding) > 1 else []
    if not names:
        return None
    name = draw.choice(names)
    shape = list(call.shape(call.operator.tensor(name)))
    if len(shape) > 1 and draw.random() < 0.5 and name not in folding:
        shape.pop(draw.randrange(len(shape)))
    else:
        shape.insert(0, draw.choice((1, 2)) if name in folding else 1)
    given = _replaced(call, name, _like(call.given[name], shape))
    return WrongCall("rank", given, (VALUES,), (name,), ("wanted",))


def too_many_axes(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    name = _choose(call, draw)
    if name is None:
        return None
    given = _replaced(call, name, _like(call.given[name], [1] * 10))
    return WrongCall("too many axes", given, (VALUES, TYPES), (name,), ("10", "wanted"))


def leading_dims(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    """Axes that were exchanged."""
    names = [n for n in call.placed if folded(call.operator, call.operator.tensor(n))]
    if call.lead is None or not names:
        return None
    name = draw.choice(names)
    rest = call.shape(call.operator.tensor(name))[len(call.lead) :]
    made = {n: _like(call.given[n], (2, 3, *call.shape(call.operator.tensor(n))[len(call.lead) :])) for n in names}
    if 0 in rest:
        return None
    made[name] = _like(call.given[name], (3, 2, *rest)).swapaxes(0, 1)
    return WrongCall("leading dims", {**call.given, **made}, (VALUES,), (name,), ("leading dims", "strides"))


def _needed(call: DrawnCall) -> list[str]:
    return [*(t.name for t in call.operator.inputs if not t.optional), *outputs_to_pass(call.operator)]


def nothing(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    name = draw.choice(_needed(call))
    return WrongCall("None", _replaced(call, name, None), (TYPES,), (name,))


def missing(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    name = draw.choice(_needed(call))
    given = {n: v for n, v in call.given.items() if n != name}
    return WrongCall("missing", given, (TYPES,), (name,))


def no_tensor(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    name = _choose(call, draw)
    if name is None:
        return None
    value = draw.choice(([[1.0]], 1.5, 3, "x", b"x", object(), {}, torch.float32, Raises(), NoCapsule(), type))
    told = "DLPack" if isinstance(value, (Raises, NoCapsule)) else "wanted"
    return WrongCall("no tensor", _replaced(call, name, value), (TYPES, VALUES), (name,), (told,))


def no_memory(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    name = _choose(call, draw, "torch")
    if name is None or 0 in call.problem.dims.values():
        return None
    tensor = call.given[name]
    kind = draw.choice(("FakeTensor", "NotATensor", "meta"))
    if kind == "FakeTensor":
        other: Any = FakeTensorMode().from_tensor(tensor)
    else:
        other = NotATensor(tensor) if kind == "NotATensor" else tensor.to("meta")
    told = "meta" if kind == "meta" else kind
    return WrongCall(kind, _replaced(call, name, other), (VALUES, TYPES), (name,), (told,))


def freed(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    """A tensor whose storage was given up, as of parameters that were shared out: it lies at its offset from NULL."""
    name = _choose(call, draw, "torch")
    if name is None or 0 in call.problem.dims.values():
        return None
    tensor = call.given[name]
    shift = draw.choice((0, 1, 5))
    storage = torch.zeros(shift + tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    view = storage[shift:].view(tensor.shape)
    storage.untyped_storage().resize_(0)
    return WrongCall("freed", _replaced(call, name, view), (TYPES, VALUES), (name,), ("no data",))


def other_device(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    """One of several tensors is elsewhere."""
    name = _choose(call, draw, "torch")
    if name is None or len(call.placed) < 2:
        return None
    others = tuple(n for n in call.placed if n != name)
    given = _replaced(call, name, call.given[name].to("meta"))
    return WrongCall("other device", given, (VALUES,), (name, *others), ("wanted", "meta"))


def other_layouts(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    """Tensors of torch that are not strided."""
    name = _choose(call, draw, "torch")
    if name is None or call.given[name].dim() != 2 or call.given[name].numel() == 0:
        return None
    tensor = call.given[name]
    if tensor.is_floating_point() and tensor.dtype.itemsize == 1:  # torch has none of these
        return None
    kinds = ["sparse", "sparse_csr", *(["mkldnn"] if tensor.dtype == torch.float32 and not tensor.is_cuda else [])]
    kind = draw.choice(kinds)
    made = {"sparse": tensor.to_sparse, "sparse_csr": tensor.to_sparse_csr, "mkldnn": tensor.to_mkldnn}[kind]()
    return WrongCall(kind, _replaced(call, name, made), (VALUES, TYPES), (name,), ("wanted",))


def gradient(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    name = _choose(call, draw, "torch", output=False)
    if name is None or not call.given[name].is_floating_point():
        return None
    tensor = call.given[name].detach().requires_grad_()
    given = _replaced(call, name, tensor)
    return WrongCall("gradient", given, (VALUES,), (name,), ("requires a gradient", "detach"), gradients=True)


def tangent(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    name = _choose(call, draw, "torch", output=False)
    if name is None or not call.given[name].is_floating_point():
        return None
    given = dict(call.given)

    def within() -> Any:
        level = torch.autograd.forward_ad.dual_level()
        level.__enter__()  # type: ignore[no-untyped-call]
        plain = call.given[name].clone()
        given[name] = torch.autograd.forward_ad.make_dual(plain, torch.ones_like(plain))  # type: ignore[no-untyped-call]
        return level

    words = ("forward-mode gradient", "primal")
    return WrongCall("tangent", given, (VALUES,), (name,), words, gradients=True, within=within)


def negated(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    """What only the module's functions refuse: torch resolves the bit in front of an operator of its own."""
    name = _choose(call, draw, "torch", output=False)
    if name is None or not call.given[name].is_floating_point() or call.given[name].numel() == 0:
        return None
    wide = torch.zeros((*call.given[name].shape, 2), dtype=call.given[name].dtype, device=call.given[name].device)
    given = _replaced(call, name, torch._neg_view(wide)[..., 0])
    return WrongCall("negated", given, (VALUES,), (name,), ("negative bit", "resolve_neg"))


def numpy_memory(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    """Arrays whose elements no kernel can read where they lie."""
    name = _choose(call, draw, "numpy")
    if (
        name is None
        or 0 in call.problem.dims.values()
        or call.given[name].size < 2
        or call.given[name].dtype.itemsize < 2
    ):
        return None
    array = call.given[name]
    kind = draw.choice(("swapped", "strides", "address", "object"))
    if kind == "swapped":
        other = array.astype(array.dtype.newbyteorder(">"))
    elif kind == "object":
        other = array.astype(object)
    elif kind == "strides":
        fields = np.zeros(array.shape, np.dtype([("value", array.dtype), ("more", "u1")]))
        other = fields["value"]
    else:
        raw = np.zeros(array.size * array.dtype.itemsize + 1, np.uint8)
        other = raw[1:].view(array.dtype).reshape(array.shape)
    told = {"swapped": "swapped", "strides": "strides", "address": "address", "object": "wanted"}[kind]
    return WrongCall(f"numpy {kind}", _replaced(call, name, other), (TYPES, VALUES), (name,), (told,))


def read_only(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    name = _choose(call, draw, "numpy", output=True)
    if name is None:
        return None
    other = call.given[name].view()
    other.flags.writeable = False
    return WrongCall("read-only", _replaced(call, name, other), (VALUES,), (name,), ("read-only", "wanted"))


def shared_elements(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    name = _choose(call, draw, output=True)
    if name is None:
        return None
    placed: Placed = call.placed[name]
    if placed.view.numel() < 2 or max(placed.view.shape) < 2:
        return None
    place = max(range(placed.view.dim()), key=lambda axis: placed.view.shape[axis])
    strides = [0 if axis == place else s for axis, s in enumerate(placed.view.stride())]
    if call.lead is not None and place < len(call.lead):
        strides = [0 if axis < len(call.lead) else s for axis, s in enumerate(placed.view.stride())]
    view = placed.view.as_strided(placed.view.shape, strides)
    other = view.numpy() if isinstance(call.given[name], np.ndarray) else view
    words = ("share memory", "wanted")
    return WrongCall("shared elements", _replaced(call, name, other), (VALUES,), (name,), words)


def overlap(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    """An output that is moved by an element from an input, or that is an input that it must not be."""
    found = []
    for output in call.operator.outputs:
        for tensor in (*call.operator.inputs, *call.operator.outputs):
            if tensor.name != output.name and tensor.name in call.placed and output.name in call.placed:
                same = call.shape(tensor) == call.shape(output) and tensor.dtype_name == output.dtype_name
                found += [(output.name, tensor.name)] if same else []
    if not found:
        return None
    name, other = draw.choice(found)
    view = call.placed[other].view
    if view.numel() < 2 or not all(s > 0 for n, s in zip(view.shape, view.stride(), strict=True) if n > 1):
        return None
    moved = view if other not in call.operator.tensor(name).may_alias else None
    if moved is None or draw.random() < 0.5:
        offset = view.storage_offset() + 1
        moved = call.placed[other].memory.view(view.dtype).as_strided(view.shape, view.stride(), offset)
        step = [s for n, s in zip(view.shape, view.stride(), strict=True) if n > 1]
        if min(step) > 1:  # the elements between
            return None
    result = moved.numpy() if isinstance(call.given[name], np.ndarray) else moved
    return WrongCall("overlap", _replaced(call, name, result), (VALUES,), (name, other), ("wanted separate memory",))


def attribute(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    if not call.operator.attributes:
        return None
    one = draw.choice(call.operator.attributes)
    value = draw.choice(("no", "", one.choices[0] + " ", "RELU", 1, None, b"no", 2.5, object(), ["relu"]))
    errors = (VALUES,) if isinstance(value, str) else (VALUES, TYPES)
    return WrongCall("attribute", _replaced(call, one.name, value), errors, (one.name,))


def scalar(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    if not call.operator.scalars:
        return None
    one = draw.choice(call.operator.scalars)
    if draw.random() < 0.3 and (one.binds or one.least is not None):
        value = draw.choice((-1, -(2**40)) if one.binds else (one.least - 1e-3, -math.inf, math.nan))
        return WrongCall("small scalar", _replaced(call, one.name, value), (VALUES,), (one.name,), ("wanted",))
    value = draw.choice(("0.1", None, [0.1], 1j, 10**400, b"1", object()))
    errors = (TYPES, "OverflowError") if isinstance(value, int) else (TYPES,)
    return WrongCall("scalar", _replaced(call, one.name, value), errors, (one.name,))


def number(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    """One beyond those that the operator takes."""
    names = [n for n in call.placed if call.operator.tensor(n).below is not None and call.placed[n].view.numel()]
    if not names or os.environ.get("AOT_TUNE_CHECK") != "1" or any(0 in p.view.shape for p in call.placed.values()):
        return None
    tensor = call.operator.tensor(draw.choice(names))
    value = draw.choice((-1, tensor.below.evaluate(call.problem.dims) if tensor.below is not None else 0))
    other = _like(call.given[tensor.name], call.shape(tensor), 0)
    other[tuple(draw.randrange(n) for n in other.shape)] = value
    name = tensor.name
    return WrongCall("number", _replaced(call, name, other), (VALUES,), (name,), (f"is {value}, wanted 0 to",))


def unknown(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    name = draw.choice(("outs", "colour", "a_", "stream_", "X"))
    return WrongCall("unknown argument", {**call.given, name: draw.choice((None, 1, True))}, (TYPES,), (name,))


def too_many(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    count = 1 + len(call.operator.inputs) - len(call.arguments[0])
    return WrongCall("too many arguments", call.given, (TYPES,), ("argument",), positional=(None,) * count)


def stream(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    given = {**call.given, "stream": draw.choice(("main", 1.5, object(), [0]))}
    return WrongCall("stream", given, (TYPES,), ("stream",), ("wanted",))


def workspace(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    first = next(iter(call.placed.values())).view
    plain = torch.zeros(64, dtype=torch.uint8, device=first.device)
    kinds: dict[str, Any] = {"gaps": plain[::2], "list": [1, 2], "number": 7}
    if first.device.type == "cpu":
        kinds["read-only"] = np.zeros(64, np.uint8)
        kinds["read-only"].flags.writeable = False
    kind = draw.choice(sorted(kinds))
    return WrongCall(f"workspace {kind}", {**call.given, "workspace": kinds[kind]}, (TYPES, VALUES), ("workspace",))


RAW: Mapping[str, Maker] = {
    function.__name__: function
    for function in (
        other_dtype, mixed_dtypes, dtypes_together, extent, rank, too_many_axes, leading_dims, nothing, missing,
        no_tensor, no_memory, freed, other_device, other_layouts, gradient, tangent, negated, numpy_memory, read_only,
        shared_elements, overlap, attribute, scalar, number, unknown, too_many, stream, workspace,
    )
}  # fmt: skip
"""Of calls of a module's functions."""

OPERATORS: Mapping[str, Maker] = {
    name: maker
    for name, maker in RAW.items()
    if name not in ("negated", "no_memory", "numpy_memory", "read_only", "stream", "workspace")
}
"""Of calls through torch.ops, which takes torch's tensors alone and tells of those without memory itself."""
