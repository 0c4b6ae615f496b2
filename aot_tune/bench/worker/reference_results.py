"""Reference results in float64, and the tolerance that the same computation suggests if it rounds like kernels do.

The yardstick is the larger error of two runs. One uses numpy as it is, whose sums are pairwise. The other uses numpy
with strictly sequential sums, since a correct kernel may add in any order. It is left out if a floating input is
narrower than float32. Both compute in float32 (in float64 if there are tensors of it). They round each intermediate
result to the dtype of `Operator.rounds_to`: the narrowest one of the tensors, unless the operator declares another.
Sums and products are accumulated in float32 and rounded at their end.

From the errors e and the true values v, two numbers per output are taken. `relative` is the largest e / |v| among the
larger half of the values that are not 0. `absolute` is the largest e - relative * |v| of all. A result may be off by
tolerance * (absolute + relative * |v|), where `tolerance` is the operator's for that output. Neither number is less
than the least cost of rounding: relatively one unit in the last place, and absolutely half a unit at the typical value.
Small problems are drawn again until their errors are a fair sample.

If a check is on small integers (`spec.generators.IntegerSums`), every sum is exact, and a result may not be off.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.inputs import call_of, fill, layout
from aot_tune.bench.worker.rounded_arrays import RoundedArray, round_fraction
from aot_tune.bench.worker.stored_elements import array_dtype, cut_off, least_errors, stored_as, values_of
from aot_tune.spec import FLOATING, Call, Operator, Tensor
from aot_tune.spec.fragment_programs import bind_fragments
from aot_tune.spec.generators import largest_integer

__all__ = [
    "EXACT",
    "SAMPLE",
    "SEQUENTIAL",
    "Bounds",
    "SequentialSums",
    "Truth",
    "bounds_of_integers",
    "is_truth",
    "logical_inputs",
    "new_partial",
    "outputs_of",
    "publish",
    "read_truth",
    "refuse_inexact",
    "rounded_inputs",
    "run_reference",
    "write_truth",
]

SAMPLE = 4096
"""How many errors are a fair sample."""
SEQUENTIAL = 512
"""How many elements of a product are summed one term after the other."""
_DRAWS = 24


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Allowed error of one output: `absolute + relative * |v|`. The operator's tolerance, `factor`, is included.

    At most a `share` of the elements may be off at all.
    """

    absolute: float
    relative: float
    factor: float = 0.0
    share: float = 1.0


EXACT = Bounds(absolute=0.0, relative=0.0)

TruthDType = Literal["float64", "int64", "uint64"]
_WHOLE: dict[str, TruthDType] = {"i64": "int64", "u64": "uint64"}
_MOST_EXACT = 2.0**53


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """Where an output's true values are, in row-major order, and how far off a result may be.

    They are float64. Only integers of 64 bits are not, because float64 cannot tell large ones apart.
    """

    file: str
    dtype: TruthDType = "float64"
    shape: tuple[int, ...]
    bounds: Bounds
    undefined: bool = False


