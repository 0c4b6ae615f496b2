"""What a CPU worker keeps of a problem between candidates: buffers in each placement, arguments, true values.

A call is timed on the contents that it was verified on. Otherwise thousands of calls in a row, each on the results of
the last, would drift to infinity. What a call has changed is put back after it, not before the next, so that what is
cold has time to leave the caches.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.protocol.measurement_records import Check, Policy
from aot_tune.bench.worker.call_tensors import CallTensors
from aot_tune.bench.worker.cpu.engine import PLACEMENTS, Region
from aot_tune.bench.worker.inputs import fill, layout
from aot_tune.bench.worker.reference_results import Truth, read_truth
from aot_tune.bench.worker.stored_elements import array_dtype, values_of
from aot_tune.bench.worker.verification import Placement
from aot_tune.spec import DEFAULT_ALIGNMENT, Operator, Tensor

__all__ = ["CallSet", "Copies", "ProblemState", "changes_of", "restoring"]

Copies = list[tuple[int, int, int]]
"""Where to copy to, where to copy from, and how many bytes."""

_BLOCK = 4096
"""A call may change only a few rows of a large cache. So only the blocks, of so many bytes, that it changes are put
back."""
_STAGGER = 5 * 64
_BIG = 64 << 20


def changes_of(sets: Sequence[CallSet], run: Callable[[], object]) -> list[Copies]:
    """For each call set, the copies that undo a call. Empty if no tensor is both read and written.

    `run` makes a call on the first set, which shows what calls change. Afterwards, all sets are as before any call.
    """
    first = sets[0]
    if not first.sources:
        return []
    for calls in sets:
        calls.poison()
    run()
    changed = {n: first.storages[n].differing(source, _BLOCK) for n, source in first.sources.items()}
    first.poison()
    return [
        [
            (calls.storages[name].address + offset, calls.sources[name].address + offset, length)
            for name, spans in changed.items()
            for offset, length in spans
        ]
        for calls in sets
    ]


def restoring(copies: Copies) -> Callable[[], None]:
    """A function that makes these copies."""
    memmove = ctypes.memmove

    def restore() -> None:
        for to, source, size in copies:
            memmove(to, source, size)

    return restore


class CallSet(CallTensors[Region]):
    """See `CallTensors`. `share` gives the regions of tensors that are not made anew.

    `views` hold what `stored_elements` says.
    """

    def __init__(
        self,
        operator: Operator,
        check: Check,
        pristine: dict[str, Region],
        placement: Placement,
        share: dict[str, Region] | None = None,
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(operator, check, pristine, aliases)
        self.placement = placement
        self.owned: list[Region] = []
        self.views: dict[str, NDArray[Any]] = {}
        for tensor in sorted(self._present, key=lambda t: t.name in aliases):
            name, strided = tensor.name, self.layouts[tensor.name]
            if name in aliases:
                region = self.storages[aliases[name]]
            elif share and name in share:
                region = share[name]
            else:
                region = self._made(tensor)
            self.storages[name] = region
            self.views[name] = region.view(array_dtype(tensor.dtype), strided)
        self.arguments = self._arguments({n: r.address for n, r in self.storages.items()})

    def _made(self, tensor: Tensor) -> Region:
        strided, width = self.layouts[tensor.name], tensor.dtype.itemsize
        alignment = self._check.problem.alignment.get(tensor.name, DEFAULT_ALIGNMENT)
        stagger = [t.name for t in self.operator.tensors].index(tensor.name) * _STAGGER
        region = Region(strided.extent() * width, strided.first() * width, alignment, self.placement, stagger)
        self.owned.append(region)
        if tensor.output:
            region.poison()
        else:
            region.copy_from(self._pristine[tensor.name])
        return region

    def _copy(self, storage: Region, source: Region) -> None:
        storage.copy_from(source)

    def _poison(self, storage: Region) -> None:
        storage.poison()

    def _heal(self) -> None:
        for region in self.storages.values():
            region.heal()

    def _reverse(self, tensor: Tensor) -> bool:
        pristine, region = self._pristine[tensor.name], self.storages[tensor.name]
        kind = f"u{tensor.dtype.itemsize}"
        region.flat(kind)[...] = pristine.flat(kind)[::-1]
        return not region.same(pristine)

    def _values(self, tensor: Tensor, *, wide: bool) -> NDArray[Any]:
        values = values_of(tensor.dtype, self.views[tensor.name])
        return values.astype(np.float32) if wide else values.copy()

    def close(self) -> None:
        """Give the memory back."""
        self.views.clear()
        for region in self.owned:
            region.close()


class ProblemState:
    """One problem in one worker. Its parts are made when they are first needed."""

    def __init__(self, operator: Operator, check: Check, folder: Path, policy: Policy, last_cache: int) -> None:
        self.operator, self.check, self.policy = operator.concrete(check.problem.dtypes), check, policy
        self._folder, self._last_cache = folder, last_cache
        self._sets: dict[tuple[Placement, tuple[tuple[str, str], ...]], CallSet] = {}
        self._rotation: list[CallSet] = []
        self._truth: dict[str, tuple[Truth, NDArray[Any]]] | None = None
        self._pristine: dict[str, Region] = {}

    @property
    def truth(self) -> dict[str, tuple[Truth, NDArray[Any]]]:
        """True values and bounds, by output."""
        if self._truth is None:
            self._truth = read_truth(self._folder)
        return self._truth

    @property
    def big(self) -> bool:
        """Whether copies are so large that one placement is left out."""
        return self.operator.compulsory_bytes(self.check.problem) > _BIG

    def placements(self) -> tuple[Placement, ...]:
        """The placements that are verified: all, or without `start` for a big problem."""
        return PLACEMENTS[:2] if self.big else PLACEMENTS

    def at(self, placement: Placement, aliases: Mapping[str, str] = MappingProxyType({})) -> CallSet:
        """The tensors in a placement. `aliases` are the outputs that use the memory of inputs."""
        key = placement, tuple(aliases.items())
        if key not in self._sets:
            self._sets[key] = CallSet(self.operator, self.check, self.pristine, placement, aliases=aliases)
        return self._sets[key]

    @property
    def pristine(self) -> dict[str, Region]:
        """Inputs that no candidate is given. They are copied from, and compared with."""
        if not self._pristine:
            problem, flats = self.check.problem, {}
            for tensor in self.operator.inputs:
                if self.operator.is_present(problem, tensor):
                    region = Region(layout(self.operator, self.check, tensor).extent() * tensor.dtype.itemsize)
                    self._pristine[tensor.name] = region
                    flats[tensor.name] = region.flat(array_dtype(tensor.dtype))
            fill(self.operator, self.check, flats, self.policy.seed)
        return self._pristine

    def rotation(self) -> list[CallSet]:
        """Call sets that take turns while calls are timed.

        Each has its own copy of the cold tensors, and all share the others. There are enough copies to evict the cold
        tensors from the last cache before their turn.
        """
        if not self._rotation:
            first = self.at("inside")
            self._rotation.append(first)
            cold = [t.name for t in first.inputs() if t.cold]
            size = sum(first.storages[n].size for n in cold)
            wanted = int(-(-self.policy.cold_factor * self._last_cache // size)) if size else 1
            share = {n: r for n, r in first.storages.items() if n not in cold}
            for _ in range(min(wanted, self.policy.copies) - 1):
                more = CallSet(self.operator, self.check, self.pristine, "inside", share)
                self._rotation.append(more)
        return self._rotation

    def restore(self) -> None:
        """Write all inputs and guard zones again."""
        for calls in (*self._rotation, *self._sets.values()):
            calls.restore()

    @property
    def bytes(self) -> int:
        """Bytes of all buffers."""
        sets = {id(s): s for s in (*self._sets.values(), *self._rotation)}
        owned = [r for s in sets.values() for r in s.owned]
        return sum(r.size for r in (*owned, *self._pristine.values()))

    def close(self) -> None:
        """Give all memory back."""
        for calls in (*self._rotation[1:], *self._sets.values()):
            calls.close()
        for region in self._pristine.values():
            region.close()
        self._truth = None
        self._rotation.clear()
        self._sets.clear()
        self._pristine.clear()
