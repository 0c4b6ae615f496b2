"""Values and arguments of a problem. The same seed gives the same bytes in every process and on every machine."""

from __future__ import annotations

import hashlib
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
    FLOATING,
    Call,
    Drawn,
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

_PERIOD = 1_000_003
"""So many values are drawn, and then repeated. It is a prime, so that no row pitch hides a wrong index."""

_AT_EDGES = 0.25
"""Share of the elements that are zeros or denormal numbers, where there are any."""
_LARGEST = 8
"""The largest small integer of a check, if the sums leave room for it."""

_RULE_OUT = "say in the operator's `legal` that there is no such call, or correct the tensor's `values`"


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
    return _Draw(operator, check, tensor, count, seed, period).values()


class _Draw:
    """Draws the values of one tensor. Its generator's state follows from the problem, the tensor and the seed."""

    def __init__(self, operator: Operator, check: Check, tensor: Tensor, count: int, seed: int, period: int) -> None:
        self._operator, self._check, self._tensor = operator, check, tensor
        self._count, self._seed, self._period = count, seed, period
        self._element = operator.dtype(check.problem, tensor)
        self._dtype = np.dtype(self._element.numpy or "float32")
        self._place = layout(operator, check, tensor)
        text = f"{seed}\n{operator.name}\n{check.problem.id}\n{tensor.name}"
        words = np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype=np.uint64)
        self._states = [int(w) for w in words]
        self._generator = self._new_generator()

    def _new_generator(self) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(self._states))

    def values(self) -> NDArray[Any]:
        kind = self._tensor.values
        if isinstance(kind, Drawn):
            return self._by_function(kind)
        if self._check.integers and isinstance(kind, Generator):
            return self._summands().astype(self._dtype)
        if isinstance(kind, FromFile):
            storage, view = self._storage()
            view[...] = np.resize(_read(self._operator, kind, self._dtype), view.shape)
            return storage
        if isinstance(kind, ROWWISE):
            return self._rows()
        return self._at_edges(self._elements(kind, min(self._count, self._period)))

    def _refused(self, what: str) -> ValueError:
        return ValueError(f"{self._tensor.name!r}: {what}")

    def _storage(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """A storage of zeros, and the tensor in it."""
        storage = np.zeros(self._count, self._dtype)
        return storage, self._strided(storage)

    def _strided(self, storage: NDArray[Any]) -> NDArray[Any]:
        """The tensor in its storage. An axis of stride 0 has one place, since all its elements are the same."""
        strided, name = self._place, self._tensor.name
        if strided.extent() != storage.size:
            raise ValueError(f"{name!r} of shape {strided.shape} spans {strided.extent()} elements, not {storage.size}")
        extents = tuple(n if s else min(n, 1) for n, s in zip(*strided, strict=True))
        return Strided(extents, strided.strides).array(storage.dtype, storage)

    def _elements(self, kind: Values, drawn: int) -> NDArray[Any]:
        """Values that do not depend on each other."""
        generator, dtype = self._generator, self._dtype
        if isinstance(kind, Sparse):
            kept = generator.random(drawn) < kind.density
            return kept if dtype.kind == "b" else np.where(kept, self._elements(kind.values, drawn), np.zeros(1, dtype))
        if isinstance(kind, Generator) and dtype.kind == "f":
            if kind.kind == "normal":
                return (generator.standard_normal(drawn) * kind.high).astype(dtype)
            return generator.uniform(kind.low, kind.high, drawn).astype(dtype)
        if isinstance(kind, Generator):
            normal = kind.kind == "normal"
            low, high = (0 if dtype.kind == "u" else -8, 9) if normal else (int(kind.low), int(kind.high))
            return self._integers(*((0, 2) if dtype.kind == "b" else (low, high)), drawn)
        assert isinstance(kind, Integers), f"{self._tensor.name!r}: {type(kind).__name__} is not drawn one by one"
        low, high = (bound.evaluate(self._check.problem.dims) for bound in (kind.low, kind.high))
        most = largest_integer(self._element)
        if not low < high or high - 1 > most:
            ends = f"beyond {most}, where {self._element.name} ends"
            raise self._refused(f"[{low}, {high}) is empty, or {ends}; {_RULE_OUT}")
        return self._integers(low, high, drawn)

    def _at_edges(self, values: NDArray[Any]) -> NDArray[Any]:
        """The values with zeros or denormal numbers among them, if the check and the tensor have these.

        That is a quarter of the elements, and the first row if there are several.
        """
        kind, odd, generator = self._tensor.values, self._check.odd, self._generator
        if odd not in ("zeros", "denormal numbers") or self._element.code not in FLOATING:
            return values
        if not isinstance(kind, Generator) or not kind.signs:
            return values
        chosen, row = generator.random(values.size) < _AT_EDGES, self._place.shape[-1]
        chosen[: row if values.size > row else 0] = True
        sizes = generator.integers(1, 1 << self._element.fraction, values.size) * (odd != "zeros")
        least = limits_of(self._element).tiny * 2.0**-self._element.fraction
        edges = np.copysign(sizes * least, generator.choice(kind.signs, values.size))
        return np.where(chosen, edges, values).astype(values.dtype)

    def _integers(self, low: int, high: int, count: int) -> NDArray[Any]:
        """Integers from [low, high). They are drawn as int64 unless they need an unsigned dtype."""
        wide = np.int64 if high <= 2**63 else np.uint64
        return self._generator.integers(low, high, count, dtype=wide).astype(self._dtype)

    def _rows(self) -> NDArray[Any]:
        """A storage with its own row for each place along the other axes, and 0 between the rows."""
        generator, kind = self._generator, self._tensor.values
        storage, view = self._storage()
        rows, length = view.reshape(-1, view.shape[-1]).shape if view.size else (0, 0)
        if length < self._place.shape[-1] and view.size:
            raise self._refused(f"stride 0 makes a row one element, so it cannot be a {type(kind).__name__}")
        most = length - 1
        if isinstance(kind, Permutation):
            drawn = generator.permuted(np.broadcast_to(np.arange(length), (rows, length)), axis=1)
        elif isinstance(kind, SortedOffsets):
            most = kind.total.evaluate(self._check.problem.dims)
            if most < 0:
                raise self._refused(f"offsets begin with 0, so they cannot end with {most}; {_RULE_OUT}")
            drawn = np.sort(generator.integers(0, most, (rows, length), endpoint=True), axis=1)
            drawn[:, -1:], drawn[:, :1] = most, 0
        else:
            shares = generator.standard_exponential((rows, length))
            drawn, most = shares / shares.sum(axis=1, keepdims=True), 0
        if most > largest_integer(self._element):
            raise self._refused(f"{most} is beyond what its dtype holds; declare a wider one")
        view[...] = drawn.reshape(view.shape)
        return storage

    def _summands(self) -> NDArray[Any]:
        """Integers other than 0, and zeros in the input that is thinned out. See `IntegerSums`.

        Half of the range of the outputs' dtypes is left for what is added to the products.
        """
        exact, problem, integers = self._operator.exact, self._check.problem, self._generator.integers
        if exact is None:
            raise ValueError(f"operator {self._operator.name!r} does not say that it is exact on integers")
        limit = min(largest_integer(self._operator.dtype(problem, t)) for t in self._operator.outputs) // 2
        terms = max(1, exact.terms.evaluate(problem.dims))
        step = -(-terms // max(1, limit))
        room = limit // -(-terms // step)
        most = max((n for n in range(1, _LARGEST + 1) if n**exact.factors <= room), default=1)
        storage: NDArray[Any] = integers(1, most + 1, self._count)
        if self._element.code not in (1, 6):
            storage *= 1 - 2 * integers(0, 2, self._count)
        if self._tensor.name == exact.thinned and step > 1:
            view = self._strided(storage)
            view[sum(np.ix_(*(np.arange(n - 1, -1, -1) for n in view.shape))) % step != 0] = 0
        return storage

    def _by_function(self, kind: Drawn) -> NDArray[Any]:
        """A storage with the values that the author's function draws, and 0 between the rows."""
        if any(n > 1 and s == 0 for n, s in zip(*self._place, strict=True)):
            raise self._refused(f"a function draws its values, so no axis may have stride 0; {_RULE_OUT}")
        first, again = (self._called(kind) for _ in range(2))
        if first.shape != self._place.shape:
            self._refuse(kind, f"returns an array of shape {first.shape}, wanted {self._place.shape}")
        if not np.array_equal(first, again, equal_nan=first.dtype.kind == "f"):
            self._refuse(kind, "returns other values when it is called again; take all random numbers from `rng`")
        self._check_range(kind, first)
        storage, view = self._storage()
        view[...] = first.astype(storage.dtype)
        return storage

    def _called(self, kind: Drawn) -> NDArray[Any]:
        """What the function returns. It always gets a generator in the same state."""
        try:
            values = np.asarray(kind.function(self._new_generator(), self._call()))
        except Exception as error:
            lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == kind.file]
            at = f" in line {lines[-1]}" if lines else ""
            said = f"raised {type(error).__name__}{at}: {error}"
            raise ValueError(f"{OF_VALUES} {self._tensor.name!r}: {kind.place} {said}") from error
        if values.dtype.kind not in "biuf":
            self._refuse(kind, f"returns {values.dtype} where numbers are wanted")
        return values

    def _call(self) -> _DrawCall:
        operator, check = self._operator, self._check
        before, names = seen_by(operator, self._tensor), [t.name for t in operator.inputs]
        known: dict[str, Any] = {**check.problem.dims, **scalar_values(operator, check), "shape": self._place.shape}
        known |= attribute_values(operator, check)
        earlier = frozenset(names[: names.index(self._tensor.name)])
        later = frozenset(t.name for t in operator.tensors if t.name not in earlier)
        return _DrawCall(known, {t.name: partial(self._other, t) for t in before}, earlier, later)

    def _other(self, tensor: Tensor) -> NDArray[Any] | None:
        """An input before this one, as the function sees it."""
        if not self._operator.is_present(self._check.problem, tensor):
            return None
        strided = layout(self._operator, self._check, tensor)
        stored = self._operator.dtype(self._check.problem, tensor)
        values = draw(self._operator, self._check, tensor, strided.extent(), self._seed, self._period)
        whole = values_of(stored, np.resize(stored_as(stored, values), strided.extent()))
        return strided.array(whole.dtype, whole)

    def _check_range(self, kind: Drawn, values: NDArray[Any]) -> None:
        """Refuse values that the tensor's dtype cannot hold. Infinities and NaN are allowed in floats."""
        dtype = self._element
        if dtype.code in (0, 1, 6):
            most = largest_integer(dtype)
            least = -most - 1 if dtype.code == 0 else 0
            wrong = (values < least) | (values > most)
            if values.dtype.kind == "f":
                wrong |= ~np.isfinite(values) | (values != np.floor(values))
            holds = f"holds whole numbers from {least} to {most}"
        else:
            limit = limits_of(dtype).max
            wrong = np.isfinite(values) & (np.abs(values.astype(np.float64)) > limit)
            holds = f"holds nothing beyond {limit:g}"
        if wrong.any():
            index = tuple(int(i) for i in np.argwhere(wrong)[0])
            self._refuse(kind, f"returns {values[index].item()} at {list(index)}, and {dtype.name} {holds}")

    def _refuse(self, kind: Drawn, what: str) -> NoReturn:
        """Raise an error that names the function and its line."""
        raise ValueError(f"{OF_VALUES} {self._tensor.name!r}: {kind.place} {what}")


def seen_by(operator: Operator, tensor: Tensor) -> list[Tensor]:
    """The inputs that an author's function sees when it draws a tensor: all before it, or those of them in `reads`."""
    values, before = tensor.values, operator.inputs[: [t.name for t in operator.inputs].index(tensor.name)]
    if not isinstance(values, Drawn):
        return []
    return [t for t in before if values.reads is None or t.name in values.reads]


class _DrawCall:
    """The call that an author's function sees. Numbers and names are known at once, and an input when it is asked for.

    Args:
        known: dims, scalars, attributes, and the tensor's shape.
        inputs: functions that draw the inputs before the tensor that its own function may read, by name.
        earlier: all inputs before the tensor.
        later: the tensors that are not drawn yet.
    """

    def __init__(
        self,
        known: Mapping[str, Any],
        inputs: Mapping[str, Callable[[], NDArray[Any] | None]],
        earlier: frozenset[str],
        later: frozenset[str],
    ) -> None:
        self._known, self._inputs, self._earlier, self._later = dict(known), inputs, earlier, later

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
        if name in self._earlier:
            raise AttributeError(f"{name!r} is not in `reads` of this function: add it")
        raise AttributeError(f"the call has no {name!r}; it has {', '.join(sorted({*self._known, *self._inputs}))}")


def _read(operator: Operator, kind: FromFile, dtype: np.dtype[Any]) -> NDArray[Any]:
    path = Path(operator.folder) / kind.path
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as values of an input: {error}") from error
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiub" or not values.size:
        raise ValueError(f"{path} holds no numbers to draw from; save an array of them by numpy.save")
    elements: NDArray[Any] = values.reshape(-1).astype(dtype)
    if dtype.kind in "iub" and not np.array_equal(elements, values.reshape(-1)):
        raise ValueError(f"{path} holds values that {dtype} does not; save them as that, or declare a wider dtype")
    return elements


def fill(operator: Operator, check: Check, views: Mapping[str, NDArray[Any]], seed: int) -> None:
    """Write drawn values, repeated, into the flat `views` of inputs, by tensor, in `stored_elements.array_dtype`."""
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
        view: NDArray[Any] = np.ndarray(self.shape, dtype, storage, self.first() * width, strides)
        return view


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


def attribute_values(operator: Operator, check: Check) -> dict[str, str]:
    """Each attribute's value."""
    indices = attribute_indices(operator, check)
    return {a.name: a.choices[indices[a.name]] for a in operator.attributes}


def call_of(operator: Operator, check: Check, arrays: Mapping[str, Any]) -> Call:
    """The arguments as references and baselines take them, absent tensors as None; and dtypes by their variables."""
    tensors = {t.name: arrays.get(t.name) for t in operator.tensors}
    chosen = {v: check.problem.dtypes.get(v, choices[0]) for v, choices in operator.dtypes.items()}
    given = {**tensors, **scalar_values(operator, check), **attribute_values(operator, check)}
    return Call(**(chosen | given))
