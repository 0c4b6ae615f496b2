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

from numpy.typing import NDArray

from aot_tune.bench.protocol.measurement_records import Check, Policy
from aot_tune.bench.worker.cpu.engine import PLACEMENTS, Placement, Region
from aot_tune.bench.worker.honesty import exchangeable
from aot_tune.bench.worker.inputs import attribute_indices, fill, layout, scalar_values
from aot_tune.bench.worker.loaded_objects import Arguments
from aot_tune.bench.worker.reference_results import Truth, read_truth
from aot_tune.bench.worker.stored_elements import array_dtype
from aot_tune.spec import DEFAULT_ALIGNMENT, Operator, Tensor

__all__ = ["CallSet", "Copies", "ProblemState", "changes_of", "restoring"]

Copies = list[tuple[int, int, int]]
"""Where to copy to, where to copy from, and how many bytes."""

_BLOCK = 4096
"""A call may change only a few rows of a large cache. So only the blocks, of so many bytes, that it changes are put
back."""


def changes_of(sets: Sequence[CallSet], run: Callable[[], object]) -> list[Copies]:
    """For each call set, the copies that undo a call. Empty if no tensor is both read and written.

    `run` makes a call on the first set, which shows what calls change. Afterwards, all sets are as before any call.
    """
    first = sets[0]
    if not first.sources:
        return []
    for one in sets:
        one.poison()
    run()
    changed = {n: first.regions[n].differing(source, _BLOCK) for n, source in first.sources.items()}
    first.poison()
    return [
        [
            (one.regions[name].address + offset, one.sources[name].address + offset, length)
            for name, spans in changed.items()
            for offset, length in spans
        ]
        for one in sets
    ]


def restoring(copies: Copies) -> Callable[[], None]:
    """A function that makes these copies."""
    memmove = ctypes.memmove

    def restore() -> None:
        for to, source, size in copies:
            memmove(to, source, size)

    return restore


_STAGGER = 5 * 64
_BIG = 64 << 20


class CallSet:
    """The tensors of one call in guarded memory. Inputs are copied from `pristine`, and outputs are poisoned.

    `share` gives the regions of tensors that are not made anew. `aliases` are the outputs that use an input's memory.
    `views` hold what `stored_elements` says. `sources` are the contents to write, before a call, into tensors that it
    reads and writes.
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
        self.operator, self.placement, self._pristine, self._aliases = operator, placement, pristine, aliases
        self.regions: dict[str, Region] = {}
        self.owned: list[Region] = []
        self.views: dict[str, NDArray[Any]] = {}
        addresses: dict[str, int] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        strides: dict[str, tuple[int, ...]] = {}
        present = [(i, t) for i, t in enumerate(operator.tensors) if operator.is_present(check.problem, t)]
        self.sources = {t.name: pristine[t.name] for _, t in present if t.inout}
        self.sources |= {output: pristine[name] for output, name in aliases.items()}
        for number, tensor in sorted(present, key=lambda one: one[1].name in aliases):
            name, width = tensor.name, tensor.dtype.itemsize
            place = layout(operator, check, tensor)
            shapes[name], strides[name] = place
            first = place.first() * width
            if name in aliases:
                region = self.regions[aliases[name]]
            elif share and name in share:
                region = share[name]
            else:
                alignment = check.problem.alignment.get(name, DEFAULT_ALIGNMENT)
                region = Region(place.extent() * width, first, alignment, placement, number * _STAGGER)
                self.owned.append(region)
                if tensor.output:
                    region.poison()
                else:
                    region.copy_from(pristine[name])
            self.regions[name] = region
            self.views[name] = region.view(array_dtype(tensor.dtype), place)
            addresses[name] = region.address + first
        self.arguments = Arguments(
            operator, addresses, shapes, strides, scalar_values(operator, check), attribute_indices(operator, check)
        )

    def outputs(self) -> list[Tensor]:
        """The outputs that are present."""
        return [t for t in self.operator.outputs if t.name in self.regions]

    def inputs(self) -> list[Tensor]:
        """The inputs that are present."""
        return [t for t in self.operator.inputs if t.name in self.regions]

    def kept(self) -> list[Tensor]:
        """The inputs that no call may write to."""
        return [t for t in self.inputs() if not t.inout and t.name not in self._aliases.values()]

    def poison(self, *, renewed: bool = False) -> None:
        """Fill all outputs with NaN.

        Reset the tensors that are read and written, unless their contents were `renewed`.
        """
        for tensor in self.outputs():
            source = self.sources.get(tensor.name)
            if source is None:
                self.regions[tensor.name].poison()
            elif not renewed:
                self.regions[tensor.name].copy_from(source)

    def renew(self) -> bool:
        """Write other contents to the same memory, as legal as the inputs' own. Returns whether there are any."""
        renewed = False
        for tensor in exchangeable(self.operator, self.inputs()):
            own, region = self._pristine[tensor.name], self.regions[tensor.name]
            kind = f"u{tensor.dtype.itemsize}"
            region.flat(kind)[...] = own.flat(kind)[::-1]
            renewed |= not region.same(own)
        return renewed

    def put_back(self) -> None:
        """Write inputs again."""
        for tensor in self.inputs():
            self.regions[tensor.name].copy_from(self._pristine[tensor.name])

    def restore(self) -> None:
        """Write inputs and guard zones again, after a candidate that wrote to them."""
        self.put_back()
        for region in self.regions.values():
            region.heal()

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
            size = sum(first.regions[n].size for n in cold)
            wanted = int(-(-self.policy.cold_factor * self._last_cache // size)) if size else 1
            share = {n: r for n, r in first.regions.items() if n not in cold}
            for _ in range(min(wanted, self.policy.copies) - 1):
                more = CallSet(self.operator, self.check, self.pristine, "inside", share)
                self._rotation.append(more)
        return self._rotation

    def restore(self) -> None:
        """Write all inputs and guard zones again."""
        for made in (*self._rotation, *self._sets.values()):
            made.restore()

    @property
    def bytes(self) -> int:
        """Bytes of all buffers."""
        sets = {id(s): s for s in (*self._sets.values(), *self._rotation)}
        owned = [r for s in sets.values() for r in s.owned]
        return sum(r.size for r in (*owned, *self._pristine.values()))

    def close(self) -> None:
        """Give all memory back."""
        for made in (*self._rotation[1:], *self._sets.values()):
            made.close()
        for region in self._pristine.values():
            region.close()
        self._truth = None
        self._rotation.clear()
        self._sets.clear()
        self._pristine.clear()
