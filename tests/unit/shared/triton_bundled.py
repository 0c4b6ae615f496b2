"""What tests of the bundled Triton kernels share, and what they run in forks of other processes.

Whether a function is interpreted is decided when Triton is imported, so there are two of these processes.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from bundled import OPERATORS as BUNDLED
from forked import answer
from triton_problems import odd_problems

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.inputs import draw
from aot_tune.compile import target_by_name
from aot_tune.compile.device_targets import CUDA_TARGETS
from aot_tune.render import Candidate
from aot_tune.render.triton.binding import bind
from aot_tune.render.triton.kernel_source import render_triton
from aot_tune.render.triton.recipe import Recipe, read_recipe
from aot_tune.render.triton.specialize import specialized_pins
from aot_tune.spec import (
    ConfigValue,
    Declarations,
    Expr,
    Kernel,
    KernelParameter,
    Operator,
    Problem,
    Target,
    all_of,
)
from aot_tune.spec.load_operators import bundled_templates

TEMPLATES = bundled_templates()
NAMES = ("softmax", "rms_norm", "layer_norm", "silu_mul", "gemm", "flash_attention")
TARGET = {t.name: t for t in CUDA_TARGETS}
HOPPER = TARGET["cuda-sm_90"]
EPSILON = {"f32": 2e-6, "f16": 2e-3, "bf16": 1.6e-2}


def declared(reference: str) -> Declarations:
    """What a function of a file declares, read from its text."""
    file, _, name = reference.partition(":")
    tree = ast.parse((TEMPLATES / file).read_text())
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    plain = [
        ast.literal_eval(k.value)
        for d in function.decorator_list
        if isinstance(d, ast.Call)
        for k in d.keywords
        if k.arg == "do_not_specialize"
    ]
    unspecial = {n for names in plain for n in names}
    parameters = (
        KernelParameter(
            name=a.arg,
            constexpr=a.annotation is not None and ast.unparse(a.annotation) == "tl.constexpr",
            special=a.arg not in unspecial,
            align=a.arg not in unspecial,
        )
        for a in function.args.args
    )
    return Declarations(parameters=tuple(parameters), digest="0" * 64)


def bundled(name: str) -> Operator:
    """An operator whose Triton functions were read for all targets."""
    operator = BUNDLED[name]
    kernels = []
    for kernel in operator.kernels:
        if kernel.triton is not None:
            known = dict.fromkeys((*TARGET, "hip-gfx942"), declared(kernel.triton.function))
            kernel = replace(kernel, triton=kernel.triton.inspected(known))  # noqa: PLW2901
        kernels.append(kernel)
    return replace(operator, kernels=tuple(kernels))


OPERATORS = {name: bundled(name) for name in NAMES}
KERNELS = [(op.name, k.name) for op in OPERATORS.values() for k in op.kernels if k.triton is not None]
OF_EACH = (
    ("softmax", "triton_tiles"),
    ("softmax", "triton_long"),
    ("rms_norm", "triton_tiles"),
    ("rms_norm", "triton_twice"),
    ("layer_norm", "triton_tiles"),
    ("layer_norm", "triton_twice"),
    ("silu_mul", "triton_flat"),
    ("gemm", "triton_gemv"),
    ("gemm", "triton_tma"),
    ("gemm", "triton_wide_tma"),
    ("gemm", "triton_specialized"),
    ("gemm", "triton_split"),
    ("flash_attention", "triton_64"),
    ("flash_attention", "triton_tma_64"),
    ("flash_attention", "triton_tma_96"),
    ("flash_attention", "triton_split_64"),
)
"""A kernel of each function: a build verifies all."""
EVERYWHERE = (("softmax", "triton_tiles"), ("gemm", "triton_split"), ("flash_attention", "triton_64"))
"""Of these what is compiled for other GPUs than Hopper."""


def home(kernel: Kernel) -> Target:
    """What a kernel is tried on: Hopper, unless it is for others alone."""
    return HOPPER if list(kernel.configs(HOPPER.facts)) else TARGET["cuda-sm_80"]


def starts_early(kernel: Kernel, on: Target) -> bool:
    """Whether a kernel may begin before the one in front of it has ended."""
    assert kernel.triton is not None
    return kernel.triton.launch_pdl and on.facts["capability"] >= 90


def looked_up(operator: str, name: str) -> tuple[Operator, Kernel]:
    return OPERATORS[operator], OPERATORS[operator].kernel(name)


def module_of(path: Path, change: str = "") -> Any:
    """A file of kernels as a module; `change`: a condition that always holds then."""
    if change:
        text = path.read_text()
        assert text.count(change) == 1
        changed = Path(os.environ["TRITON_CACHE_DIR"]) / "changed.py"
        changed.write_text(text.replace(change, f"({change}) | True"))
        path = changed
    spec = importlib.util.spec_from_file_location(f"kernels_{path.parent.name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Interpreted:
    """A call of a kernel on tensors of the host, as its declaration says."""

    def __init__(
        self, op: Operator, kernel: Kernel, config: Mapping[str, ConfigValue], given: Problem, level: float = 0.0
    ) -> None:
        import torch

        self.torch, self.op, self.kernel, self.config, self.problem = torch, op, kernel, config, given
        self.level = level  # what elements of the first tensor have in common
        self.facts = {**op.facts(given), "device.multiprocessors": 3}
        self.facts |= {f"target.{n}": v for n, v in HOPPER.facts.items()}
        self.facts |= {f"parameter.{n}": int(v) for n, v in config.items()}
        self.tensors: dict[str, Any] = {}
        self.logical: dict[str, Any] = {}
        for tensor in op.concrete(given.dtypes).tensors:
            if op.is_present(given, tensor):
                self.tensors[tensor.name] = self._make(tensor)

    def _make(self, tensor: Any) -> Any:
        shape, strides = self.op.shape(self.problem, tensor), self.op.strides(self.problem, tensor)
        count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        dtype = getattr(self.torch, tensor.dtype.torch)
        if tensor.output:
            return self.torch.full((count,), float("nan"), dtype=dtype).as_strided(shape, strides)
        drawn = draw(self.op, Check(problem=self.problem), tensor, count, 7)
        flat = self.torch.from_numpy(drawn).to(dtype)
        if tensor.name == self.op.tensors[0].name:
            flat += self.level
        made = flat.as_strided(shape, strides)
        if tensor.name in ("mask", "bias") and self.op.name == "flash_attention":
            self._hide(tensor.name, made.numpy())
        self.logical[tensor.name] = made.numpy() if tensor.dtype.name == "bool" else made.to(self.torch.float64).numpy()
        return made

    def _hide(self, name: str, made: Any) -> None:
        """Hide some keys by a bias of -inf, and all of them from a query where queries differ."""
        hidden: Any = False if name == "mask" else float("-inf")
        made[..., 5::9] = hidden
        if made.strides[2] != 0 and made.shape[2] > 1:
            made[:, 1:, 2 if name == "mask" else 1] = hidden

    def value(self, expr: Any) -> Any:
        return expr.evaluate(self.facts) if isinstance(expr, Expr) else expr

    def arguments(self) -> dict[str, Any]:
        from triton.tools.tensor_descriptor import TensorDescriptor

        found: dict[str, Any] = {}
        for a in bind(self.op.concrete(self.problem.dtypes), self.kernel, HOPPER.name):
            if a.kind == "pointer":
                found[a.name] = self.tensors.get(a.tensor)
            elif a.kind == "descriptor":
                assert a.descriptor is not None
                block = [self.value(e) for e in a.descriptor.block]
                tensor = self.tensors[a.tensor]
                tensor = tensor.permute(a.descriptor.order) if a.descriptor.order else tensor
                found[a.name] = TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block)
            elif a.kind == "buffer":
                assert a.buffer is not None
                dtype = {"f32": self.torch.float32, "i32": self.torch.int32}[a.buffer.dtype_name]
                fill = 0 if a.buffer.zero else (float("nan") if a.buffer.dtype_name == "f32" else 77)
                found[a.name] = self.torch.full((self.value(a.buffer.count),), fill, dtype=dtype)
            elif a.kind == "scalar":
                found[a.name] = next(s.default for s in self.op.scalars if s.name == a.value)
            elif a.kind == "integer":
                found[a.name] = self.value(a.expr)
            else:
                found[a.name] = self.config[a.name] if a.kind == "parameter" else a.value
        return found

    def run(self, function: Any) -> str:
        """Call the function; what is wrong with the result."""
        assert self.kernel.triton is not None
        arguments = self.arguments()
        grid = self.kernel.triton.grid
        extents = tuple(self.value(e) for e in (grid({**arguments, **self.config}) if callable(grid) else grid))
        function[extents](**arguments)
        return self.fault()

    def fault(self) -> str:
        dtype = self.problem.dtypes.get("T", next(iter(self.op.dtypes.values()))[0])
        attributes = {a.name: self.problem.attributes.get(a.name, a.choices[0]) for a in self.op.attributes}
        scalars = {s.name: float(np.float32(s.default)) for s in self.op.scalars}
        call = SimpleNamespace(**{t.name: self.logical.get(t.name) for t in self.op.tensors}, **scalars, **attributes)
        with np.errstate(all="ignore"):
            wanted = self.op.reference(np, call)
        epsilon = 2e-3 if attributes.get("math") == "tf32" else EPSILON[dtype] + 1e-6 * self.level
        for tensor in (t for t in self.op.outputs if t.name in self.tensors):
            got, want = self.tensors[tensor.name].to(self.torch.float64).numpy(), wanted[tensor.name]
            typical = np.sqrt(np.mean(np.square(want), axis=-1, keepdims=True))
            wrong = ~(np.abs(got - want) <= epsilon * (np.abs(want) + 0.5 * typical))
            if wrong.any():
                place = tuple(int(i) for i in np.argwhere(wrong)[0])
                what = f"{tensor.name}{place}: got {got[place]:g}, want {want[place]:g}; {wrong.sum()} are wrong"
                return f"{self.problem.id} {dict(self.config)}: {what}"
        return ""


def take_numbers_from_arrays() -> None:
    """Let Triton 3.6 read loop bounds, arrays of one element, under a numpy that makes no number of those."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_and_amend(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.squeeze())

    interpreter._patch_lang_tensor = patch_and_amend


