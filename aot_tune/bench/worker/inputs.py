"""Values and arguments of a problem. The same seed gives the same bytes in every process and on every machine."""

from __future__ import annotations

import hashlib
import math
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.stored_elements import limits_of, stored_as, values_of
from aot_tune.spec import (
    Call,
    Drawn,
    DType,
    FromFile,
    Generator,
    Integers,
    Operator,
    Permutation,
    SortedOffsets,
    Sparse,
    Tensor,
    Values,
)
from aot_tune.spec.generators import OF_VALUES, ROWWISE, largest_integer

__all__ = [
    "DrawCall",
    "Strided",
    "attribute_indices",
    "call_of",
    "draw",
    "fill",
    "function_values",
    "layout",
    "scalar_values",
    "storage_extent",
]


class DrawCall:
    """The call that such a function sees. Numbers and names are known at once, and an input when it is asked for.

    Args:
        known: dims, scalars, attributes, and the tensor's shape.
        inputs: functions that draw the inputs before the tensor, by name.
        later: the tensors that are not drawn yet.
    """

    def __init__(
        self,
        known: Mapping[str, Any],
        inputs: Mapping[str, Callable[[], NDArray[Any] | None]],
        later: frozenset[str],
    ) -> None:
        self._known, self._inputs, self._later = dict(known), inputs, later

    def __getattr__(self, name: str) -> Any:
        if name in self._inputs and name not in self._known:
            array = self._inputs[name]()
            if array is not None:
                array.setflags(write=False)
            self._known[name] = array
        if name in self._known:
            return self._known[name]
        if name in self._later:
            raise AttributeError(f"{name!r} is not drawn yet: declare that tensor before this one")
        raise AttributeError(f"the call has no {name!r}; it has {', '.join(sorted({*self._known, *self._inputs}))}")


def function_values(
    tensor: Tensor,
    kind: Drawn,
    dtype: DType,
    shape: tuple[int, ...],
    random: Callable[[], np.random.Generator],
    call: Callable[[], DrawCall],
) -> NDArray[Any]:
    """What a tensor's function returns, in the tensor's shape. `random` makes its generator, always in the same state.

    Raises:
        ValueError: if the function raises, or if the tensor cannot hold its result. It names the function and its line.
    """
    first, again = (_called(tensor, kind, random(), call()) for _ in range(2))
    if first.shape != shape:
        _refuse(tensor, kind, f"returns an array of shape {first.shape}, wanted {shape}")
    if not np.array_equal(first, again, equal_nan=first.dtype.kind == "f"):
        _refuse(tensor, kind, "returns other values when it is called again; take all random numbers from `rng`")
    _check_range(tensor, kind, dtype, first)
    return first


def _called(tensor: Tensor, kind: Drawn, rng: np.random.Generator, call: DrawCall) -> NDArray[Any]:
    try:
        found = np.asarray(kind.function(rng, call))
    except Exception as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == kind.file]
        at = f" in line {lines[-1]}" if lines else ""
        raise ValueError(f"{_place(tensor, kind)} raised {type(error).__name__}{at}: {error}") from error
    if found.dtype.kind not in "biuf":
        _refuse(tensor, kind, f"returns {found.dtype} where numbers are wanted")
    return found


def _check_range(tensor: Tensor, kind: Drawn, dtype: DType, found: NDArray[Any]) -> None:
    """Refuse values that the tensor's dtype cannot hold. Infinities and NaN are allowed in floats."""
    if dtype.code in (0, 1, 6):
        most = largest_integer(dtype)
        least = -most - 1 if dtype.code == 0 else 0
        wrong = (found < least) | (found > most)
        if found.dtype.kind == "f":
            wrong |= ~np.isfinite(found) | (found != np.floor(found))
        holds = f"holds whole numbers from {least} to {most}"
    else:
        limit = limits_of(dtype).max
        wrong = np.isfinite(found) & (np.abs(found.astype(np.float64)) > limit)
        holds = f"holds nothing beyond {limit:g}"
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        value = found[place].item()
        _refuse(tensor, kind, f"returns {value} at {list(place)}, and {dtype.name} {holds}")


def _refuse(tensor: Tensor, kind: Drawn, what: str) -> NoReturn:
    raise ValueError(f"{_place(tensor, kind)} {what}")


