"""Calls that are wrong in one thing, made of legal ones; each says the error that has to come."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from drawn_calls import DrawnCall, folded
from drawn_tensors import Placed
from odd_objects import NoCapsule, NotATensor, Raises
from torch._subclasses.fake_tensor import FakeTensorMode

from aot_tune.spec import Tensor

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
    names = [n for n in _tensors(call, framework=framework) if output in (None, call.operator.tensor(n).output)]
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


def mixed_dtypes(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    operator = call.operator
    shared = [n for n in _tensors(call, framework="torch") if operator.tensor(n).dtype_name in operator.dtypes]
    if len(shared) < 2:
        return None
    name = draw.choice(shared)
    mine = call.problem.dtypes[operator.tensor(name).dtype_name]
    codes = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    other = draw.choice([c for c in codes if c != mine])
    given = _replaced(call, name, call.given[name].to(codes[other]))
    return WrongCall("mixed dtypes", given, (TYPES,), (name,), ("wanted", mine, other))


def _sharing(call: DrawnCall, name: str, axis: int) -> list[str]:
    """Other tensors that are passed and have the dim of an axis."""
    key = call.operator.tensor(name).shape[axis].key()
    return [n for n in call.placed if n != name and any(s.key() == key for s in call.operator.tensor(n).shape)]


def extent(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    found = [(n, axis) for n in call.placed for axis in range(call.operator.tensor(n).rank) if _sharing(call, n, axis)]
    if not found:
        return None
    name, axis = draw.choice(found)
    tensor: Tensor = call.operator.tensor(name)
    shape = list(call.shape(tensor))
    place = axis - tensor.rank + len(shape)
    if place < 0:
        return None
    shape[place] += draw.choice((1, 1, 2, -1)) if shape[place] > 0 else 1
    if call.lead is not None and folded(call.operator, tensor) and axis == 0 and not call.lead:
        return None
    other = _like(call.given[name], shape)
    return WrongCall(
        "extent", _replaced(call, name, other), (VALUES,), (name, *_sharing(call, name, axis)), ("wanted",)
    )


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


def nothing(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    name = draw.choice([t.name for t in call.operator.inputs if not t.optional])
    return WrongCall("None", _replaced(call, name, None), (TYPES,), (name,))


def missing(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    name = draw.choice([t.name for t in call.operator.inputs if not t.optional])
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
    if name is None or call.given[name].numel() == 0:
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
    kinds = ["sparse", "sparse_csr", *(["mkldnn"] if tensor.dtype == torch.float32 and not tensor.is_cuda else [])]
    kind = draw.choice(kinds)
    made = {"sparse": tensor.to_sparse, "sparse_csr": tensor.to_sparse_csr, "mkldnn": tensor.to_mkldnn}[kind]()
    return WrongCall(kind, _replaced(call, name, made), (VALUES, TYPES), (name,), ("wanted",))


def gradient(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    name = _choose(call, draw, "torch", output=False)
    if name is None or call.given[name].dtype == torch.bool:
        return None
    tensor = call.given[name].detach().requires_grad_()
    given = _replaced(call, name, tensor)
    return WrongCall("gradient", given, (VALUES,), (name,), ("requires a gradient", "detach"), gradients=True)


def tangent(call: DrawnCall, draw: random.Random) -> WrongCall | None:
    name = _choose(call, draw, "torch", output=False)
    if name is None or call.given[name].dtype == torch.bool:
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
    if name is None or call.given[name].dtype == torch.bool or call.given[name].numel() == 0:
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
    value = draw.choice(("0.1", None, [0.1], 1j, 10**400, b"1", object()))
    errors = (TYPES, "OverflowError") if isinstance(value, int) else (TYPES,)
    return WrongCall("scalar", _replaced(call, one.name, value), errors, (one.name,))


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
        other_dtype, mixed_dtypes, extent, rank, too_many_axes, leading_dims, nothing, missing, no_tensor, no_memory,
        freed, other_device, other_layouts, gradient, tangent, negated, numpy_memory, read_only, shared_elements,
        overlap, attribute, scalar, unknown, too_many, stream, workspace,
    )
}  # fmt: skip
"""Of calls of a module's functions."""

OPERATORS: Mapping[str, Maker] = {
    name: maker
    for name, maker in RAW.items()
    if name not in ("negated", "no_memory", "numpy_memory", "read_only", "stream", "workspace")
}
"""Of calls through torch.ops, which takes torch's tensors alone and tells of those without memory itself."""
