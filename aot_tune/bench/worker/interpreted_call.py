"""A process that runs one config of a Triton kernel in Triton's interpreter, and compares it with the reference.

TRITON_INTERPRET=1 python -m aot_tune.bench.worker.interpreted_call <request.json> <answer.json>
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.protocol.messages import InterpreterAnswer, InterpreterRequest
from aot_tune.bench.worker.comparison import compare_stored
from aot_tune.bench.worker.inputs import Strided, fill, layout, scalar_values
from aot_tune.bench.worker.reference_results import read_truth, write_truth
from aot_tune.bench.worker.stored_elements import array_dtype
from aot_tune.compile import target_by_name
from aot_tune.expr.integer_expressions import Ratio, Root
from aot_tune.render.triton.binding import Argument, bind, inspections_of, resolved
from aot_tune.spec import DTYPES, DType, Expr, Kernel, Operator
from aot_tune.spec.load_operators import load_operator
from aot_tune.support.errors import AotTuneError
from aot_tune.triton.absent_devices import device_of, stand_in
from aot_tune.triton.ask_declarations import with_declarations
from aot_tune.triton.interpreter import InterpretedTensor, call, descriptor_of, interpreted
from aot_tune.triton.triton_private import element_type, fake_driver

_MARGIN = 256
"""Elements before and behind each tensor that nobody may write to. It is a multiple of any alignment."""
_TEXT = 500
"""How many characters of an error are reported."""
_GUARD, _POISON = 0xA5, 0xFF
_MULTIPROCESSORS = 3
"""Multiprocessors that a grid may ask for. More than one, but few, since programs run one by one."""


class _HeldTensor:
    """A tensor in guarded memory; outputs hold NaN."""

    def __init__(self, dtype: DType, place: Strided) -> None:
        self.dtype, self.place, self.count = dtype, place, place.extent()
        self._whole = np.empty(self.count + 2 * _MARGIN, array_dtype(dtype))
        self._whole.view(np.uint8)[...] = _GUARD
        self.flat.view(np.uint8)[...] = _POISON

    @property
    def flat(self) -> NDArray[Any]:
        """Its elements without the margins."""
        return self._whole[_MARGIN : _MARGIN + self.count]

    @property
    def tensor(self) -> InterpretedTensor:
        """The tensor as the function gets it."""
        first = _MARGIN + self.place.first()
        return InterpretedTensor(self._whole, first, *self.place, self.dtype.torch)

    def held(self) -> NDArray[Any]:
        """Its elements as arrays hold them, with the tensor's strides."""
        return self.place.array(self.flat.dtype, self.flat)

    def overrun(self) -> bool:
        """Whether a margin was written to."""
        margins = (self._whole[:_MARGIN], self._whole[_MARGIN + self.count :])
        return any((m.view(np.uint8) != _GUARD).any() for m in margins)


