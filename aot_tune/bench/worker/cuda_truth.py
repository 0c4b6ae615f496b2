"""Reference results and tolerances computed by torch, on the device of the tensors.

True values are computed in float64. Allowed errors come from the errors of the same computation in float32, with
intermediate results and outputs rounded, as `reference_results` says. For float32 tensors, some elements are summed one
term after the other, since a correct kernel may add in any order. With `math=tf32`, the operands of products are
rounded to TF32, whatever a library would do.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch._numpy
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.cuda_memory import BLOCK, moved_as, tensor_of, torch_dtype
from aot_tune.bench.worker.inputs import draw, layout
from aot_tune.bench.worker.reference_results import (
    EXACT,
    Limits,
    Results,
    drawn,
    limits_of,
    outputs_of,
    publish_limits,
    refuse_inexact,
    remark_of,
    rounded_inputs,
    run_reference,
    sampled,
)
from aot_tune.bench.worker.rounded_arrays import EXACT_FUNCTIONS, SEQUENTIAL
from aot_tune.bench.worker.stored_elements import array_dtype, eight_bits, stored_as, values_of
from aot_tune.spec import FLOATING, Call, Operator, Tensor

_NUMPY: Any = torch._numpy
"""numpy on torch's tensors, as torch.compile has it."""
_TF32 = 10
"""Bits of fraction of TF32."""
_BITS = {torch.float32: (torch.int32, 23), torch.float64: (torch.int64, 52)}
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of so many bytes."""
_CASTS = frozenset(("to", "type", "type_as", "int", "long", "char", "short", "byte"))
_FOR_HOST = ("u16", "u32", "u64")
_DRAWS = 8
_MANY = 1 << 16
"""So many values take longer to draw than a thread takes to start."""
_PERIOD = 262_147
"""Drawn values repeat after a prime number, as in `inputs`. It is smaller here, so that large problems start soon."""
_SPECIAL = (-float("inf"), float("nan"), float("inf"))


def _round_tensor(values: Any, bits: int) -> Any:
    """The nearest values with so many bits of fraction, ties to even. NaN and infinities stay as they are."""
    whole, held = _BITS[values.dtype]
    drop = held - bits
    if drop <= 0:
        return values
    raw = values.contiguous().view(whole)
    rounded = ((raw + ((1 << (drop - 1)) - 1) + ((raw >> drop) & 1)) & ~((1 << drop) - 1)).view(values.dtype)
    return torch.where(torch.isfinite(values), rounded, values)


class _Rounding(TorchFunctionMode):
    """A context in which results are rounded to `bits` of fraction. Moving or choosing values rounds nothing."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self._bits = bits

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in EXACT_FUNCTIONS or name.startswith("__get") or name == "__set__":
            return result
        if isinstance(result, tuple) and not hasattr(result, "_fields"):
            return tuple(self._rounded(value, args) for value in result)
        return self._rounded(result, args)

    def _rounded(self, value: Any, args: tuple[Any, ...]) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype not in _BITS:
            return value
        if any(value is argument for argument in args):  # the function changed it in place
            return value.copy_(_round_tensor(value, self._bits))
        return _round_tensor(value, self._bits)


class _Casts(TorchFunctionMode):
    """A context that notices when NaN or infinities become integers. Then `nonfinite` is true."""

    def __init__(self) -> None:
        super().__init__()
        self.nonfinite = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not result.dtype.is_floating_point and result.dtype != torch.bool:
            given = next((a for a in args if isinstance(a, torch.Tensor)), None)
            name = getattr(func, "__name__", "")
            if given is not None and given.dtype.is_floating_point and name in _CASTS:
                self.nonfinite |= not bool(torch.isfinite(given).all())
        return result


@contextlib.contextmanager
def _made_on(device: torch.device, wide: bool) -> Iterator[None]:
    """Arrays that a reference makes by itself, as by `xp.arange`, are on the device of the others.

    If the others are in float64, so are these, unless the reference says otherwise. A value rounded to float32 is not
    true.
    """
    before, floating = torch.get_default_dtype(), torch.float64 if wide else torch.float32
    torch.set_default_dtype(floating)
    _NUMPY.set_default_dtype(floating)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)
        _NUMPY.set_default_dtype()