def _place(tensor: Tensor, kind: Drawn) -> str:
    return f"{OF_VALUES} {tensor.name!r}: {kind.place}"


_PERIOD = 1_000_003
"""So many values are drawn, and then repeated. It is a prime, so that no row pitch hides a wrong index."""

_LARGEST = 8
"""The largest small integer of a check, if the sums leave room for it."""

_RULE_OUT = "say in the operator's `legal` that there is no such call, or mend the tensor's `values`"


def draw(
    operator: Operator, check: Check, tensor: Tensor, count: int, seed: int, period: int = _PERIOD
) -> NDArray[Any]:
    """The values of a tensor's storage of `count` elements, in its dtype; a long storage repeats them.

    They are float32 for a dtype that numpy lacks. All `count` values are drawn if the tensor's values or the check
    depend on the indices of elements.

    Integers are drawn evenly from -8 to 8 (0 or 1 for bool), which every accumulator holds exactly, or by `uniform`.

    Raises:
        ValueError: when the problem does not allow what the tensor's values promise, or their file cannot be used.
    """
    text = f"{seed}\n{operator.name}\n{check.problem.id}\n{tensor.name}"
    words = np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype=np.uint64)
    states = [int(w) for w in words]
    if isinstance(tensor.values, Drawn):
        return _by_function(operator, check, tensor, tensor.values, seed, period, states, count)
    generator = np.random.Generator(np.random.PCG64(states))
    dtype = np.dtype(operator.dtype(check.problem, tensor).numpy or "float32")
    if check.integers and isinstance(tensor.values, Generator):
        return _summands(operator, check, tensor, generator.integers, count).astype(dtype)
    if isinstance(tensor.values, FromFile):
        storage = np.zeros(count, dtype)
        view = _strided(operator, check, tensor, storage)
        view[...] = np.resize(_read(operator, tensor.values, dtype), view.shape)
        return storage
    if isinstance(tensor.values, ROWWISE):
        return _rows(operator, check, tensor, generator, count, dtype)
    return _elements(operator, check, tensor, tensor.values, generator, min(count, period), dtype)


def _by_function(
    operator: Operator, check: Check, tensor: Tensor, kind: Drawn, seed: int, period: int, states: list[int], count: int
) -> NDArray[Any]:
    """A storage with the values that the author's function draws, and 0 between the rows."""
    place, element = layout(operator, check, tensor), operator.dtype(check.problem, tensor)
    if any(n > 1 and s == 0 for n, s in zip(*place, strict=True)):
        raise ValueError(f"{tensor.name!r}: a function draws its values, so no axis may have stride 0; {_RULE_OUT}")
    before = operator.inputs[: [t.name for t in operator.inputs].index(tensor.name)]

    def one(other: Tensor) -> NDArray[Any] | None:
        if not operator.is_present(check.problem, other):
            return None
        lies, stored = layout(operator, check, other), operator.dtype(check.problem, other)
        values = stored_as(stored, draw(operator, check, other, lies.extent(), seed, period))
        whole = values_of(stored, np.resize(values, lies.extent()))
        return lies.array(whole.dtype, whole)

    def call() -> DrawCall:
        indices = attribute_indices(operator, check)
        known: dict[str, Any] = {**check.problem.dims, **scalar_values(operator, check), "shape": place.shape}
        known |= {a.name: a.choices[indices[a.name]] for a in operator.attributes}
        later = frozenset(t.name for t in operator.tensors if t not in before)
        return DrawCall(known, {t.name: partial(one, t) for t in before}, later)

    found = function_values(
        tensor, kind, element, place.shape, lambda: np.random.Generator(np.random.PCG64(states)), call
    )
    storage = np.zeros(count, np.dtype(element.numpy or "float32"))
    _strided(operator, check, tensor, storage)[...] = found.astype(storage.dtype)
    return storage