class _InterpretedCall:
    """The kernel on the problem, with the arguments that the launcher would pass."""

    def __init__(self, operator: Operator, kernel: Kernel, request: InterpreterRequest) -> None:
        self.check: Check = request.check
        self.operator, self.kernel, self.request = operator.concrete(self.check.problem.dtypes), kernel, request
        target = target_by_name(request.target)
        self._facts = {**operator.facts(self.check.problem), "device.multiprocessors": _MULTIPROCESSORS}
        self._facts |= {f"target.{n}": v for n, v in target.facts.items()}
        self._facts |= {f"parameter.{n}": int(v) for n, v in request.config.items() if isinstance(v, int)}
        present = [t for t in self.operator.tensors if self.operator.is_present(self.check.problem, t)]
        self.memory = {t.name: _HeldTensor(t.dtype, layout(self.operator, self.check, t)) for t in present}
        fill(self.operator, self.check, {n: m.flat for n, m in self.memory.items() if self._is_input(n)}, request.seed)
        kept = [t.name for t in present if not t.written]
        self.before = {name: self.memory[name].flat.copy() for name in kept}
        self.buffers: dict[int, _HeldTensor] = {}

    def _is_input(self, name: str) -> bool:
        return name in {t.name for t in self.operator.inputs}

    def run(self) -> None:
        bound = bind(self.operator, self.kernel, self.request.target)
        for launch, (declared, inspection) in enumerate(inspections_of(self.kernel, self.request.target)):
            function = interpreted(declared.function, self.request.roots)
            own = {a.name: a for a in bound if a.launch == launch}
            arguments = {name: self._passed(a) for name, a in own.items()}
            for name in {*declared.reset_to_zero, *inspection.reset_to_zero}:
                buffer, tensor = own[name].buffer, own[name].tensor
                (self.memory[tensor] if buffer is None else self.buffers[id(buffer)]).flat[...] = 0
            grid = declared.grid
            extents = grid({**self.request.config, **arguments}) if callable(grid) else grid
            call(function, [int(self._value(e)) for e in extents], arguments)

    def fault(self, folder: Path) -> str:
        """What is wrong with the results."""
        for name, memory in self.memory.items():
            if memory.overrun():
                return f"it writes before or behind {name!r}"
            changes = self.operator.tensor(name).written
            if name in self.before and not changes and not np.array_equal(_bits(memory.flat), _bits(self.before[name])):
                return f"it writes to the input {name!r}"
        truths = read_truth(folder)
        for tensor in self.operator.outputs:
            if tensor.name in self.memory and not truths[tensor.name][0].undefined:
                truth, wanted = truths[tensor.name]
                fault, _ = compare_stored(tensor, self.memory[tensor.name].held(), wanted, truth.bounds)
                if fault:
                    return fault
        return ""

    def _value(self, given: Any) -> Any:
        if isinstance(given, Ratio):
            above, below = (self._value(part) for part in given.parts)
            return above / below
        if isinstance(given, Root):
            return self._value(given.of) ** 0.5
        return given.evaluate(self._facts) if isinstance(given, Expr) else given

    def _passed(self, a: Argument) -> Any:
        if a.kind == "pointer":
            return self.memory[a.tensor].tensor if a.tensor in self.memory else None
        if a.descriptor is not None:
            block = [int(self._value(extent)) for extent in a.descriptor.block]
            return descriptor_of(self.memory[a.tensor].tensor, block, a.descriptor.order, a.descriptor.padding)
        if a.buffer is not None:
            return self._buffer(a)
        return element_type(self.operator.tensor(a.tensor).dtype.name) if a.kind == "dtype" else self._number(a)

    def _number(self, a: Argument) -> Any:
        """An argument that is no memory."""
        if a.kind == "integer":
            value = int(self._value(a.expr))
            return bool(value) if a.boolean else value
        if a.kind == "scalar":
            return scalar_values(self.operator, self.check)[str(a.value)]
        return self.request.config[a.name] if a.kind == "parameter" else self._value(a.value)

    def _buffer(self, a: Argument) -> InterpretedTensor:
        assert a.buffer is not None
        if id(a.buffer) not in self.buffers:
            count = int(self._value(a.buffer.count))
            memory = self.buffers[id(a.buffer)] = _HeldTensor(DTYPES[a.buffer.dtype_name], Strided((count,), (1,)))
            if a.buffer.zero:
                memory.flat[...] = 0
        return self.buffers[id(a.buffer)].tensor


def _bits(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).view(np.uint8)


def _answer(request: InterpreterRequest) -> InterpreterAnswer:
    device = device_of(request.target)
    fake_driver(device)  # a function's module may ask for the device
    stand_in(device)
    families = [target_by_name(request.target).family]
    operator = with_declarations(load_operator(Path(request.folder)), request.inspections, families)
    kernel = resolved(operator.kernel(request.kernel), request.target)
    operator = replace(operator, kernels=tuple(kernel if k.name == kernel.name else k for k in operator.kernels))
    with tempfile.TemporaryDirectory() as folder:
        truth = Path(folder, "truth")
        write_truth(operator, request.check, truth, request.seed)
        kernel_call = _InterpretedCall(operator, kernel, request)
        try:
            kernel_call.run()
        except Exception as error:  # anything that the function or the interpreter raises
            return InterpreterAnswer(verdict="not runnable", text=_first_line(error))
        fault = kernel_call.fault(truth)
    return InterpreterAnswer(verdict="wrong" if fault else "right", text=fault)


def _first_line(error: BaseException) -> str:
    text = error.what if isinstance(error, AotTuneError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:_TEXT]


def main() -> int:
    """Answer the request."""
    request = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=InterpreterRequest)
    try:
        answer = _answer(request)
    except (AotTuneError, ValueError, TypeError, KeyError) as error:  # raised by the reference, or by values to draw
        answer = InterpreterAnswer(verdict="not runnable", text=_first_line(error))
    Path(sys.argv[2]).write_bytes(msgspec.json.encode(answer))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