def leave_out_waits() -> None:
    """Kernels are run one by one, and the interpreter has no instructions of a GPU."""
    import triton.language as tl

    for name in ("gdc_wait", "gdc_launch_dependents"):
        setattr(tl.extra.cuda, name, lambda: None)


def interpret(operator: str, name: str, change: str = "") -> dict[str, Any]:
    """Run a kernel's first config on odd problems, in one of the dtypes in turn; a build verifies every config.

    With a change it is run until it is at fault.
    """
    take_numbers_from_arrays()
    leave_out_waits()
    op, kernel = looked_up(operator, name)
    assert kernel.triton is not None
    function = getattr(module_of(TEMPLATES / kernel.triton.place, change), kernel.triton.name)
    choices = [c["T"] for c in op.dtype_choices(kernel)]
    if operator in ("gemm", "flash_attention"):  # the interpreter of Triton 3.6 multiplies bf16 as integers
        choices = [c for c in choices if c != "bf16"]
    first = next(iter(kernel.configs(home(kernel).facts)))
    in_turn = [odd_problems(op, kernel, d)[i :: len(choices)] for i, d in enumerate(choices)]
    runs = [Interpreted(op, kernel, first, p) for problems in in_turn for p in problems]
    if operator == "layer_norm":  # far from 0, moments that are not of centred values have few digits
        runs += [Interpreted(op, kernel, first, p, level=1000.0) for p in odd_problems(op, kernel, "f32")[:2]]
    faults: list[str] = []
    for one in runs:
        faults += filter(None, [one.run(function)])
        if change and faults:
            break
    return {"calls": len(runs), "faults": faults}


