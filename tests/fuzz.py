#!/usr/bin/env python3
"""Makes random calls of all operators of a library, legal and wrong ones, and tells what was not as it should be.

    tests/fuzz.py MODULE [--calls 17000] [--seed 0] [--opcheck 10] [--device cpu] [--only NUMBER]

MODULE is the file of the module with the bundled operators, such as .../aot_tune/ops.abi3.so. Half of the calls are of
its functions, the others go through torch.ops, by Python and by the shim. Half of both are legal: their results are
held to the operators' references in float64, and neither inputs nor bytes beside outputs may change. The others are
wrong in one thing: an error of the right type must come that names operator and argument and says what is wanted and
what came, and no byte that the call can reach may change. Through torch.ops, legal calls are also made with fake
tensors, whose results must be as those of the call. `--opcheck` is how many calls of each overload torch checks.
`--only` makes one call, by its number. The exit status is 1 where something was wrong.
"""

import argparse
import builtins
import collections
import contextlib
import random
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import msgspec  # noqa: E402
import torch  # noqa: E402
from drawn_calls import DrawnCall, draw_call, fault_of_legal, results_by_name, snapshot  # noqa: E402
from module_files import load_module  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from wrong_calls import OPERATORS, RAW, WrongCall  # noqa: E402

import aot_tune.torch  # noqa: E402
from aot_tune.spec import Operator, Tensor  # noqa: E402
from aot_tune.spec.calls import outputs_to_pass  # noqa: E402
from aot_tune.spec.load_operators import bundled_templates, load_operators  # noqa: E402

WAYS = ("raw", "raw", "python", "shim")


@dataclass
class Fuzz:
    """Calls of a module in all ways, and what was wrong with them."""

    module: ModuleType
    operators: Mapping[str, Operator]
    spaces: Mapping[str, Any]
    device: str = "cpu"

    def call(self, seed: int, number: int) -> tuple[str, str]:
        """Make one call; its kind, and what was wrong, empty when nothing was."""
        draw = random.Random(f"{seed}:{number}")
        name = draw.choice(sorted(self.operators))
        way = draw.choice([w for w in WAYS if w == "raw" or w in self.spaces])
        frameworks = ("numpy", "torch") if way == "raw" and self.device == "cpu" else ("torch",)
        call = draw_call(self.operators[name], draw, frameworks=frameworks, device=self.device)
        if draw.random() < 0.5:
            kind, wrong = "legal", self._legal(call, way, draw)
        else:
            kind, wrong = self._wrong(call, way, draw)
        return f"{way} {kind}", f"{number} {way} {kind}: {call.text}: {wrong}" if wrong else ""

    def _function(self, call: DrawnCall, way: str, given: Mapping[str, Any]) -> Any:
        name = call.operator.name
        if way == "raw":
            return getattr(self.module, name)
        packet = getattr(self.spaces[way], name)
        outputs = _others(call.operator)
        if any(given.get(t.name) is True for t in outputs):
            return packet.all_outputs
        return packet.out if any(t.name in given for t in outputs) else packet.default

    def _legal(self, call: DrawnCall, way: str, draw: random.Random) -> str:
        if way != "raw":
            _pass_all_or_none(call)
        before, truth = snapshot(call.placed), call.truth()
        positional, named = call.arguments
        function = self._function(call, way, named)
        named = {n: v for n, v in named.items() if way == "raw" or not _asks(call, n, v)}
        if way == "raw" and draw.random() < 0.2:
            required = [t.name for t in sorted(call.operator.inputs, key=lambda t: t.optional)]
            positional, named = (), {**dict(zip(required, positional, strict=False)), **named}
        try:
            with torch.no_grad():
                returned = function(*positional, **named)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        faked = self._fake(call, function, positional, named, returned) if way != "raw" else ""
        results = results_by_name(call, returned, all_outputs=way == "raw")
        return fault_of_legal(call, results, before, truth) or faked

    def _fake(
        self, call: DrawnCall, function: Any, positional: Sequence[Any], named: Mapping[str, Any], real: Any
    ) -> str:
        mode = FakeTensorMode()

        def fake(value: Any) -> Any:
            return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value

        try:
            with mode, torch.no_grad():
                found = function(*map(fake, positional), **{n: fake(v) for n, v in named.items()})
        except Exception as error:
            return f"with fake tensors {type(error).__name__}: {error}"
        for one, other in zip(_several(found), _several(real), strict=True):
            told = [(t.dtype, tuple(t.shape), t.stride()) for t in (one, other)]
            if told[0] != told[1]:
                return f"with fake tensors it returns {told[0]}, really {told[1]}"
        return ""

    def _wrong(self, call: DrawnCall, way: str, draw: random.Random) -> tuple[str, str]:
        if way != "raw":
            _pass_all_or_none(call)
        makers = RAW if way == "raw" else OPERATORS
        wrong = None
        while wrong is None:
            wrong = makers[draw.choice(sorted(makers))](call, draw)
        before = snapshot(call.placed)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(wrong.gradients))
            if wrong.within is not None:
                stack.callback(wrong.within().__exit__, None, None, None)
            made = DrawnCall(call.operator, call.problem, wrong.given, call.placed, call.lead, call.scalars)
            positional, named = made.arguments
            function = self._function(call, way, named)
            named = {n: v for n, v in named.items() if way == "raw" or not _asks(call, n, v)}
            try:
                function(*positional, *wrong.positional, **named)
                told = "it raises nothing"
            except Exception as error:
                told = self._fault_of_error(wrong, call.operator.name, way, error)
        if not told and any(not torch.equal(one.memory, before[n]) for n, one in call.placed.items()):
            told = "it writes to memory"
        return wrong.kind, told

    def _fault_of_error(self, wrong: WrongCall, operator: str, way: str, error: Exception) -> str:
        text = str(error)
        told = f"{type(error).__name__}: {text[:600]}"
        if way != "raw" and f"::{operator}" in text and isinstance(error, (RuntimeError, TypeError, ValueError)):
            return ""  # torch's own, which shows the schema
        if operator not in text or not any(name in text for name in wrong.names):
            return f"not named: {told}"
        known = tuple(getattr(self.module, name, None) or getattr(builtins, name) for name in wrong.errors)
        if not isinstance(error, known):
            return f"another type than {' or '.join(wrong.errors)}: {told}"
        lacking = [word for word in wrong.words if word not in text]
        return f"it does not tell {', '.join(map(repr, lacking))}: {told}" if lacking else ""

    def checked_by_torch(self, seed: int, count: int) -> Iterator[str]:
        """What `torch.library.opcheck` finds wrong with calls of each overload."""
        for name, operator in sorted(self.operators.items()):
            for way in self.spaces:
                for number in range(count):
                    draw = random.Random(f"{seed}:opcheck:{name}:{number}")
                    call = draw_call(operator, draw, frameworks=("torch",), device=self.device)
                    _pass_all_or_none(call)
                    _separate(call)
                    positional, named = call.arguments
                    function = self._function(call, way, named)
                    named = {n: v for n, v in named.items() if not _asks(call, n, v)}
                    try:
                        torch.library.opcheck(function, positional, named, test_utils=_checks_of(call))
                    except Exception as error:
                        yield f"{way} opcheck {number} of {call.text}: {type(error).__name__}: {str(error)[:600]}"


