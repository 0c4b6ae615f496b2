"""The tensors of one call in guarded memory, for every family: what a call reads, writes, and may not touch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.comparison import SurveyedOutput
from aot_tune.bench.worker.honesty import exchangeable
from aot_tune.bench.worker.inputs import Strided, attribute_indices, layout, scalar_values
from aot_tune.bench.worker.loaded_objects import HOST, Arguments
from aot_tune.bench.worker.stored_elements import epsilon_of
from aot_tune.spec import Operator, Tensor

__all__ = ["CallTensors"]

Storage = TypeVar("Storage")


class CallTensors(ABC, Generic[Storage]):
    """The tensors of one call. Inputs are copied from `pristine`, and outputs are poisoned.

    `aliases` are the outputs that use an input's memory. `storages` are the bytes of each tensor that is present, and
    `layouts` where its elements are in them. `sources` are the contents to write, before a call, into tensors that it
    reads and writes. The operator is concrete.
    """

    def __init__(
        self, operator: Operator, check: Check, pristine: dict[str, Storage], aliases: Mapping[str, str]
    ) -> None:
        self.operator, self._check, self._pristine, self._aliases = operator, check, pristine, aliases
        self._present = [t for t in operator.tensors if operator.is_present(check.problem, t)]
        self.layouts: dict[str, Strided] = {t.name: layout(operator, check, t) for t in self._present}
        self.sources = {t.name: pristine[t.name] for t in self._present if t.inout}
        self.sources |= {output: pristine[name] for output, name in aliases.items()}
        self.storages: dict[str, Storage] = {}

    def _arguments(self, addresses: Mapping[str, int], device: tuple[int, int] = HOST) -> Arguments:
        """The arguments of the call, by the addresses of the storages."""
        return Arguments(
            self.operator,
            {t.name: addresses[t.name] + self.layouts[t.name].first() * t.dtype.itemsize for t in self._present},
            {n: p.shape for n, p in self.layouts.items()},
            {n: p.strides for n, p in self.layouts.items()},
            scalar_values(self.operator, self._check),
            attribute_indices(self.operator, self._check),
            device,
        )

    @abstractmethod
    def _copy(self, storage: Storage, source: Storage) -> None:
        """Write the bytes of a source."""

    @abstractmethod
    def _poison(self, storage: Storage) -> None:
        """Fill bytes with 0xFF: NaN in every floating type."""

    @abstractmethod
    def _heal(self) -> None:
        """Write the guard zones again."""

    @abstractmethod
    def _reverse(self, tensor: Tensor) -> bool:
        """Write the elements of a pristine input in reverse order. Returns whether its bytes differ."""

    @abstractmethod
    def _values(self, tensor: Tensor, *, wide: bool) -> Any:
        """A copy of a tensor's values, in float32 if they are to be `wide`."""

    def outputs(self) -> list[Tensor]:
        """The outputs that are present."""
        return [t for t in self.operator.outputs if t.name in self.layouts]

    def inputs(self) -> list[Tensor]:
        """The inputs that are present."""
        return [t for t in self.operator.inputs if t.name in self.layouts]

    def made(self) -> list[Tensor]:
        """The outputs that hold nothing before a call."""
        return [t for t in self.outputs() if t.name not in self.sources]

    def kept(self) -> list[Tensor]:
        """The inputs that no call may write to."""
        return [t for t in self.inputs() if not t.inout and t.name not in self._aliases.values()]

    def poison(self, *, renewed: bool = False) -> None:
        """Fill all outputs with NaN.

        Reset the tensors that are read and written, unless their contents were `renewed`.
        """
        for tensor in self.made():
            self._poison(self.storages[tensor.name])
        if not renewed:
            self.undo()

    def undo(self) -> None:
        """Reset the tensors that are read and written to what they held before any call."""
        for name, source in self.sources.items():
            self._copy(self.storages[name], source)

    def renew(self) -> bool:
        """Write other contents to the same memory, as legal as the inputs' own. Returns whether there are any."""
        differs = [self._reverse(tensor) for tensor in exchangeable(self.operator, self.inputs())]
        return any(differs)

    def put_back(self) -> None:
        """Write inputs again."""
        for tensor in self.inputs():
            self._copy(self.storages[tensor.name], self._pristine[tensor.name])

    def restore(self) -> None:
        """Write inputs and guard zones again, after a candidate that wrote to them."""
        self.put_back()
        self._heal()

    def results(self) -> dict[str, SurveyedOutput]:
        """Copies of the results, in float32 if their own dtype is narrower."""
        results = {}
        for tensor in self.outputs():
            epsilon = epsilon_of(tensor.dtype)
            wide = epsilon is not None and tensor.dtype.itemsize < 4
            results[tensor.name] = SurveyedOutput(self._values(tensor, wide=wide), epsilon)
        return results
