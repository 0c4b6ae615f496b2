"""Triton kernels of bundled operators in Triton's interpreter, in forks of another process."""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
from forked import answer
from triton_bundled import HOPPER, TEMPLATES, declared

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.protocol.messages import InterpreterRequest
from aot_tune.bench.worker import reference_results
from aot_tune.spec import Config, Operator


class Trial(NamedTuple):
    """A kernel in a config on a check, with other numbers in some inputs."""

    operator: Operator
    kernel: str
    config: Config
    check: Check
    put: Mapping[str, Sequence[int]] = MappingProxyType({})

    def request(self) -> InterpreterRequest:
        name = f"{self.operator.name}/{self.kernel}"
        functions = enumerate(self.operator.kernel(self.kernel).triton_functions, 1)
        return InterpreterRequest(
            folder=self.operator.folder,
            kernel=self.kernel,
            target=HOPPER.name,
            config=dict(self.config),
            check=self.check,
            inspections={name + (f":{n}" if n > 1 else ""): {HOPPER.name: declared(f.function)} for n, f in functions},
            roots=[str(TEMPLATES)],
            seed=3,
        )


def verdicts(trials: Sequence[Trial]) -> list[str]:
    """What trials come to: `right: `, `wrong: ` or `not runnable: `, with the trial and what is wrong."""
    given = [(msgspec.json.encode(t.request()).decode(), dict(t.put)) for t in trials]
    first = "from aot_tune.bench.worker import interpreted_call\nfrom interpreted import answers"
    told = answer(first, "answers(interpreted_call, given)", given, TRITON_INTERPRET="1")
    places = (f"{t.kernel} of {t.operator.name} on {t.check.place} {dict(t.put) or ''}" for t in trials)
    return [f"{a['verdict']}: {place}: {a.get('text', '')}" for a, place in zip(told, places, strict=True)]


def faults(trials: Sequence[Trial]) -> list[str]:
    """The verdicts of trials that are not right."""
    return [verdict for verdict in verdicts(trials) if not verdict.startswith("right: ")]


def answers(worker: Any, given: Sequence[tuple[str, Mapping[str, Sequence[int]]]]) -> list[Any]:
    """What is done in the fork."""
    fill, told = reference_results.fill, []
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "asked"), Path(folder, "answered")
        sys.argv[1:] = [str(asked), str(answered)]
        for request, put in given:

            def changed(op: Operator, check: Check, views: Any, seed: int, put: Any = put) -> None:
                fill(op, check, views, seed)
                for name, values in put.items():
                    views[name][...] = np.resize(np.array(values, np.int64), views[name].shape)

            reference_results.fill = worker.fill = changed
            asked.write_text(request)
            worker.main()
            told.append(msgspec.json.decode(answered.read_bytes()))
    return told
