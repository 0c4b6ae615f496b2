"""What tests of the bundled Triton kernels share, and what they run in forks of another process."""

import ast
import importlib.util
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bundled import OPERATORS as BUNDLED
from forked import answer

from aot_tune.compile import target_by_name
from aot_tune.compile.device_targets import CUDA_TARGETS
from aot_tune.render import Candidate
from aot_tune.render.triton.kernel_source import render_triton
from aot_tune.render.triton.recipe import Recipe, read_recipes
from aot_tune.render.triton.specialize import specialized_pins
from aot_tune.spec import ConfigValue, Declarations, Kernel, KernelParameter, Operator, Problem, Target, all_of
from aot_tune.spec.load_operators import bundled_templates

TEMPLATES = bundled_templates()
NAMES = ("softmax", "rms_norm", "layer_norm", "silu_mul", "gemm", "flash_attention")
TARGET = {t.name: t for t in CUDA_TARGETS}
HOPPER = TARGET["cuda-sm_90"]


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
            known = dict.fromkeys((*TARGET, "hip-gfx942"), declared(kernel.triton_functions[0].function))
            kernel = replace(kernel, triton=kernel.triton_functions[0].inspected(known))  # noqa: PLW2901
        kernels.append(kernel)
    return replace(operator, kernels=tuple(kernels))


OPERATORS = {name: bundled(name) for name in NAMES}
OF_EACH = (
    ("softmax", "triton_tiles"),
    ("rms_norm", "triton_twice"),
    ("silu_mul", "triton_rows"),
    ("gemm", "triton_gemv"),
    ("gemm", "triton_tma"),
    ("flash_attention", "triton_split_64"),
    ("flash_attention", "triton_64"),
    ("flash_attention", "triton_tma_96"),
)
"""Kernels of all sorts: a build compiles all."""
EVERYWHERE = (("softmax", "triton_tiles"), ("gemm", "triton_gemv"), ("flash_attention", "triton_64"))
"""Of these what is compiled for other GPUs than Hopper."""


def home(kernel: Kernel) -> Target:
    """What a kernel is tried on: Hopper, unless it is for others alone."""
    return HOPPER if list(kernel.configs(HOPPER.facts)) else TARGET["cuda-sm_80"]


def starts_early(kernel: Kernel, on: Target) -> bool:
    """Whether a kernel may begin before the one in front of it has ended."""
    return kernel.triton_functions[0].launch_pdl and on.facts["capability"] >= 90


def looked_up(operator: str, name: str) -> tuple[Operator, Kernel]:
    return OPERATORS[operator], OPERATORS[operator].kernel(name)


def module_of(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"kernels_{path.parent.name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def build(operator: str, name: str) -> dict[str, Any]:
    """Compile a kernel's first config for each of some GPUs: what the compiler says. A build compiles all."""
    op, kernel = looked_up(operator, name)
    (declared,) = kernel.triton_functions
    function = getattr(module_of(TEMPLATES / declared.place), declared.name)
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
    return read_recipes(_rendered(op, kernel, config, given, dtypes, on))[0]


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


def built_apart(operator: str, name: str) -> Any:
    """`build` in a fork, with a cache of Triton of its own."""
    with tempfile.TemporaryDirectory() as folder:
        first = "import torch, triton.tools.tensor_descriptor\nfrom triton_bundled import *"
        return answer(first, "in_cache(*given)", [folder, operator, name])


def in_cache(folder: str, operator: str, name: str) -> dict[str, Any]:
    """What is done in the fork."""
    os.environ["TRITON_CACHE_DIR"] = folder
    return build(operator, name)