class SequentialSums:
    """numpy with sums that add one element after the other. `used` is set once `sum` or `mean` was called.

    `matmul` is numpy's. But enough of its elements are summed one term after the other to know the largest error.
    """

    def __init__(self) -> None:
        self.used = False

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def sum(self, x: Any, axis: Any = None, keepdims: bool = False, **_: Any) -> Any:
        """The sum along one axis, or of all elements."""
        if axis is None or not isinstance(axis, int) or x.shape[axis] == 0:
            return np.sum(x, axis=axis, keepdims=keepdims)
        self.used = True
        total = np.take(np.add.accumulate(x, axis=axis, dtype=x.dtype), [-1], axis=axis)
        return total if keepdims else np.squeeze(total, axis=axis)

    @staticmethod
    def matmul(a: Any, b: Any) -> Any:
        """The product of two matrices."""
        if isinstance(a, RoundedArray) or isinstance(b, RoundedArray):  # a sum is rounded once, at its end
            rounded = a if isinstance(a, RoundedArray) else b
            product = SequentialSums.matmul(np.asarray(a), np.asarray(b))
            return RoundedArray.of(round_fraction(product, rounded.bits), rounded.bits)
        product = np.matmul(a, b)
        if a.ndim != 2 or b.ndim != 2 or 0 in product.shape or a.shape[1] == 0:
            return product
        rows = np.unique(np.linspace(0, product.shape[0] - 1, num=8, dtype=np.int64))
        columns = np.unique(np.linspace(0, product.shape[1] - 1, num=SEQUENTIAL // rows.size, dtype=np.int64))
        right = np.ascontiguousarray(b.T[columns])
        for row in rows:
            product[row, columns] = np.add.accumulate(right * a[row], axis=1)[:, -1]
        return product

    def mean(self, x: Any, axis: Any = None, keepdims: bool = False, **_: Any) -> Any:
        """The mean along one axis, or of all elements."""
        if axis is None or not isinstance(axis, int):
            return np.mean(x, axis=axis, keepdims=keepdims)
        return self.sum(x, axis=axis, keepdims=keepdims) / x.dtype.type(x.shape[axis])


def logical_inputs(operator: Operator, check: Check, seed: int) -> dict[str, NDArray[Any]]:
    """The inputs of a problem with its strides, drawn from the seed.

    If numpy lacks a dtype, they are float32 and dense.
    """
    operator = operator.concrete(check.problem.dtypes)
    arrays: dict[str, NDArray[Any]] = {}
    flats: dict[str, NDArray[Any]] = {}
    for tensor in operator.inputs:
        if operator.is_present(check.problem, tensor):
            place = layout(operator, check, tensor)
            flat = flats[tensor.name] = np.empty(place.extent(), dtype=array_dtype(tensor.dtype))
            arrays[tensor.name] = place.array(flat.dtype, flat)
    fill(operator, check, flats, seed)
    return {name: values_of(operator.tensor(name).dtype, array) for name, array in arrays.items()}


def refuse_inexact(operator: Operator, check: Check, tensor: Tensor, largest: float, whole: bool) -> None:
    """Raise unless a check on small integers is exact in an output's dtype, in any order of summation.

    `largest` is the output's largest value when all inputs are replaced by their absolute values. `whole` says whether
    all true values are integers.

    Raises:
        ValueError: when it is not exact.
    """
    most = largest_integer(operator.dtype(check.problem, tensor))
    if not whole or not largest <= most:
        raise ValueError(
            f"`exact` of operator {operator.name!r} does not hold: on small integers {tensor.name!r} "
            + (f"has sums of up to {largest:.0f}, but is exact only up to {most}" if whole else "has fractions")
            + "; mend the terms or the requires of its IntegerSums"
        )


def write_truth(operator: Operator, check: Check, folder: Path, seed: int) -> None:
    """Compute the outputs of a problem and their bounds into `folder`, which appears whole or not at all."""
    operator = operator.concrete(check.problem.dtypes)
    inputs = logical_inputs(operator, check, seed)
    present = [t for t in operator.outputs if operator.is_present(check.problem, t)]
    with np.errstate(all="ignore"):
        exact = run_reference(operator, check, inputs, np, wide=True)
        near = [] if check.integers else _near(operator, check, inputs)
        cast = bool(check.special) and _casts_nonfinite(operator, check, inputs)
        errors = {t.name: _errors(exact[t.name], [n[t.name] for n in near]) for t in present if near}
        truths = {t.name: [exact[t.name]] for t in present}
        if check.integers:
            _check_sums(operator, check, inputs, exact)
        for extra in range(1, _extra_draws(exact, check)):
            drawn = logical_inputs(operator, check, seed + extra)
            more = run_reference(operator, check, drawn, np, wide=True)
            again = _near(operator, check, drawn)
            for tensor in present:
                truths[tensor.name].append(more[tensor.name])
                found = _errors(more[tensor.name], [a[tensor.name] for a in again])
                errors[tensor.name] = np.concatenate((errors[tensor.name].ravel(), found.ravel()))
    partial = new_partial(folder)
    index: dict[str, Any] = {}
    for tensor in present:
        value = exact[tensor.name]
        bounds = bounds_of_integers(operator, tensor)
        if near and tensor.dtype.code in FLOATING:
            values = np.concatenate([v.ravel() for v in truths[tensor.name]])
            bounds = _bounds(np.abs(values), errors[tensor.name].ravel(), tensor, operator.factor(tensor))
        undefined = bool(check.special) and (
            any(_differ(value, n[tensor.name]) for n in near)
            or (tensor.dtype.code not in FLOATING and (cast or not np.isfinite(value).all()))
        )
        dtype: TruthDType = next((w for w in _WHOLE.values() if value.dtype == w), "float64")
        name = f"{tensor.name}.{dtype}"
        (partial / name).write_bytes(value.tobytes())  # unlike `tofile`, this reports a full disk
        truth = Truth(file=name, dtype=dtype, shape=value.shape, bounds=bounds, undefined=undefined)
        index[tensor.name] = msgspec.to_builtins(truth)
    (partial / "truth.json").write_text(json.dumps(index, sort_keys=True))
    for file in partial.iterdir():
        file.chmod(0o444)
    publish(partial, folder)


def new_partial(folder: Path) -> Path:
    """An empty folder that will become `folder`. A worker that was killed may have left one."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def publish(partial: Path, folder: Path) -> None:
    """Let a finished folder appear. A worker that was killed before it answered may have done so already."""
    try:
        partial.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(partial)


def is_truth(path: str) -> bool:
    """Whether true values are mapped from a file."""
    return path.endswith((".float64", ".int64", ".uint64"))


def read_truth(folder: Path) -> dict[str, tuple[Truth, NDArray[Any]]]:
    """The truths of a problem by output, their values mapped read-only."""
    index = msgspec.json.decode((folder / "truth.json").read_bytes(), type=dict[str, Truth])
    return {n: (t, _values(folder, t)) for n, t in index.items()}


def _values(folder: Path, truth: Truth) -> NDArray[Any]:
    if 0 in truth.shape:  # there is nothing to map
        return np.empty(truth.shape, truth.dtype)
    return np.memmap(folder / truth.file, dtype=truth.dtype, mode="r", shape=truth.shape)


def _near(operator: Operator, check: Check, inputs: Mapping[str, NDArray[Any]]) -> list[dict[str, NDArray[Any]]]:
    """Results that are rounded as kernels round them: one, or two if the order of sums matters.

    The order does not matter if inputs have fewer bits than a sum, because kernels keep more than one partial sum.
    """
    arrays = rounded_inputs(operator, check, inputs)
    found = []
    if not any(t.name in inputs and t.dtype.code in FLOATING and t.dtype.bits < 32 for t in operator.inputs):
        sequential = SequentialSums()
        found.append(run_reference(operator, check, arrays, sequential, wide=False))
        if not sequential.used:
            return found
    return [*found, run_reference(operator, check, arrays, np, wide=False)]


def rounded_inputs(operator: Operator, check: Check, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Inputs of a computation that rounds each result to the dtype of `Operator.rounds_to`."""
    bits = operator.rounds_to(check.problem).fraction
    return {n: _computed_in(a, bits) for n, a in inputs.items()}


def _computed_in(array: NDArray[Any], bits: int) -> NDArray[Any]:
    """An input as the yardstick computes with it: floats of 32 bits or more, rounded to so many bits of fraction."""
    if array.dtype.kind != "f":
        return array
    wide = array.astype(np.promote_types(array.dtype, np.float32))
    return RoundedArray.of(wide, bits) if bits < np.finfo(wide.dtype).nmant else wide


def outputs_of(
    operator: Operator, check: Check, arrays: Mapping[str, Any], api: Callable[[Call], Any]
) -> list[tuple[Tensor, Any]]:
    """The outputs that are present, with what the reference returns for them; `api` gives the array API for a call.

    Raises:
        TypeError: when it does not name them. KeyError: when it leaves one out. ValueError: when one has a wrong shape.
    """
    call = call_of(operator, check, arrays)
    for scalar in operator.scalars:
        if scalar.dtype_name == "f32":  # the number that a kernel gets, which may differ from the written one
            setattr(call, scalar.name, float(np.float32(getattr(call, scalar.name))))
    xp = api(call)
    bind_fragments(operator, check.problem, xp, call)
    found = operator.reference(xp, call)
    if not isinstance(found, Mapping):
        raise TypeError(f"the reference returns {type(found).__name__} instead of a dict from output names to arrays")
    results = []
    for tensor in operator.outputs:
        if not operator.is_present(check.problem, tensor):
            continue
        if tensor.name not in found:
            raise KeyError(f"the reference returns no {tensor.name!r}, only {sorted(found)}")
        shape, wanted = tuple(np.shape(found[tensor.name])), operator.shape(check.problem, tensor)
        if shape != wanted:
            raise ValueError(f"the reference returns {tensor.name!r} of shape {shape}, but {wanted} is declared")
        results.append((tensor, found[tensor.name]))
    return results


def run_reference(
    operator: Operator, check: Check, inputs: Mapping[str, NDArray[Any]], xp: Any, *, wide: bool
) -> dict[str, NDArray[Any]]:
    """Run the reference.

    Results are as `Truth` has them. Without `wide`, they are first rounded to the outputs' dtypes.
    """
    arrays = {n: a.astype(np.float64) if wide and a.dtype.kind == "f" else a for n, a in inputs.items()}
    arrays |= {t.name: arrays[t.name].copy() for t in operator.inputs if t.inout and t.name in arrays}
    results: dict[str, NDArray[Any]] = {}
    for tensor, found in outputs_of(operator, check, arrays, lambda _call: xp):
        value = np.asarray(found)
        value = cut_off(tensor.dtype, value) if wide else values_of(tensor.dtype, stored_as(tensor.dtype, value))
        whole = _WHOLE.get(tensor.dtype.name, "float64")
        if wide and whole != "float64" and value.dtype.kind == "f":
            _refuse_large_floats(tensor, value)
        results[tensor.name] = np.ascontiguousarray(value, dtype=whole if value.dtype.kind in "biu" else np.float64)
    return results


def _refuse_large_floats(tensor: Tensor, value: NDArray[Any]) -> None:
    largest = float(np.max(np.abs(value), initial=0.0, where=np.isfinite(value)))
    if largest > _MOST_EXACT:
        raise ValueError(
            f"the reference returns {tensor.name!r}, which is {tensor.dtype.name}, as floats of up to {largest:g}: "
            "beyond 2^53 these are not exact; compute with integers"
        )


def _casts_nonfinite(operator: Operator, check: Check, inputs: Mapping[str, NDArray[Any]]) -> bool:
    """Whether the reference makes integers of NaN or infinities. Machines do not agree on such integers."""
    with warnings.catch_warnings(record=True) as said, np.errstate(invalid="warn"):
        warnings.simplefilter("always")
        run_reference(operator, check, inputs, np, wide=True)
    return any("encountered in cast" in str(one.message) for one in said)


def _check_sums(
    operator: Operator, check: Check, inputs: Mapping[str, NDArray[Any]], exact: Mapping[str, NDArray[Any]]
) -> None:
    sums = run_reference(operator, check, {n: np.abs(a) for n, a in inputs.items()}, np, wide=True)
    for tensor in (t for t in operator.outputs if t.name in exact):
        value, largest = exact[tensor.name], float(np.max(np.abs(sums[tensor.name]), initial=0.0))
        refuse_inexact(operator, check, tensor, largest, bool(np.array_equal(value, np.rint(value))))


def _extra_draws(exact: Mapping[str, NDArray[Any]], check: Check) -> int:
    least = min((v.size for v in exact.values()), default=SAMPLE)
    return 1 if check.special or check.integers or least == 0 else min(_DRAWS, -(-SAMPLE // least))


def _errors(exact: NDArray[Any], near: list[NDArray[Any]]) -> NDArray[Any]:
    worst: NDArray[Any] = np.abs(near[0] - exact)
    for other in near[1:]:
        np.fmax(worst, np.abs(other - exact), out=worst)
    return worst


def bounds_of_integers(operator: Operator, tensor: Tensor) -> Bounds:
    """How far off an output of integers may be."""
    step = operator.step(tensor)
    return EXACT if step is None else Bounds(absolute=float(step.most), relative=0.0, share=step.share)


def _bounds(values: NDArray[Any], errors: NDArray[Any], tensor: Tensor, tolerance: float) -> Bounds:
    finite = np.isfinite(values) & np.isfinite(errors)
    values, errors = values[finite], errors[finite]
    unit, tiny = least_errors(tensor.dtype)
    if not values.size:
        return Bounds(absolute=tolerance * tiny, relative=tolerance * unit, factor=tolerance)
    typical = float(np.sqrt(np.mean(np.square(values))))
    sample = values[:: max(1, values.size >> 16)]
    middle = float(np.median(sample[sample > tiny])) if (sample > tiny).any() else 0.0
    large = values >= max(middle, tiny)
    relative = max(float(np.max(errors[large] / values[large])) if large.any() else 0.0, unit)
    rest = float(np.max(errors - relative * values))
    floor = 0.5 * unit * min(typical, 4 * middle)
    absolute = tolerance * max(rest, floor, tiny)
    return Bounds(absolute=absolute, relative=tolerance * relative, factor=tolerance)


def _differ(exact: NDArray[Any], near: NDArray[Any]) -> bool:
    """Whether two runs disagree on where NaN and infinities are. Then the definition does not say."""
    same = np.array_equal(np.isnan(exact), np.isnan(near)) and np.array_equal(np.isinf(exact), np.isinf(near))
    return not same
