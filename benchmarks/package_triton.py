"""Functions of packages that examples/from_packages declares, by Triton's own launcher."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from package_calls import PackageCall

from aot_tune.compile import target_by_name
from aot_tune.render.triton.binding import Argument, bind, inspections_of, resolved
from aot_tune.render.triton.specialize import known_value
from aot_tune.spec import DTYPES, OPTIONS, Buffer, Config, Descriptor, Expr, Kernel, Operator, Problem
from aot_tune.spec.load_operators import load_operator, operator_folders
from aot_tune.triton.ask_declarations import Inspections, read_functions, with_declarations
from aot_tune.triton.installed import load

__all__ = ["TEMPLATES", "forced_kernels", "is_package", "jit_function", "launcher", "public", "read_operators"]

TEMPLATES = Path(__file__).resolve().parents[1] / "examples" / "from_packages" / "templates"

_LIGER = "liger_kernel.ops"
_PUBLIC: dict[str, tuple[str, Callable[[Any, Mapping[str, Any]], object]]] = {
    "rms_norm/liger": (
        f"{_LIGER}.rms_norm:rms_norm_forward",
        lambda function, t: function(t["x"], t["weight"], 1e-6, 0.0, "llama", None),
    ),
    "layer_norm/liger": (
        f"{_LIGER}.layer_norm:layer_norm_forward",
        lambda function, t: function(t["x"], t["weight"], t["bias"], 1e-5),
    ),
    "swiglu/liger": (f"{_LIGER}.swiglu:swiglu_forward", lambda function, t: function(t["gate"], t["up"])),
    "rope/liger": (
        f"{_LIGER}.rope:rope_forward",
        lambda function, t: function(t["q"].transpose(1, 2), t["k"].transpose(1, 2), t["cos"], t["sin"]),
    ),
}
"""The packages' functions that users call, where one is a single launch. They choose configs and make outputs."""


@dataclasses.dataclass(frozen=True)
class JitCall:
    """A config of a kernel on a problem. The operator is concrete, and the kernel is resolved for the target."""

    operator: Operator
    kernel: Kernel
    config: Config
    target: str
    problem: Problem

    def facts(self) -> dict[str, int]:
        """All that is known of the call and of the config."""
        config = {f"parameter.{n}": int(v) for n, v in self.config.items() if not isinstance(v, str)}
        return {**self.operator.facts(self.problem), **config}

    def arguments(self, tensors: Mapping[str, Any], multiprocessors: int = 1) -> dict[str, Any]:
        """What the JIT gets for the same call, by parameter. Launch options are not part of it."""
        facts = {**self.facts(), "device.multiprocessors": multiprocessors}
        passed = bind(self.operator, self.kernel, self.target)
        return {a.name: self._argument(a, facts, tensors) for a in passed}

    def _argument(self, a: Argument, facts: Mapping[str, int], tensors: Mapping[str, Any]) -> Any:
        readers: dict[str, Callable[[], Any]] = {
            "pointer": lambda: tensors.get(a.tensor),
            "integer": lambda: (bool if a.boolean else int)(known_value(a, self.config, facts)),
            "scalar": lambda: next(s.default for s in self.operator.scalars if s.name == a.value),
            "parameter": lambda: self.config[a.name],
            "constant": lambda: a.value,
            "buffer": lambda: _buffer(a.buffer, facts, next(iter(tensors.values())).device),
            "descriptor": lambda: _descriptor(a.descriptor, facts, tensors[a.tensor]),
            "dtype": lambda: getattr(
                importlib.import_module("triton.language"), self.operator.tensor(a.tensor).dtype.torch
            ),
        }
        return readers[a.kind]()

    def grid(self, arguments: Mapping[str, Any], multiprocessors: int = 1) -> tuple[int, int, int]:
        """Blocks along each axis."""
        given, facts = self.kernel.triton_functions[0].grid, {**self.facts(), "device.multiprocessors": multiprocessors}
        extents = given({**arguments, **self.config}) if callable(given) else given
        whole = [e.evaluate(facts) if isinstance(e, Expr) else int(e) for e in extents]
        return tuple([*whole, 1, 1][:3])  # type: ignore[return-value]

    def options(self) -> dict[str, int]:
        """Launch options: a config's before the function's."""
        ((function, _),) = inspections_of(self.kernel, self.target)
        facts = self.facts()
        found = {n: v.evaluate(facts) if isinstance(v, Expr) else v for n, v in function.options.items()}
        return {**found, **{n: int(self.config[n]) for n in OPTIONS if self.config.get(n) is not None}}


