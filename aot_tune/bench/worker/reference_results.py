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
import math
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.inputs import call_of, fill, layout
from aot_tune.bench.worker.rounded_arrays import RoundedArray, SequentialSums
from aot_tune.bench.worker.stored_elements import array_dtype, cut_off, least_errors, stored_as, values_of
from aot_tune.spec import FLOATING, Call, Operator, Tensor
from aot_tune.spec.fragment_programs import bind_fragments
from aot_tune.spec.generators import largest_integer

_SAMPLE = 4096
"""How many errors are a fair sample."""
_SEVERAL, _NEARLY_ALL = 16, 0.99
"""How many elements, and which share of them, say that a tensor does not vary."""
_DRAWS = 24
_DRAWN = 16 << 20
"""Bytes of inputs and outputs that are drawn for the sake of a fair sample, beyond the first draw."""
_BLOCK = 1 << 18
TruthDType = Literal["float64", "int64", "uint64"]
_WHOLE: dict[str, TruthDType] = {"i64": "int64", "u64": "uint64"}
_MOST_EXACT = 2.0**53


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Allowed error of an output: `absolute + relative * |v|`, with `factor`. At most a `share` may be off at all."""

    absolute: float
    relative: float
    factor: float = 0.0
    share: float = 1.0


EXACT = Bounds(absolute=0.0, relative=0.0)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How far off an output may be. `undefined`: the definition does not say where NaN and infinities are."""

    bounds: Bounds
    undefined: bool = False


class Truth(Limits, frozen=True, kw_only=True):
    """Where an output's true values are, in row-major order: float64, or integers of 64 bits as they are."""

    file: str
    dtype: TruthDType = "float64"
    shape: tuple[int, ...]


def logical_inputs(operator: Operator, check: Check, seed: int) -> dict[str, NDArray[Any]]:
    """A problem's inputs with its strides, drawn from the seed; float32 and dense if numpy lacks the dtype."""
    operator = operator.concrete(check.problem.dtypes)
    arrays: dict[str, NDArray[Any]] = {}
    flats: dict[str, NDArray[Any]] = {}
    for tensor in operator.inputs:
        if operator.is_present(check.problem, tensor):
            strided = layout(operator, check, tensor)
            flat = flats[tensor.name] = np.empty(strided.extent(), dtype=array_dtype(tensor.dtype))
            arrays[tensor.name] = strided.array(flat.dtype, flat)
    fill(operator, check, flats, seed)
    return {name: values_of(operator.tensor(name).dtype, array) for name, array in arrays.items()}


def refuse_inexact(
    xp: Any, operator: Operator, check: Check, exact: Mapping[str, Any], sums: Mapping[str, Any]
) -> None:
    """Raise unless a check on small integers is exact in the outputs' dtypes, in any order of summation.

    `exact` are the true values by output. `sums` are those when all inputs are replaced by their absolute values.

    Raises:
        ValueError: when it is not exact.
    """
    for tensor in (t for t in operator.outputs if t.name in exact):
        most = largest_integer(operator.dtype(check.problem, tensor))
        value, total = (xp.asarray(v[tensor.name], dtype=xp.float64) for v in (exact, sums))
        whole = bool((value == value.round()).all())
        largest = float(abs(total).max()) if math.prod(total.shape) else 0.0
        if not whole or not largest <= most:
            raise ValueError(
                f"`exact` of operator {operator.name!r} does not hold: on small integers {tensor.name!r} "
                + (f"has sums of up to {largest:.0f}, but is exact only up to {most}" if whole else "has fractions")
                + "; correct the terms or the requires of its IntegerSums"
            )


class Results(NamedTuple):
    """Results of one draw, by output, of numpy or torch: true values, and errors unless the check is exact.

    `undefined` are the outputs whose definition does not say where NaN and infinities are. `inputs` are samples of
    their elements.
    """

    exact: dict[str, Any]
    errors: dict[str, Any]
    undefined: set[str]
    inputs: Mapping[str, NDArray[Any]] = MappingProxyType({})