def _elements(
    operator: Operator,
    check: Check,
    tensor: Tensor,
    kind: Values,
    generator: np.random.Generator,
    drawn: int,
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    """Values that do not depend on each other."""
    if isinstance(kind, Sparse):
        kept = generator.random(drawn) < kind.density
        if dtype.kind == "b":
            return kept
        values = _elements(operator, check, tensor, kind.values, generator, drawn, dtype)
        return np.where(kept, values, np.zeros(1, dtype))
    if isinstance(kind, Generator) and dtype.kind == "f":
        if kind.kind == "normal":
            return (generator.standard_normal(drawn) * kind.high).astype(dtype)
        return generator.uniform(kind.low, kind.high, drawn).astype(dtype)
    if isinstance(kind, Generator):
        low, high = (0 if dtype.kind == "u" else -8, 9) if kind.kind == "normal" else (int(kind.low), int(kind.high))
        return _integers(generator, *((0, 2) if dtype.kind == "b" else (low, high)), drawn).astype(dtype)
    assert isinstance(kind, Integers), f"{tensor.name!r}: {type(kind).__name__} is not drawn one by one"
    low, high = (bound.evaluate(check.problem.dims) for bound in (kind.low, kind.high))
    most = largest_integer(operator.dtype(check.problem, tensor))
    if not low < high or high - 1 > most:
        name = operator.dtype(check.problem, tensor).name
        raise ValueError(f"{tensor.name!r}: [{low}, {high}) is empty, or beyond {most}, where {name} ends; {_RULE_OUT}")
    return _integers(generator, low, high, drawn).astype(dtype)


def _integers(generator: np.random.Generator, low: int, high: int, count: int) -> NDArray[Any]:
    """Integers from [low, high). They are int64 unless they need an unsigned dtype."""
    return generator.integers(low, high, count, dtype=np.int64 if high <= 2**63 else np.uint64)


def _rows(
    operator: Operator, check: Check, tensor: Tensor, generator: np.random.Generator, count: int, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """A storage with its own row for each place along the other axes, and 0 between the rows."""
    storage = np.zeros(count, dtype)
    view = _strided(operator, check, tensor, storage)
    rows, length = view.reshape(-1, view.shape[-1]).shape if view.size else (0, 0)
    if length < operator.shape(check.problem, tensor)[-1] and view.size:
        raise ValueError(
            f"{tensor.name!r}: stride 0 makes a row one element, so it cannot be a {type(tensor.values).__name__}"
        )
    most = length - 1
    if isinstance(tensor.values, Permutation):
        drawn = generator.permuted(np.broadcast_to(np.arange(length), (rows, length)), axis=1)
    elif isinstance(tensor.values, SortedOffsets):
        most = tensor.values.total.evaluate(check.problem.dims)
        if most < 0:
            raise ValueError(f"{tensor.name!r}: offsets begin with 0, so they cannot end with {most}; {_RULE_OUT}")
        drawn = np.sort(generator.integers(0, most, (rows, length), endpoint=True), axis=1)
        drawn[:, -1:], drawn[:, :1] = most, 0
    else:
        shares = generator.standard_exponential((rows, length))
        drawn, most = shares / shares.sum(axis=1, keepdims=True), 0
    if most > largest_integer(operator.dtype(check.problem, tensor)):
        raise ValueError(f"{tensor.name!r}: {most} is beyond what its dtype holds; declare a wider one")
    view[...] = drawn.reshape(view.shape)
    return storage


def _summands(
    operator: Operator, check: Check, tensor: Tensor, integers: Callable[..., NDArray[Any]], count: int
) -> NDArray[Any]:
    """Integers other than 0, and zeros in the input that is thinned out. See `IntegerSums`.

    Half of the range of the outputs' dtypes is left for what is added to the products.
    """
    exact, problem = operator.exact, check.problem
    if exact is None:
        raise ValueError(f"operator {operator.name!r} does not say that it is exact on integers")
    limit = min(largest_integer(operator.dtype(problem, t)) for t in operator.outputs) // 2
    terms = max(1, exact.terms.evaluate(problem.dims))
    step = -(-terms // max(1, limit))
    most = max(1, min(_LARGEST, math.isqrt(limit // -(-terms // step))))
    storage = integers(1, most + 1, count)
    if operator.dtype(problem, tensor).code not in (1, 6):
        storage *= 1 - 2 * integers(0, 2, count)
    if tensor.name == exact.thinned and step > 1:
        view = _strided(operator, check, tensor, storage)
        view[sum(np.ix_(*(np.arange(n - 1, -1, -1) for n in view.shape))) % step != 0] = 0
    return storage


def _strided(operator: Operator, check: Check, tensor: Tensor, storage: NDArray[Any]) -> NDArray[Any]:
    """A tensor in its storage. An axis of stride 0 has one place, since all its elements are the same."""
    place = layout(operator, check, tensor)
    if place.extent() != storage.size:
        raise ValueError(f"{tensor.name!r} of shape {place.shape} spans {place.extent()} elements, not {storage.size}")
    extents = tuple(n if s else min(n, 1) for n, s in zip(*place, strict=True))
    return Strided(extents, place.strides).array(storage.dtype, storage)


def _read(operator: Operator, kind: FromFile, dtype: np.dtype[Any]) -> NDArray[Any]:
    path = Path(operator.folder) / kind.path
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as values of an input: {error}") from error
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiub" or not values.size:
        raise ValueError(f"{path} holds no numbers to draw from; save an array of them by numpy.save")
    found: NDArray[Any] = values.reshape(-1).astype(dtype)
    if dtype.kind in "iub" and not np.array_equal(found, values.reshape(-1)):
        raise ValueError(f"{path} holds values that {dtype} does not; save them as that, or declare a wider dtype")
    return found


def fill(operator: Operator, check: Check, views: Mapping[str, NDArray[Any]], seed: int) -> None:
    """Write drawn values, repeated, into the storage of the inputs in `views`, by tensor name.

    The views are flat, in the dtypes that `stored_elements.array_dtype` gives.
    """
    for tensor in operator.inputs:
        view = views.get(tensor.name)
        if view is None:
            continue
        dtype = operator.dtype(check.problem, tensor)
        values = stored_as(dtype, draw(operator, check, tensor, view.size, seed))
        for start in range(0, view.size, max(1, values.size)):
            part = view[start : start + values.size]
            part[:] = values[: part.size]
        if tensor.name == check.special and view.size:
            places = np.linspace(0, view.size - 1, num=4, dtype=np.int64)[:3]
            view[places] = stored_as(dtype, np.array((-np.inf, np.nan, np.inf)))


def storage_extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """How many elements of storage a strided tensor spans, and the index of its first element there."""
    if 0 in shape:
        return 0, 0
    low = sum(min(0, s * (n - 1)) for n, s in zip(shape, strides, strict=True))
    high = sum(max(0, s * (n - 1)) for n, s in zip(shape, strides, strict=True))
    return high - low + 1, -low


class Strided(NamedTuple):
    """A tensor in flat storage: shape, and strides in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def extent(self) -> int:
        """Elements of the storage."""
        return storage_extent(self.shape, self.strides)[0]

    def first(self) -> int:
        """Index of the first element in the storage."""
        return storage_extent(self.shape, self.strides)[1]

    def backward(self) -> list[int]:
        """Axes whose stride is negative, which torch's tensors cannot have."""
        return [a for a, (n, s) in enumerate(zip(self.shape, self.strides, strict=True)) if s < 0 and n > 1]

    def array(self, dtype: Any, storage: Any) -> NDArray[Any]:
        """The tensor in a storage that numpy can read."""
        width = np.dtype(dtype).itemsize
        strides = tuple(s * width for s in self.strides)
        found: NDArray[Any] = np.ndarray(self.shape, dtype, storage, self.first() * width, strides)
        return found


def layout(operator: Operator, check: Check, tensor: Tensor) -> Strided:
    """Shape and strides of a tensor on a problem."""
    return Strided(operator.shape(check.problem, tensor), operator.strides(check.problem, tensor))


def scalar_values(operator: Operator, check: Check) -> dict[str, float | int]:
    """The scalars of a test call."""
    dims = check.problem.dims
    return {s.name: dims[s.binds] if s.binds else check.scalars.get(s.name, s.sample) for s in operator.scalars}


def attribute_indices(operator: Operator, check: Check) -> dict[str, int]:
    """Index of each attribute's value among its choices."""
    facts = operator.facts(check.problem)
    return {a.name: facts[f"attribute.{a.name}"] for a in operator.attributes}


def call_of(
    operator: Operator, check: Check, arrays: Mapping[str, Any], convert: Callable[[Any], Any] = lambda a: a
) -> Call:
    """The arguments as references and baselines take them; absent tensors are None."""
    indices = attribute_indices(operator, check)
    attributes = {a.name: a.choices[indices[a.name]] for a in operator.attributes}
    tensors = {t.name: convert(arrays[t.name]) if t.name in arrays else None for t in operator.tensors}
    return Call(**tensors, **scalar_values(operator, check), **attributes)