def _buffer(given: Buffer | None, facts: Mapping[str, int], device: Any) -> Any:
    assert given is not None
    count = given.count.evaluate(facts) if isinstance(given.count, Expr) else given.count
    return torch.zeros(count, dtype=getattr(torch, DTYPES[given.dtype_name].torch), device=device)


def _descriptor(given: Descriptor | None, facts: Mapping[str, int], tensor: Any) -> Any:
    assert given is not None
    made = importlib.import_module("triton.tools.tensor_descriptor").TensorDescriptor
    block = [e.evaluate(facts) if isinstance(e, Expr) else e for e in given.block]
    view = tensor.permute(given.order) if given.order else tensor
    return made(view, list(view.shape), list(view.stride()), block, padding=given.padding)


def read_operators(targets: Sequence[str]) -> dict[str, Operator]:
    """The example's operators, with what their functions declare for these targets."""
    os.environ["AOT_TUNE_TEMPLATE_ROOTS"] = str(TEMPLATES)
    declared = {folder.name: load_operator(folder) for folder in operator_folders([TEMPLATES])}

    def read(target: str) -> Inspections:
        found, missing = read_functions(declared, [target_by_name(target)], [], [TEMPLATES], os.environ)
        if missing:
            raise SystemExit(f"benchmarks: {missing}")
        return found

    both: Inspections = {}
    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(read, targets):
            for name, by_target in found.items():
                both.setdefault(name, {}).update(by_target)
    return {name: with_declarations(op, both, ["cuda"]) for name, op in declared.items()}


def is_package(operator: Operator, kernel: str) -> bool:
    """Whether a kernel is a function of a package, not of the example itself."""
    return any(not f.place.endswith(".py") for f in operator.kernel(kernel).triton_functions)


def forced_kernels(operator: Operator, variants: Sequence[Mapping[str, Any]]) -> list[str]:
    """Tuned kernels of packages that the library has for an operator."""
    found = (v["kernel"] for v in variants if v["target"].startswith("cuda") and not v["generic"])
    return [name for name in dict.fromkeys(found) if is_package(operator, name)]


def jit_function(reference: str) -> Any:
    """The @triton.jit function that a reference names, without its other decorators."""
    found: Any = load(reference, [str(TEMPLATES)])
    while hasattr(found, "fn") and not hasattr(found, "params"):
        found = found.fn
    return found


def launcher(
    call: PackageCall, operator: Operator, variant: Mapping[str, Any], function: Any, multiprocessors: int
) -> Callable[[], object]:
    """The call by Triton's own launcher, with the config of a variant. `operator` has the functions' declarations."""
    kernel = resolved(operator.kernel(variant["kernel"]), variant["target"])
    kernels = tuple(kernel if k.name == kernel.name else k for k in operator.kernels)
    concrete = dataclasses.replace(operator, kernels=kernels).concrete(call.problem.dtypes)
    made = JitCall(concrete, kernel, variant["config"], variant["target"], call.problem)
    arguments = made.arguments(call.tensors, multiprocessors)
    grid, options = made.grid(arguments, multiprocessors), made.options()
    bound = function[grid]
    return lambda: bound(**arguments, **options)


def public(call: PackageCall, kernel: str) -> Callable[[], object] | None:
    """The package's own function, where it is easy to call and works."""
    if (known := _PUBLIC.get(f"{call.operator.name}/{kernel}")) is None:
        return None
    place, made = known
    module, _, name = place.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
        made(function, call.tensors)
        torch.cuda.synchronize()
    except Exception as error:  # a figure beside the others
        print(f"{place}: {type(error).__name__}: {error}", flush=True)
        return None
    return lambda: made(function, call.tensors)
