"""What a worker keeps of a problem between candidates: inputs, call sets in guarded memory, true values.

A call is timed on the contents that it was verified on. Otherwise thousands of calls in a row, each on the results of
the last, would drift to infinity.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aot_tune.bench.protocol.measurement_records import Check, Policy
from aot_tune.bench.worker.engine import CallSet, Engine, Expected, Placement, Places, exchangeable
from aot_tune.spec import Operator

_BIG = 64 << 20
"""Copies of more bytes are so large that one placement is left out."""
_TWICE = 2 << 30
"""Calls on more bytes than this have only one copy: at most a few percent of it may be left in the last cache."""
_IN_PLACE = 1 << 30
"""The most bytes of all copies of what is written in place. The first copy may be larger."""
_BYTES_PER_NS = 8_000
"""Bytes per ns that no call exceeds. A quick call takes at least its bytes divided by this, in ns."""


_PAIRS, _PLACES = 3, 16
"""How many pairs of elements change places, of so many that are tried."""


class ProblemState:
    """One problem in one worker. Its parts are made when they are first needed. `bytes` is what they take together."""

    def __init__(self, engine: Engine, operator: Operator, check: Check, folder: Path) -> None:
        self.operator, self.check = operator.concrete(check.problem.dtypes), check
        self._engine, self._folder = engine, folder
        self._pristine: dict[str, Any] = {}
        self._verified: dict[tuple[Placement, tuple[tuple[str, str], ...]], CallSet] = {}
        self._rotation: list[CallSet] = []
        self._second: CallSet | None = None
        self._expected: dict[str, Expected] = {}
        self.bytes = 0

    @property
    def pristine(self) -> dict[str, Any]:
        """Bytes of the inputs that no candidate is given. They are copied from, and compared with."""
        if not self._pristine:
            self._pristine = self._engine.draw(self.operator, self.check)
            self.bytes += _size(list(self._pristine.values()))
        return self._pristine

    @property
    def expected(self) -> dict[str, Expected]:
        """True values and allowed errors, by output."""
        if not self._expected:
            expected = self._engine.expected(self.operator, self.check, self._folder, self.pristine)
            self._expected = {e.tensor.name: e for e in expected}
            self.bytes += sum(e.bytes for e in expected)
        return self._expected

    def placements(self) -> tuple[Placement, ...]:
        """The placements that are verified: all, or without the last of three for a big problem."""
        return self._engine.placements[: 2 if self._moved() > _BIG else None]

    def _call_set(self, placement: Placement = "inside", **given: Any) -> CallSet:
        calls = CallSet(self._engine, self.operator, self.check, self.pristine, placement, **given)
        self.bytes += calls.bytes
        return calls

    def at(self, placement: Placement = "inside", aliases: Mapping[str, str] = MappingProxyType({})) -> CallSet:
        """The tensors in a placement, aligned exactly as the problem says.

        `aliases` are the outputs that use the memory of inputs.
        """
        key = placement, tuple(aliases.items())
        if key not in self._verified:
            self._verified[key] = self._call_set(placement, aliases=aliases)
        return self._verified[key]

    def rotation(self) -> list[CallSet]:
        """Call sets that take turns while calls are timed.

        Each has its own copy of the cold tensors, and all share the others. The copies of the cold tensors fill the
        last cache as often as the policy wants. If calls are played at once and the tensors of one exceed the cache,
        the call finds none of them there, so all of them count as cold. Then tensors that are read and written have a
        copy for each call before they are written again.
        """
        if not self._rotation:
            policy, at_once = self._engine.policy, self._engine.at_once
            first = self._call_set(natural=True) if at_once else self.at()
            self._rotation.append(first)
            whole = self._exceeds_cache(first)
            size = _size(first.cold(whole=whole))
            wanted = int(-(-policy.cold_factor * self._engine.last_cache // size)) if size else 1
            if whole and size <= _TWICE:
                wanted = max(wanted, 2)
            if at_once and first.sources:
                in_place = _size(first.cold(whole=True) if whole else [*first.sources.values()])
                wanted = max(wanted, _copies_in_place(in_place, self._moved(), policy))
            share = None if whole else first
            for _ in range(min(wanted, policy.copies) - 1):
                self._rotation.append(self._call_set(natural=at_once, share=share))
        return self._rotation

    def _moved(self) -> int:
        return self.operator.compulsory_bytes(self.check.problem)

    def second(self) -> CallSet:
        """The tensors of a second caller."""
        if self._second is None:
            self._second = self._call_set(natural=True)
        return self._second

    def timed(self) -> CallSet:
        """The call set whose calls are timed, or would be."""
        return self._rotation[0] if self._rotation else self.at()

    @cached_property
    def places(self) -> Places:
        """Three pairs of elements of each input whose elements may change places. Nobody can foresee them."""
        chosen, inputs = secrets.SystemRandom(), [t for t in self.operator.inputs if t.name in self.pristine]
        places: dict[str, list[tuple[slice, slice]]] = {}
        for tensor in exchangeable(self.operator, inputs):
            bits, width = self.pristine[tensor.name], tensor.dtype.itemsize
            count = len(bits) // width
            numbers = chosen.sample(range(count), min(count, 2 * _PLACES) // 2 * 2)
            elements = [slice(n * width, (n + 1) * width) for n in numbers]
            pairs = zip(elements[::2], elements[1::2], strict=True)
            different = [(one, other) for one, other in pairs if (bits[one] != bits[other]).any()]
            if different:
                places[tensor.name] = different[:_PAIRS]
        return places

    def cold(self) -> list[Any]:
        """Storages of all copies of what is cold in the rotation."""
        sets = self.rotation()
        whole = self._exceeds_cache(sets[0])
        return [storage for calls in sets for storage in calls.cold(whole=whole)]

    def _exceeds_cache(self, calls: CallSet) -> bool:
        return self._engine.at_once and 0 < self._engine.last_cache < _size(calls.cold(whole=True))

    def restore(self) -> None:
        """Write all inputs and guard zones again."""
        for calls in self.sets():
            calls.restore()

    def sets(self) -> list[CallSet]:
        return list({id(s): s for s in (*self._rotation, *self._verified.values())}.values())

    def close(self) -> None:
        self.bytes = 0
        for kept in (self._pristine, self._expected, self._verified):
            kept.clear()
        self._rotation.clear()
        self._second = None


def _copies_in_place(size: int, call_bytes: int, policy: Policy) -> int:
    """How many copies a graph's calls may need if each moves so many bytes. Memory limits the copies of `size`
    bytes."""
    if not size:
        return 1
    rules, quickest = policy.on_gpu, call_bytes / _BYTES_PER_NS
    wanted = rules.short_calls if quickest < rules.short_ns else math.ceil(policy.sample_ns / quickest)
    return max(1, min(wanted, _IN_PLACE // size))


def _size(storages: Sequence[Any]) -> int:
    return sum(len(s) for s in storages)