def _asks(call: DrawnCall, name: str, value: Any) -> bool:
    """Whether an argument asks for an optional output, which is what an overload is for."""
    return value is True and any(t.name == name for t in call.operator.outputs)


def _several(found: Any) -> tuple[Any, ...]:
    return () if found is None else found if isinstance(found, tuple) else (found,)


def _others(operator: Operator) -> list[Tensor]:
    """The outputs that need not be passed."""
    return [t for t in operator.tensors if t.output and t.name not in outputs_to_pass(operator)]


def _pass_all_or_none(call: DrawnCall) -> None:
    """Have a call be one of an overload: all outputs that it can make are passed, or none."""
    outputs = _others(call.operator)
    asked = any(t.optional and t.name in call.given for t in outputs)
    passed = all(t.name in call.placed for t in outputs if not t.optional)
    for tensor in outputs:
        if passed and tensor.name in call.placed:
            continue
        call.placed.pop(tensor.name, None)
        call.given.pop(tensor.name, None)
        present = tensor.optional and asked and not passed
        if present:
            call.given[tensor.name] = True
        others = [n for n in call.problem.present if n != tensor.name]
        names = tuple(sorted([*others, *[tensor.name] * present]))
        call.problem = msgspec.structs.replace(call.problem, present=names)


def _checks_of(call: DrawnCall) -> tuple[str, ...]:
    """What torch checks of a call. It finds out what was written by functions that floats of 8 bits lack."""
    of_8_bits = any(call.operator.dtype(call.problem, call.operator.tensor(n)).saturates for n in call.placed)
    others = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    return others if of_8_bits else ("test_schema", *others)


def _separate(call: DrawnCall) -> None:
    """Let no two arguments be one: torch has no schema for what is written where it is read."""
    for tensor in call.operator.outputs:
        if tensor.name in call.placed and isinstance(call.given[tensor.name], torch.Tensor):
            call.given[tensor.name] = call.given[tensor.name].clone()


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the calls and print what was wrong; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("module", type=Path)
    parser.add_argument("--calls", type=int, default=17000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--opcheck", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", type=int)
    options = parser.parse_args(arguments)
    fuzz = prepare(load_module(options.module, "aot_tune.ops"), options.device)
    start, kinds, faults = time.monotonic(), collections.Counter[str](), 0
    numbers = range(options.calls) if options.only is None else [options.only]
    for number in numbers:
        kind, wrong = fuzz.call(options.seed, number)
        kinds[kind] += 1
        faults += bool(wrong)
        if wrong:
            print(wrong, flush=True)
    for wrong in fuzz.checked_by_torch(options.seed, options.opcheck if options.only is None else 0):
        faults += 1
        print(wrong, flush=True)
    for kind, count in sorted(kinds.items()):
        print(f"{count:6} {kind}")
    print(f"{sum(kinds.values())} calls in {time.monotonic() - start:.0f} s, {faults} not as they should be")
    return 1 if faults else 0


def prepare(module: ModuleType, device: str = "cpu", ways: Sequence[str] = ("python", "shim")) -> Fuzz:
    """Register a module with the bundled operators in the ways that calls are to take."""
    warnings.filterwarnings("ignore", "Mean of empty slice|Sparse CSR tensor support", category=Warning)
    operators = {
        name: operator
        for name, (_, operator) in load_operators([bundled_templates()], sorted(module.operators)).items()
    }
    for way in ways:
        aot_tune.torch.register(module, f"fuzzed_{way}", shim=way == "shim")
    spaces = {way: getattr(torch.ops, f"fuzzed_{way}") for way in ways}
    return Fuzz(module, operators, spaces, device)


if __name__ == "__main__":
    sys.exit(main())