def build(operator: str, name: str) -> dict[str, Any]:
    """Compile a kernel's first config for each of some GPUs: what the compiler says. A build compiles all."""
    op, kernel = looked_up(operator, name)
    assert kernel.triton is not None
    function = getattr(module_of(TEMPLATES / kernel.triton.place), kernel.triton.name)
    everywhere = (operator, name) in EVERYWHERE
    return {on: _compile(op, kernel, function, on) for on in ("90", "80", "gfx942")[: 3 if everywhere else 1]}


def _compile(op: Operator, kernel: Kernel, function: Any, target: str) -> dict[str, Any]:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compile_source

    one = _recipe(op, kernel, target)
    names = list(one.signature)
    constexprs = {(names.index(n),): v for n, v in one.constexprs.items()}
    divisible = {(names.index(n),): [["tt.divisibility", 16]] for n in one.divisible}
    options = {n: v for n, v in one.options.items() if n in ("num_warps", "num_stages")} | {"enable_fp_fusion": True}
    if target == "gfx942":  # wavefronts of 64, and little shared memory
        options["num_warps"], options["num_stages"] = min(options["num_warps"], 8), 1
    where = GPUTarget("hip", target, 64) if target == "gfx942" else GPUTarget("cuda", int(target), 32)
    built = compile_source(ASTSource(function, one.signature, constexprs, divisible), target=where, options=options)
    ptx = built.asm.get("ptx", "")
    waits = "griddepcontrol.wait" in ptx.partition("ld.global")[0]  # before its first load
    lets = "griddepcontrol.launch_dependents" in ptx
    return {"shared": built.metadata.shared, "float64": ".f64" in ptx, "waits": waits, "lets others start": lets}


