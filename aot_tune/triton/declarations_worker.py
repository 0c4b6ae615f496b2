"""Reads what Triton functions declare.

    python -m aot_tune.triton.declarations_worker <request> <answer>    # two files of JSON

Each target has its own process, because packages choose configs by the device and store them when they are imported.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec

from aot_tune.spec import AMD_OPTIONS, OPTIONS, Declarations
from aot_tune.support.errors import AotTuneError, SpecError
from aot_tune.support.own_modules import project_files
from aot_tune.triton import triton_private as interface
from aot_tune.triton.absent_devices import device_of
from aot_tune.triton.heuristics import prune, trace_heuristics
from aot_tune.triton.load_function import load
from aot_tune.triton.standins import stand_in
from aot_tune.triton.triton_messages import Answer, Fault, FunctionRequest, InspectRequest

__all__ = ["main", "read_function"]


def read_function(request: FunctionRequest, roots: list[str]) -> Declarations:
    """What a function declares.

    Raises:
        SpecError: when it does not exist, or declares what cannot be known ahead of time.
    """
    function = interface.unwrap(load(request.function, roots), request.function)
    parameters = function.parameters()
    names = [p.name for p in parameters]
    with interface.symbolic_helpers([compute for _, compute, _ in function.heuristics()]):
        heuristics, booleans = trace_heuristics(request, function, names, interface.element_type)
    constexprs = {p.name for p in parameters if p.constexpr}
    configs: list[dict[str, Any]] = []
    pruned: dict[str, list[int]] = {}
    if not request.parameters:  # otherwise the kernel has its own space
        chosen = set(OPTIONS) & heuristics.keys()  # a heuristic wins over a config
        configs = [{n: v for n, v in c.items() if n not in chosen} for c in function.configs()]
        _check_configs(request, configs, names)
        pruned = prune(request, function, names, constexprs, heuristics, interface.element_type)
    tuner: Any = function.autotuner
    reached = interface.reached(function.jit)
    return Declarations(
        parameters=parameters,
        configs=tuple(configs),
        keys=tuple(tuner.keys) if tuner is not None else (),
        hooks=function.hooked(),
        reset_to_zero=tuple(tuner.reset_to_zero) if tuner is not None else (),
        restore_value=tuple(tuner.restore_value) if tuner is not None else (),
        pruned=pruned,
        heuristics={name: expr.data() for name, expr in heuristics.items()},
        booleans=tuple(booleans),
        debug=function.debug(),
        digest=reached.digest,
        files=reached.files,
    )


def _check_configs(request: FunctionRequest, configs: list[dict[str, Any]], names: list[str]) -> None:
    known = (*names, *OPTIONS, *AMD_OPTIONS)
    for config in configs:
        for name, value in config.items():
            if name not in known and name != "ir_override":
                raise SpecError(
                    f"kernel {request.name!r}: a config of {request.function} has {name!r}, which is not an argument",
                    why=f"launch options that configs may set are {', '.join((*OPTIONS, *AMD_OPTIONS))}",
                    fix="declare `parameters` of the kernel. launch_pdl and cooperative are arguments of "
                    "TritonFunction",
                )
            if name == "ir_override" or not isinstance(value, (bool, int, str)):
                raise SpecError(
                    f"kernel {request.name!r}: a config of {request.function} has {name}={str(value)[:60]!r}",
                    why="values of configs are integers, booleans or names",
                    fix="declare `parameters` of the kernel, and map them in `arguments`",
                )


def _answer(request: FunctionRequest, roots: list[str]) -> Answer:
    try:
        inspection = read_function(request, roots)
        return Answer(name=request.name, inspection=inspection, imported=project_files())
    except AotTuneError as error:
        return Answer(name=request.name, fault=Fault(what=error.what, why=error.why, fix=error.fix))
    except Exception as error:
        traceback.print_exc()
        what = f"kernel {request.name!r}: reading {request.function} fails: {type(error).__name__}: {error}"
        return Answer(name=request.name, fault=Fault(what=what, fix="try to import only its module with Python"))


def main() -> int:
    """Answer the request in one file with another file."""
    request = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=InspectRequest)
    device = device_of(request.target)
    interface.fake_driver(device)
    stand_in(device)
    answers = [_answer(function, request.roots) for function in request.functions]
    Path(sys.argv[2]).write_bytes(msgspec.json.encode(answers))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