def exact_on_host(operator: Operator, check: Check, storages: Mapping[str, Any], *, wide: bool) -> dict[str, Any]:
    """What `exact_values` returns, computed by numpy. Integers of 64 bits keep their dtype."""
    inputs: dict[str, Any] = {}
    device = torch.device("cpu")
    for tensor in (t for t in operator.inputs if t.name in storages):
        storage = storages[tensor.name]
        device = storage.device
        array = layout(operator, check, tensor).array(array_dtype(tensor.dtype), storage.cpu().numpy())
        inputs[tensor.name] = values_of(tensor.dtype, array)
    given = inputs if wide else rounded_inputs(operator, check, inputs)
    with np.errstate(all="ignore"):
        results = run_reference(operator, check, given, np, wide=wide)
    return {name: torch.from_numpy(value).to(device) for name, value in results.items()}


class _Numpy:
    """A module of numpy for torch's tensors. Names that numpy lacks are torch's, such as `special`."""

    def __init__(self, module: ModuleType = _NUMPY) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        name = _LONGER.get(name, name)
        if not hasattr(self._module, name):
            if hasattr(np, name) and name not in _ALIKE:
                raise AttributeError(
                    f"numpy's {name} is missing on torch's tensors, which references get for a GPU: "
                    "use other functions of xp"
                )
            return getattr(torch, name)
        held = getattr(self._module, name)
        if isinstance(held, ModuleType):
            return _Numpy(held)
        if isinstance(held, type):
            return _dtype_in_torch(held)
        return partial(_computed, held) if callable(held) else held


_LONGER = {
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan", "atan2": "arctan2",
    "atanh": "arctanh", "bitwise_invert": "invert", "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift", "concat": "concatenate", "permute_dims": "transpose", "pow": "power",
}  # fmt: skip
"""The array API's names of functions that numpy has under two names."""
_ALIKE = ("frexp", "isin", "nanmean", "nansum", "trapezoid")
"""Functions that torch has as numpy has them."""