def _recipe(op: Operator, kernel: Kernel, target: str) -> Recipe:
    """What the project has compiled for the problem of the workload with most tensors."""
    meant = [p for p in op.workload_for("cuda") if all_of((*kernel.requires, *kernel.worthwhile), op.facts(p))]
    served = [c["T"] for c in op.dtype_choices(kernel)]
    meant = [p for p in meant if p.dtypes.get("T", "f32") in served]
    given = max(meant, key=lambda p: len(p.present))
    config = next(iter(kernel.configs(home(kernel).facts)))
    dtypes = {v: given.dtypes.get(v, c[0]) for v, c in op.dtypes.items()}
    on = target_by_name({"80": "cuda-sm_80", "gfx942": "hip-gfx942"}.get(target, home(kernel).name))
    return read_recipe(_rendered(op, kernel, config, given, dtypes, on))


def _rendered(
    op: Operator, kernel: Kernel, config: Mapping[str, ConfigValue], given: Problem, dtypes: Any, on: Target
) -> str:
    """The source of the candidate of a config, with what the JIT would have it assume of a problem."""
    concrete = op.concrete(dtypes)
    candidate = Candidate(
        operator=op.name,
        kernel=kernel.name,
        backend="triton",
        target=on.name,
        config=dict(config),
        pins=specialized_pins(concrete, kernel, config, given, on.name),
        dtypes=dtypes,
    )
    return render_triton(concrete, candidate, on)[1]


def apart(work: Callable[..., Any], given: Sequence[str], **environ: str) -> Any:
    """`interpret` or `build` in a fork, with a cache of Triton of its own."""
    with tempfile.TemporaryDirectory() as folder:
        first = "import torch, triton.tools.tensor_descriptor\nfrom triton_bundled import *"
        return answer(first, f"in_cache({folder!r}, {work.__name__}, given)", given, **environ)


def in_cache(folder: str, work: Callable[..., Any], given: Sequence[str]) -> Any:
    """What is done in the fork."""
    os.environ["TRITON_CACHE_DIR"] = folder
    return work(*given)
