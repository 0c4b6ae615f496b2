"""What a session keeps of a problem between candidates: inputs, call sets in guarded memory, true values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from aot_tune.bench.protocol.measurement_records import Check, Policy
from aot_tune.bench.worker.call_tensors import CallTensors
from aot_tune.bench.worker.comparison import FAR_OFF, compare
from aot_tune.bench.worker.cuda.engine import Arena, Engine, Want, moved_as, tensor_of, words
from aot_tune.bench.worker.cuda.timing import Undo, copies_in_place
from aot_tune.bench.worker.cuda.truth import BLOCK, draw_inputs, exact_values, torch_dtype
from aot_tune.bench.worker.reference_results import Limits, read_limits
from aot_tune.spec import DEFAULT_ALIGNMENT, Operator, Tensor

__all__ = ["CallSet", "Expected", "ProblemState", "undo_of"]

_TWICE = 2 << 30
"""Calls on more bytes than this have only one copy: at most a few percent of it may be left in the L2."""


class Expected:
    """True values of one output, in float32 for narrower outputs, and the reciprocals of the allowed errors.

    Integers of 64 bits are compared as bits.
    """

    def __init__(self, tensor: Tensor, values: Any, limits: Limits) -> None:
        self.tensor, self.bounds, self.undefined = tensor, limits.bounds, limits.undefined
        if not values.dtype.is_floating_point:
            self.values = values.view(torch.int64)
            return
        dtype = torch_dtype(tensor)
        allowed = (values.abs() * self.bounds.relative).add_(self.bounds.absolute + 5e-324)
        narrow = dtype.is_floating_point and dtype.itemsize < 4
        self.values = values.to(torch.float32) if narrow else values
        self._scale = allowed.reciprocal_().to(self.values.dtype)

    @property
    def bytes(self) -> int:
        """Bytes of the values and the reciprocals."""
        return int(self.values.numel() * self.values.element_size() * 2)

    def worst(self, got: Any) -> Any:
        """The largest error in tolerances, as a tensor. It is NaN if NaN or infinities need a closer look."""
        if not got.numel() or self.undefined:
            return torch.zeros((), dtype=torch.float64, device=got.device)
        if self.values.dtype == torch.int64 or self.bounds.share < 1:  # `judge` tells which elements are right
            return (_comparable(got) != self.values).any() * FAR_OFF
        got = _comparable(got)
        error = torch.sub(got, self.values) if got.dtype.is_floating_point else got.to(self.values.dtype) - self.values
        return torch.linalg.vector_norm(error.mul_(self._scale), float("inf")).to(torch.float64)

    def judge(self, got: Any) -> tuple[str, float]:
        """What is wrong with the worst element, or empty, and the largest error in tolerances."""
        dtype = torch_dtype(self.tensor)
        highest = float(torch.finfo(dtype).max) if dtype.is_floating_point else float("inf")
        if dtype == torch.uint64:  # torch cannot compare these
            host, true = got.cpu().numpy(), self.values.cpu().numpy().view(np.uint64)
            return compare(np, self.tensor.name, host, true, self.bounds, highest, BLOCK)
        return compare(torch, self.tensor.name, _comparable(got), self.values, self.bounds, highest, BLOCK)


def _comparable(got: Any) -> Any:
    """In a dtype that torch computes with. torch takes many bytes for true in a boolean, but only one is right."""
    if got.dtype == torch.bool:
        return got.view(torch.uint8)
    if got.dtype == torch.uint64:
        return got.view(torch.int64)
    if got.dtype.is_floating_point:
        return got.to(torch.float32) if got.dtype.itemsize == 1 else got
    return got.to(torch.int64) if got.dtype in (torch.uint16, torch.uint32) else got


class CallSet(CallTensors[Any]):
    """See `CallTensors`. Storages are tensors of bytes.

    With `natural`, tensors are aligned as torch's allocator aligns them, unless the problem says less. Without, they
    are aligned exactly as the problem says. `share` is a call set whose tensors are used, except those that are cold or
    written in place.
    """

    def __init__(
        self,
        engine: Engine,
        operator: Operator,
        check: Check,
        pristine: dict[str, Any],
        *,
        natural: bool = False,
        share: CallSet | None = None,
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(operator, check, pristine, aliases)
        allocated = [t for t in self._present if (share is None or t.cold or t.inout) and t.name not in aliases]
        self.arena = Arena(engine.device, [self._want(t, natural) for t in allocated])
        self.storages = {n: p.storage for n, p in self.arena.pieces.items()}
        self.addresses: dict[str, int] = {n: p.address for n, p in self.arena.pieces.items()}
        if share is not None:
            self.storages = {**share.storages, **self.storages}
            self.addresses = {**share.addresses, **self.addresses}
        for output, name in aliases.items():
            self.storages[output], self.addresses[output] = self.storages[name], self.addresses[name]
        for tensor in allocated:
            if tensor.output:
                self.storages[tensor.name].fill_(0xFF)
            else:
                self.storages[tensor.name].copy_(pristine[tensor.name])
        self._gaps = {t.name: self._gap(t) for t in self.outputs() if t in allocated or t.name in aliases}
        self.arguments = self._arguments(self.addresses, engine.dlpack)

    def _want(self, tensor: Tensor, natural: bool) -> Want:
        strided, width = self.layouts[tensor.name], tensor.dtype.itemsize
        alignment = self._check.problem.alignment.get(tensor.name, 0 if natural else DEFAULT_ALIGNMENT)
        return Want(tensor.name, strided.extent() * width, strided.first() * width, alignment)

    def _gap(self, tensor: Tensor) -> Any | None:
        """Which bytes of an output's storage belong to no element, or None when all do."""
        strided, storage = self.layouts[tensor.name], self.storages[tensor.name]
        if math.prod(strided.shape) * tensor.dtype.itemsize == storage.numel() or strided.backward():
            return None
        mask = torch.ones(strided.extent(), dtype=torch.bool, device=storage.device)
        mask.as_strided(strided.shape, strided.strides).fill_(False)
        return mask.repeat_interleave(tensor.dtype.itemsize)

    def _copy(self, storage: Any, source: Any) -> None:
        storage.copy_(source)

    def _poison(self, storage: Any) -> None:
        wide = words(storage)
        wide.fill_(-1 if wide.dtype == torch.int64 else 0xFF)

    def _heal(self) -> None:
        self.arena.heal()

    def _reverse(self, tensor: Tensor) -> bool:
        storage, dtype = self.storages[tensor.name], moved_as(torch_dtype(tensor))
        if storage.numel() <= tensor.dtype.itemsize:
            return False
        storage.view(dtype).copy_(self._pristine[tensor.name].view(dtype).flip(0))
        return True

    def _values(self, tensor: Tensor, *, wide: bool) -> Any:
        values = self.tensor(tensor)
        return values.to(torch.float32) if wide else values.clone()

    def tensor(self, tensor: Tensor) -> Any:
        """A tensor of the call, as torch's tensor."""
        return tensor_of(self.layouts[tensor.name], self.storages[tensor.name], torch_dtype(tensor))

    def cold(self, *, whole: bool = False) -> list[Any]:
        """Storages of what must not be in the caches when a call begins. With `whole`, everything must not."""
        return [self.storages[t.name] for t in (*self.inputs(), *self.made()) if whole or t.cold]

    def changed(self) -> list[tuple[str, Any]]:
        """For each thing that no call may write to, whether it was written to, as a tensor. Guard zones come first."""
        flags = [("", self.arena.damaged())]
        for tensor in self.kept():
            flags.append((tensor.name, _unequal(self.storages[tensor.name], self._pristine[tensor.name])))
        flags += [(n, self._written(n, g).any()) for n, g in self._gaps.items() if g is not None]
        return flags

    def _written(self, name: str, gap: Any) -> Any:
        """Which bytes of an output's gap differ from those before the call, in one dimension."""
        source = self.sources.get(name)
        return self.storages[name][gap] != (0xFF if source is None else source[gap])

    def describe(self, name: str) -> str:
        """What is wrong with the thing that `changed` names."""
        if not name:
            piece, where = self.arena.damage()
            return f"oob: guard zone of {piece!r}: {where}"
        gap = self._gaps.get(name)
        if gap is not None:
            hit = gap.nonzero().flatten()[self._written(name, gap)].tolist()
            return f"oob: {len(hit)} bytes between the rows of {name!r} were written, first {hit[0]}"
        first = (self.storages[name] != self._pristine[name]).nonzero().flatten()[0]
        return f"input {name!r} was changed, first at byte {int(first)}"

    def bits(self) -> dict[str, Any]:
        """Copies of the outputs' bytes, by name."""
        return {t.name: self.storages[t.name].clone() for t in self.outputs()}

    def differs(self, bits: dict[str, Any]) -> Any:
        """Whether any output's bytes differ from these, as a tensor."""
        return torch.stack([_unequal(self.storages[n], b) for n, b in bits.items()]).any()

    @property
    def bytes(self) -> int:
        """Bytes of the memory that it does not share."""
        return self.arena.bytes