def _computed(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """What a function of numpy returns, as tensors."""
    inner = getattr(function, "__wrapped__", None)
    if inner is not None and not hasattr(inner, "__signature__"):  # torch asks for it in each call
        inner.__signature__ = inspect.signature(inner)
    given = tuple(_dtype_in_torch(v) if isinstance(v, (type, np.dtype)) else v for v in given)
    device = named.pop("device", None)
    with contextlib.nullcontext() if device is None else torch.device(device):
        result = function(*given, **{n: _dtype_in_torch(v) if n == "dtype" else v for n, v in named.items()})
    if isinstance(result, (tuple, list)):
        return tuple(map(_tensor_in, result))
    return _tensor_in(result)


def _tensor_in(value: Any) -> Any:
    return value.tensor if isinstance(value, _NUMPY.ndarray) else value


def _dtype_in_torch(dtype: Any) -> Any:
    """The dtype of torch that something stands for, as dtypes do in numpy."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    with contextlib.suppress(TypeError):
        dtype = np.dtype(dtype).name
    return _NUMPY.dtype(dtype).torch_dtype


class ArrayApi(_Numpy):
    """numpy for torch's tensors. `near` makes some sums in order. `tf32` rounds the operands of products."""

    def __init__(self, near: bool = False, tf32: bool = False) -> None:
        super().__init__()
        self._near, self._tf32 = near, tf32

    def sum(self, x: Any, axis: Any = None, keepdims: bool = False, **more: Any) -> Any:
        total = self.__getattr__("sum")(x, axis=axis, keepdims=keepdims, **more)
        if self._near and total.dtype == x.dtype == torch.float32 and isinstance(axis, int) and x.shape[axis]:
            _sum_in_order(x, axis, total if keepdims else total.unsqueeze(axis))
        return total

    def mean(self, x: Any, axis: Any = None, keepdims: bool = False, **more: Any) -> Any:
        if self._near and isinstance(axis, int) and x.dtype == torch.float32 and not more:
            return self.sum(x, axis=axis, keepdims=keepdims) / x.shape[axis]
        return self.__getattr__("mean")(x, axis=axis, keepdims=keepdims, **more)

    def matmul(self, a: Any, b: Any) -> Any:
        if self._near and self._tf32 and a.dtype == torch.float32:
            a, b = _round_tensor(a, _TF32), _round_tensor(b, _TF32)
        product = self.__getattr__("matmul")(a, b)
        if self._near and not self._tf32 and a.dtype == torch.float32:
            _multiply_in_order(a, b, product)
        return product

    def full(self, shape: Any, fill_value: Any, dtype: Any = None) -> Any:
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        return torch.full(extents, fill_value, dtype=_dtype_in_torch(dtype))

    def astype(self, x: Any, dtype: Any) -> Any:
        return x.to(_dtype_in_torch(dtype))

    def matrix_transpose(self, x: Any) -> Any:
        return x.mT


def _sum_in_order(x: Any, axis: int, total: Any) -> None:
    """Replace some of the sums by sums in order. The reduced axis of `total` has one element."""
    rows = x.movedim(axis, -1).reshape(-1, x.shape[axis])
    few = np.unique(np.linspace(0, rows.shape[0] - 1, num=min(8, rows.shape[0]), dtype=np.int64))
    picked = torch.as_tensor(few, device=x.device)
    sums = np.add.accumulate(rows[picked].cpu().numpy(), axis=1)[:, -1].copy()
    view = total.movedim(axis, -1)
    flat = view.reshape(-1).clone()
    flat[picked] = torch.as_tensor(sums, device=x.device)
    view.copy_(flat.reshape(view.shape))


def _multiply_in_order(a: Any, b: Any, product: Any) -> None:
    """Replace some elements of the first product by sums in order."""
    while a.ndim > 2:
        a = a[0]
    while b.ndim > 2:
        b = b[0]
    while product.ndim > 2:
        product = product[0]
    if a.ndim != 2 or b.ndim != 2 or 0 in product.shape or not a.shape[1]:
        return
    rows = np.unique(np.linspace(0, product.shape[0] - 1, num=8, dtype=np.int64))
    columns = np.unique(np.linspace(0, product.shape[1] - 1, num=SEQUENTIAL // rows.size, dtype=np.int64))
    down, across = (torch.as_tensor(i, device=a.device) for i in (rows, columns))
    left, right = a[down].cpu().numpy(), b[:, across].T.contiguous().cpu().numpy()
    sums = np.stack([np.add.accumulate(right * row, axis=1)[:, -1] for row in left])
    product[down[:, None], across[None, :]] = torch.as_tensor(sums, device=a.device)


def draw_inputs(operator: Operator, check: Check, seed: int, device: torch.device) -> dict[str, Any]:
    """The storage of each input that is present, as bytes on the device. The operator is concrete."""
    storages: dict[str, Any] = {}
    for tensor, values in _drawn(operator, check, seed):
        count = layout(operator, check, tensor).extent()
        drawn = _stored(tensor, values, device)
        if count > drawn.numel():
            drawn = drawn.repeat(-(-count // drawn.numel()))[:count].contiguous()
        if tensor.name == check.special and count:
            odd = _stored(tensor, np.array(_SPECIAL, np.float32), device)
            for index, value in zip(np.linspace(0, count - 1, num=4, dtype=np.int64)[:3], odd, strict=True):
                drawn[int(index)] = value
        empty = torch.empty(0, dtype=torch.uint8, device=device)
        storages[tensor.name] = drawn.view(torch.uint8) if count else empty
    return storages


def _stored(tensor: Tensor, values: NDArray[Any], device: torch.device) -> Any:
    """Values in a tensor's dtype on the device. They are integers if torch has few functions for the dtype."""
    dtype = torch_dtype(tensor)
    if tensor.dtype.saturates:  # in some versions torch's own conversions saturate too
        values = stored_as(tensor.dtype, values)
        return torch.from_numpy(values).to(device)
    return torch.from_numpy(values).to(device).to(dtype).view(moved_as(dtype))


def _drawn(operator: Operator, check: Check, seed: int) -> list[tuple[Tensor, NDArray[Any]]]:
    """The values of each present input, before they are rounded and repeated. Several are drawn in parallel."""
    present = [t for t in operator.inputs if operator.is_present(check.problem, t)]
    counts = [layout(operator, check, t).extent() for t in present]

    def one(tensor: Tensor, count: int) -> NDArray[Any]:
        return draw(operator, check, tensor, count, seed, _PERIOD)

    if sum(counts) < _MANY:
        return [(t, one(t, count)) for t, count in zip(present, counts, strict=True)]
    with ThreadPoolExecutor(len(present)) as threads:
        return list(zip(present, threads.map(one, present, counts), strict=True))


def _api(near: bool, call: Call) -> ArrayApi:
    return ArrayApi(near, getattr(call, "math", "") == "tf32")


def exact_values(
    operator: Operator, check: Check, storages: Mapping[str, Any], device: torch.device, *, wide: bool = True
) -> dict[str, Any]:
    """The reference's outputs in float64, on the device of the storages.

    With `wide`, they are computed in float64. Without, in float32, and rounded to the tensors' dtypes.

    Raises:
        KeyError, TypeError, ValueError: as `outputs_of` does.
    """
    if any(t.dtype.name in _FOR_HOST for t in operator.tensors):
        return exact_on_host(operator, check, storages, wide=wide)
    arrays: dict[str, Any] = {}
    exactly_float = True
    for tensor in operator.inputs:
        if tensor.name in storages:
            dtype = torch_dtype(tensor)
            value = tensor_of(layout(operator, check, tensor), storages[tensor.name], dtype)
            least = torch.float64 if wide or dtype == torch.float64 else torch.float32
            arrays[tensor.name] = value.to(least, copy=tensor.inout) if dtype.is_floating_point else value
            if tensor.inout and not dtype.is_floating_point:  # a reference may write to it
                arrays[tensor.name] = value.clone()
            exactly_float &= dtype == torch.float32 or not dtype.is_floating_point
    results: dict[str, Any] = {}
    api = partial(_api, not wide and exactly_float)
    bits = 52 if wide else operator.rounds_to(check.problem).fraction
    with _Rounding(bits) if bits < 23 else contextlib.nullcontext(), _made_on(device, wide):
        outputs = outputs_of(operator, check, arrays, api)
    for tensor, value in outputs:
        whole = torch_dtype(tensor) == torch.int64 and not value.dtype.is_floating_point
        kept = torch.int64 if whole else torch.float64
        exact = _cut_off(tensor, value, wide=wide)
        results[tensor.name] = (exact if wide else exact.to(torch_dtype(tensor))).to(kept)
    return results


def _cut_off(tensor: Tensor, value: Any, *, wide: bool) -> Any:
    """See `stored_elements.cut_off`. What is to be rounded is cut at the largest value: torch may not saturate."""
    if not tensor.dtype.saturates:
        return value
    limit = eight_bits(tensor.dtype).overflow if wide else eight_bits(tensor.dtype).max
    return value.clamp(-limit, limit)


def write_limits(operator: Operator, check: Check, folder: Path, seed: int, device: torch.device) -> str:
    """Write allowed errors of a concrete operator's outputs into `folder`, in one step. Returns `remark_of`."""
    if check.integers:
        _check_sums(operator, check, seed, device)
        present = [t for t in operator.outputs if operator.is_present(check.problem, t)]
        publish_limits(folder, {t.name: Limits(bounds=EXACT) for t in present})
        return ""
    draws = drawn(lambda s: _results(operator, check, s, device), check, seed, _DRAWS)
    limits = limits_of(torch, operator, draws, BLOCK)
    publish_limits(folder, limits)
    return remark_of(draws[0].inputs, {n: _sample(value) for n, value in draws[0].exact.items()}, limits)


def _sample(values: Any) -> NDArray[Any]:
    """Some elements. Those of unsigned integers, of which torch can compute little, are moved as others."""
    places = torch.as_tensor(sampled(values.numel()), device=values.device)
    elements: NDArray[Any] = values.reshape(-1).view(moved_as(values.dtype))[places].cpu().numpy()
    return elements


def _is_finite(values: Any) -> bool:
    return not values.dtype.is_floating_point or bool(torch.isfinite(values).all())


def _check_sums(operator: Operator, check: Check, seed: int, device: torch.device) -> None:
    """Raise if a check on small integers is not exact, see `refuse_inexact`."""
    storages = draw_inputs(operator, check, seed, device)
    exact = exact_values(operator, check, storages, device)
    for tensor in operator.inputs:
        if tensor.name in storages and tensor.dtype.saturates:
            storages[tensor.name].bitwise_and_(0x7F)  # torch may have no other function for this
        elif tensor.name in storages and torch_dtype(tensor).is_signed:
            storages[tensor.name].view(torch_dtype(tensor)).abs_()
    sums = exact_values(operator, check, storages, device)
    refuse_inexact(torch, operator, check, exact, sums)


def _results(operator: Operator, check: Check, seed: int, device: torch.device) -> Results:
    """True values, and errors in the own dtype: NaN if only one of two is finite, 0 if neither is."""
    storages = draw_inputs(operator, check, seed, device)
    casts = _Casts()
    with casts if check.special or check.odd else contextlib.nullcontext():
        exact = exact_values(operator, check, storages, device)
        near = exact_values(operator, check, storages, device, wide=False)
    errors = _errors(exact, near)
    undefined: set[str] = set()
    if check.odd == "denormal numbers":  # a GPU may take these for 0
        flushed = _errors(exact, exact_values(operator, check, _flushed(operator, storages), device, wide=False))
        undefined.update(n for n, error in flushed.items() if not _is_finite(error))
        errors = {n: torch.fmax(error, flushed[n]) for n, error in errors.items()}
    if check.special or check.odd:
        whole = [t.name for t in operator.outputs if t.name in exact and t.dtype.code not in FLOATING]
        undefined.update(n for n, error in errors.items() if not _is_finite(error))
        undefined.update(n for n in whole if casts.nonfinite or not _is_finite(exact[n]))
    if check.odd:
        undefined.update(n for n, value in exact.items() if not _is_finite(value))
    samples = {n: _sample(s.view(_WHOLE[operator.tensor(n).dtype.itemsize])) for n, s in storages.items()}
    return Results(exact, errors, undefined, samples)


def _flushed(operator: Operator, storages: Mapping[str, Any]) -> dict[str, Any]:
    """The storages with 0 in place of numbers that are denormal in f32 or f64."""
    flushed = dict(storages)
    for tensor in operator.inputs:
        if tensor.name in storages and tensor.dtype.name in ("f32", "bf16", "f64"):
            values = storages[tensor.name].view(torch_dtype(tensor))
            tiny = values.abs() < torch.finfo(values.dtype).tiny
            flushed[tensor.name] = values.masked_fill(tiny, 0.0).view(torch.uint8)
    return flushed


def _errors(exact: Mapping[str, Any], near: dict[str, Any]) -> dict[str, Any]:
    """See `_results`. What is compared is dropped, one after the other."""
    errors = {}
    for name, value in exact.items():
        other = near.pop(name)
        if value.dtype == torch.uint64:  # torch does not subtract these, and nobody asks for errors of integers
            errors[name] = torch.zeros(value.shape, dtype=torch.float64, device=value.device)
            continue
        odd_value, odd_other = ~torch.isfinite(value), ~torch.isfinite(other)
        error = (other - value).abs_().to(torch.float64)
        error[odd_value & odd_other] = 0.0
        same = (torch.isnan(value) == torch.isnan(other)) & (torch.isinf(value) == torch.isinf(other))
        error[~same] = torch.nan
        errors[name] = error
    return errors