def drawn(results: Callable[[int], Results], check: Check, seed: int, most: int) -> list[Results]:
    """Results of the seed, and of those after it until the errors are a fair sample. There are at most so many."""
    first = results(seed)
    least = min((math.prod(v.shape) for v in first.exact.values()), default=_SAMPLE)
    fair = 1 if check.special or check.integers or not least else -(-_SAMPLE // least)
    return [first, *(results(seed + n) for n in range(1, min(most, fair)))]


def limits_of(xp: Any, operator: Operator, draws: Sequence[Results], block: int = _BLOCK) -> dict[str, Limits]:
    """How far off each output that is present may be. It looks at a block at a time."""
    limits, first = {}, draws[0]
    for tensor in (t for t in operator.outputs if t.name in first.exact):
        step = operator.step(tensor)
        bounds = EXACT if step is None else Bounds(absolute=float(step.most), relative=0.0, share=step.share)
        if first.errors and tensor.dtype.code in FLOATING:
            values = [d.exact[tensor.name].reshape(-1) for d in draws]
            errors = [d.errors[tensor.name].reshape(-1) for d in draws]
            bounds = _bounds(xp, values, errors, tensor, operator.factor(tensor), block)
        limits[tensor.name] = Limits(bounds=bounds, undefined=tensor.name in first.undefined)
    return limits


def sampled(count: int) -> NDArray[np.int64]:
    """Which of so many elements to look at, to find out whether they vary."""
    return np.linspace(0, count - 1, num=min(count, _SAMPLE), dtype=np.int64)


def remark_of(
    inputs: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]], limits: Mapping[str, Limits]
) -> str:
    """What an author should know: inputs and outputs that cannot tell a wrong kernel from a right one. Or empty.

    These are inputs of one value, and outputs for which a constant would pass. Both are given by samples of elements.
    """
    told = [f"all elements of {n!r} are equal" for n, v in inputs.items() if len(v) >= _SEVERAL and (v == v[0]).all()]
    for name, values in outputs.items():
        finite, bounds = values[np.isfinite(values)], limits[name].bounds
        if len(finite) >= _SEVERAL and not limits[name].undefined:
            off = np.abs(finite - np.partition(finite, len(finite) // 2)[len(finite) // 2])
            near = off <= bounds.absolute + bounds.relative * np.abs(finite)
            told += [f"a constant is right for nearly all of {name!r}"] if np.mean(near) >= _NEARLY_ALL else []
    return f"{', and '.join(told)}: a wrong kernel may pass; declare inputs with other `values`" if told else ""


def write_truth(operator: Operator, check: Check, folder: Path, seed: int) -> str:
    """Compute a problem's outputs and bounds into `folder`, in one step. Returns what `remark_of` says."""
    operator = operator.concrete(check.problem.dtypes)
    affordable = 1 + _DRAWN // max(operator.compulsory_bytes(check.problem), 1)
    with np.errstate(all="ignore"):
        draws = drawn(lambda s: _results(operator, check, s), check, seed, min(_DRAWS, affordable))
        limits = limits_of(np, operator, draws)
    partial = _new_partial(folder)
    truths: dict[str, Truth] = {}
    for output, limit in limits.items():
        value = draws[0].exact[output]
        dtype: TruthDType = next((w for w in _WHOLE.values() if value.dtype == w), "float64")
        name = f"{output}.{dtype}"
        (partial / name).write_bytes(value.data)  # unlike `tofile`, this reports a full disk
        truths[output] = Truth(
            file=name, dtype=dtype, shape=value.shape, bounds=limit.bounds, undefined=limit.undefined
        )
    _publish(partial, folder, "truth.json", truths)
    outputs = {n: value.flat[sampled(value.size)] for n, value in draws[0].exact.items()}
    return remark_of(draws[0].inputs, outputs, limits)


def publish_limits(folder: Path, limits: Mapping[str, Limits]) -> None:
    """Write allowed errors by output, without values, into `folder`, which appears whole or not at all."""
    _publish(_new_partial(folder), folder, "limits.json", limits)


def read_limits(folder: Path) -> dict[str, Limits]:
    """The limits of a problem by output."""
    return msgspec.json.decode((folder / "limits.json").read_bytes(), type=dict[str, Limits])


def _results(operator: Operator, check: Check, seed: int) -> Results:
    """Draw inputs and compute. One rounded result is held at a time, since large problems fill the memory."""
    inputs = logical_inputs(operator, check, seed)
    samples = {n: a.flat[sampled(a.size)] for n, a in inputs.items() if 0 not in a.strides}
    exact = run_reference(operator, check, inputs, np, wide=True)
    errors: dict[str, NDArray[Any]] = {}
    undefined: set[str] = set()
    if check.integers:
        sums = run_reference(operator, check, {n: np.abs(a) for n, a in inputs.items()}, np, wide=True)
        refuse_inexact(np, operator, check, exact, sums)
        return Results(exact, errors, undefined)
    if check.odd:
        undefined.update(n for n, value in exact.items() if not np.isfinite(value).all())
    if check.special or check.odd:
        cast = _casts_nonfinite(operator, check, inputs)
        whole = [t.name for t in operator.outputs if t.name in exact and t.dtype.code not in FLOATING]
        undefined.update(n for n in whole if cast or not np.isfinite(exact[n]).all())
    for near in _near(operator, check, inputs):
        if check.special or check.odd:
            undefined.update(n for n, value in near.items() if _differ(exact[n], value))
        for name in list(near):
            error = _error(near.pop(name), exact[name])
            errors[name] = np.fmax(errors[name], error, out=errors[name]) if name in errors else error
    return Results(exact, errors, undefined, samples)


def _error(value: NDArray[Any], exact: NDArray[Any]) -> NDArray[Any]:
    """The absolute error of results. It takes the place of `value`."""
    errors: NDArray[Any] = np.abs(np.subtract(value, exact, out=value), out=value)
    return errors


def _new_partial(folder: Path) -> Path:
    """An empty folder that will become `folder`. A worker that was killed may have left one."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def _publish(partial: Path, folder: Path, name: str, index: Mapping[str, Limits]) -> None:
    """Let a folder appear with its index. A worker that was killed before it answered may have done so already."""
    (partial / name).write_text(json.dumps({n: msgspec.to_builtins(v) for n, v in index.items()}, sort_keys=True))
    for file in partial.iterdir():
        file.chmod(0o444)
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


def _near(operator: Operator, check: Check, inputs: Mapping[str, NDArray[Any]]) -> Iterator[dict[str, NDArray[Any]]]:
    """Results that are rounded as kernels round them: one, or two if the order of sums matters.

    One more is of inputs without denormal numbers, if the check has some, because processors may take these for 0.
    The order does not matter if inputs have fewer bits than a sum, because kernels keep more than one partial sum.
    """
    arrays = rounded_inputs(operator, check, inputs)
    if check.odd == "denormal numbers":
        floats = {n: a for n, a in inputs.items() if a.dtype.kind == "f"}
        flushed = {**inputs, **{n: np.where(np.abs(a) < _tiny(a), a * 0, a) for n, a in floats.items()}}
        yield run_reference(operator, check, rounded_inputs(operator, check, flushed), np, wide=False)
    if not any(t.name in inputs and t.dtype.code in FLOATING and t.dtype.bits < 32 for t in operator.inputs):
        sequential = SequentialSums()
        yield run_reference(operator, check, arrays, sequential, wide=False)
        if not sequential.used:
            return
    yield run_reference(operator, check, arrays, np, wide=False)


def _tiny(array: NDArray[Any]) -> float:
    """The least number that no processor takes for 0. f16 and narrower floats are computed with in f32."""
    return float(np.finfo(np.promote_types(array.dtype, np.float32)).tiny)


def rounded_inputs(operator: Operator, check: Check, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Inputs of a computation that rounds each result to the dtype of `Operator.rounds_to`."""
    bits = operator.rounds_to(check.problem).fraction
    return {n: _computed_in(a, bits) for n, a in inputs.items()}


def _computed_in(array: NDArray[Any], bits: int) -> NDArray[Any]:
    """An input as the yardstick computes with it: floats of 32 bits or more, rounded to so many bits of fraction."""
    if array.dtype.kind != "f":
        return array
    wide = array.astype(np.promote_types(array.dtype, np.float32), copy=False)
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
    try:
        answer = operator.reference(xp, call)
    except (ArithmeticError, ValueError):  # as Python does if it divides by 0
        if check.odd != "scalars":
            raise
        answer = {t.name: xp.full(operator.shape(check.problem, t), math.nan) for t in operator.outputs}
    if not isinstance(answer, Mapping):
        raise TypeError(f"the reference returns {type(answer).__name__} instead of a dict from output names to arrays")
    results = []
    for tensor in operator.outputs:
        if not operator.is_present(check.problem, tensor):
            continue
        if tensor.name not in answer:
            raise KeyError(f"the reference returns no {tensor.name!r}, only {sorted(answer)}")
        shape, wanted = tuple(np.shape(answer[tensor.name])), operator.shape(check.problem, tensor)
        if shape != wanted:
            raise ValueError(f"the reference returns {tensor.name!r} of shape {shape}, but {wanted} is declared")
        results.append((tensor, answer[tensor.name]))
    return results


def run_reference(
    operator: Operator, check: Check, inputs: Mapping[str, NDArray[Any]], xp: Any, *, wide: bool
) -> dict[str, NDArray[Any]]:
    """Run the reference. Results are as `Truth`; without `wide`, first rounded to the outputs' dtypes."""
    arrays = {n: a.astype(np.float64) if wide and a.dtype.kind == "f" else a for n, a in inputs.items()}
    arrays |= {t.name: arrays[t.name].copy() for t in operator.inputs if t.inout and t.name in arrays}
    results: dict[str, NDArray[Any]] = {}
    for tensor, output in outputs_of(operator, check, arrays, lambda _call: xp):
        value = np.asarray(output)
        value = cut_off(tensor.dtype, value) if wide else values_of(tensor.dtype, stored_as(tensor.dtype, value))
        whole = _WHOLE.get(tensor.dtype.name, "float64")
        if wide and whole != "float64" and value.dtype.kind == "f":
            largest = float(np.max(np.abs(value), initial=0.0, where=np.isfinite(value)))
            if largest > _MOST_EXACT:
                raise ValueError(
                    f"the reference returns {tensor.name!r}, which is {tensor.dtype.name}, as floats of up to "
                    f"{largest:g}: beyond 2^53 these are not exact; compute with integers"
                )
        results[tensor.name] = np.ascontiguousarray(value, dtype=whole if value.dtype.kind in "biu" else np.float64)
    return results


def _casts_nonfinite(operator: Operator, check: Check, inputs: Mapping[str, NDArray[Any]]) -> bool:
    """Whether the reference makes integers of NaN or infinities. Machines do not agree on such integers."""
    with warnings.catch_warnings(record=True) as said, np.errstate(invalid="warn"):
        warnings.simplefilter("always")
        run_reference(operator, check, inputs, np, wide=True)
    return any("encountered in cast" in str(warning.message) for warning in said)


def _bounds(
    xp: Any, values: Sequence[Any], errors: Sequence[Any], tensor: Tensor, tolerance: float, block: int
) -> Bounds:
    """See the module. The arrays have one dimension. Copies of whole outputs would fill the memory."""
    unit, tiny = least_errors(tensor.dtype)
    step = max(1, sum(map(len, values)) >> 16)
    count, squares, samples = 0, 0.0, []
    for value, _ in _blocks(xp, values, errors, block):
        samples.append(value[-count % step :: step] * 1.0)  # a copy, which does not hold the block
        count, squares = count + len(value), squares + float(xp.sum(xp.square(value)))
    if not count:
        return Bounds(absolute=tolerance * tiny, relative=tolerance * unit, factor=tolerance)
    typical = math.sqrt(squares / count)
    sample = xp.concatenate(samples)
    sample = sample[sample > tiny]
    middle = float(xp.median(sample)) if len(sample) else 0.0
    least = max(middle, tiny)
    shares = (xp.where(v >= least, e / v, 0.0) for v, e in _blocks(xp, values, errors, block))
    relative = max(unit, *(float(xp.max(share)) for share in shares))
    rest = max(float(xp.max(e - relative * v)) for v, e in _blocks(xp, values, errors, block))
    floor = 0.5 * unit * min(typical, 4 * middle)
    absolute = tolerance * max(rest, floor, tiny)
    return Bounds(absolute=absolute, relative=tolerance * relative, factor=tolerance)


def _blocks(xp: Any, values: Sequence[Any], errors: Sequence[Any], block: int) -> Iterator[tuple[Any, Any]]:
    """Magnitudes and errors side by side, without those that are not finite. No block is empty."""
    for value, error in zip(values, errors, strict=True):
        for begin in range(0, len(value), block):
            magnitudes, off = xp.abs(value[begin : begin + block]), error[begin : begin + block]
            finite = xp.isfinite(magnitudes) & xp.isfinite(off)
            if not bool(finite.all()):
                magnitudes, off = magnitudes[finite], off[finite]
            if len(magnitudes):
                yield magnitudes, off


def _differ(exact: NDArray[Any], near: NDArray[Any]) -> bool:
    """Whether two runs disagree on where NaN and infinities are. Then the definition does not say."""
    same = np.array_equal(np.isnan(exact), np.isnan(near)) and np.array_equal(np.isinf(exact), np.isinf(near))
    return not same