def _unequal(one: Any, other: Any) -> Any:
    """Whether two storages of the same size differ, as a tensor."""
    wide, too = words(one), words(other)
    return ((wide != too) if wide.dtype == too.dtype else (one != other)).any()


def undo_of(sets: Sequence[CallSet]) -> list[Undo]:
    """What undoes calls on each of the call sets. Empty if no tensor is both read and written."""
    return [s.undo for s in sets] if sets[0].sources else []


class ProblemState:
    """One problem in one worker. Its parts are made when they are first needed.

    `last_cache` is the L2's bytes. `bytes` is what all parts take together.
    """

    def __init__(
        self, engine: Engine, operator: Operator, check: Check, folder: Path, policy: Policy, last_cache: int
    ) -> None:
        self.operator, self.check, self.policy = operator.concrete(check.problem.dtypes), check, policy
        self._engine, self._folder, self._last_cache = engine, folder, last_cache
        self._pristine: dict[str, Any] = {}
        self._exact: dict[tuple[tuple[str, str], ...], CallSet] = {}
        self._rotation: list[CallSet] = []
        self._expected: dict[str, Expected] = {}
        self.bytes = 0

    @property
    def pristine(self) -> dict[str, Any]:
        """Bytes of the inputs that no candidate is given. They are copied from, and compared with."""
        if not self._pristine:
            self._pristine = draw_inputs(self.operator, self.check, self.policy.seed, self._engine.device)
            self.bytes += sum(int(s.numel()) for s in self._pristine.values())
        return self._pristine

    @property
    def expected(self) -> dict[str, Expected]:
        """True values and allowed errors, by output."""
        if not self._expected:
            limits = read_limits(self._folder)
            exact = exact_values(self.operator, self.check, self.pristine, self._engine.device)
            for tensor in self.operator.outputs:
                if tensor.name in exact:
                    self._expected[tensor.name] = Expected(tensor, exact.pop(tensor.name), limits[tensor.name])
            self.bytes += sum(e.bytes for e in self._expected.values())
        return self._expected

    def _call_set(self, **given: Any) -> CallSet:
        return CallSet(self._engine, self.operator, self.check, self.pristine, **given)

    def exact(self, aliases: Mapping[str, str] = MappingProxyType({})) -> CallSet:
        """The call set to verify with, aligned exactly as the problem says.

        `aliases` are outputs in the memory of inputs.
        """
        key = tuple(aliases.items())
        if key not in self._exact:
            calls = self._exact[key] = self._call_set(aliases=aliases)
            self.bytes += calls.bytes
        return self._exact[key]

    def rotation(self) -> list[CallSet]:
        """Call sets that take turns while calls are timed.

        Each has its own copy of the cold tensors, and all share the others. The copies of the cold tensors fill the L2
        as often as the policy wants. If the tensors of a call exceed the L2, the call finds none of them there, so all
        of them count as cold. Tensors that are read and written have a copy for each call before they are written
        again, see `timing`.
        """
        if not self._rotation:
            first = self._call_set(natural=True)
            self._rotation.append(first)
            whole = self._exceeds_cache(first)
            size = _size(first.cold(whole=whole))
            wanted = int(-(-self.policy.cold_factor * self._last_cache // size)) if size else 1
            if whole and size <= _TWICE:
                wanted = max(wanted, 2)
            in_place = _size([*first.cold(whole=True)] if whole else [*first.sources.values()]) if first.sources else 0
            moved = self.operator.compulsory_bytes(self.check.problem)
            wanted = max(wanted, copies_in_place(in_place, moved, self.policy))
            share = None if whole else first
            for _ in range(min(wanted, self.policy.copies) - 1):
                self._rotation.append(self._call_set(natural=True, share=share))
            self.bytes += sum(s.bytes for s in self._rotation)
        return self._rotation

    def cold(self) -> list[Any]:
        """Storages of all copies of what is cold in the rotation."""
        sets = self.rotation()
        whole = self._exceeds_cache(sets[0])
        return [storage for calls in sets for storage in calls.cold(whole=whole)]

    def _exceeds_cache(self, calls: CallSet) -> bool:
        return 0 < self._last_cache < _size(calls.cold(whole=True))

    def close(self) -> None:
        """Give the memory back."""
        self.bytes = 0
        for kept in (self._pristine, self._expected, self._exact):
            kept.clear()
        self._rotation.clear()


def _size(storages: Sequence[Any]) -> int:
    return sum(int(s.numel()) for s in storages)
