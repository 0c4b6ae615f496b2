"""Measurements of Triton kernels on a GPU, each part in a separate process: `triton_gpu.py PART OPTIONS`.

OPTIONS is JSON. The last printed line is the part's answer, as JSON.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import io
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from elftools.elf.elffile import ELFFile
from gpu_race import Contender, race
from triton_build import EXAMPLE, Built, Prober, build, read_operator

from aot_tune.compile import native_targets
from aot_tune.spec import Operator, Problem, all_of, problem
from aot_tune.spec.load_operators import bundled_templates, operator_folders
from aot_tune.triton.load_function import load

__all__ = ["PARTS"]

BATCH = 200
"""Calls before a synchronisation: fewer than a stream can hold, so that no call waits for the GPU."""
_CODE = (".text.", ".nv.constant")
_PACKAGE = "triton_package"
_MADE = 8
"""How often the JIT compiles what differs. With specialised warps, Triton 3.6 randomly makes one of two codes."""


def target() -> str:
    """The best target of this GPU.

    Raises:
        SystemExit: when there is none.
    """
    found = [t.name for t in native_targets() if t.family == "cuda"]
    if not found:
        raise SystemExit("benchmarks: no NVIDIA GPU, or no driver or CUDA compiler that could name it")
    return found[-1]


def multiprocessors() -> int:
    """Number of multiprocessors of the GPU."""
    return int(torch.cuda.get_device_properties(0).multi_processor_count)


def tensors_of(operator: Operator, given: Problem) -> dict[str, Any]:
    """Random inputs, and outputs, with the problem's strides."""
    found = {}
    for tensor in operator.tensors:
        if operator.is_present(given, tensor):
            shape, strides = operator.shape(given, tensor), operator.strides(given, tensor)
            count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
            flat = torch.randn(count, device="cuda").to(getattr(torch, operator.dtype(given, tensor).torch))
            found[tensor.name] = flat.as_strided(shape, strides)
    return found


def jit_of(built: Built, root: Path) -> Any:
    """The @triton.jit function itself, without its decorators."""
    assert built.kernel.triton is not None
    found: Any = load(built.kernel.triton.function, [str(root)])
    while hasattr(found, "fn") and not hasattr(found, "params"):
        found = found.fn
    return found


Case = tuple[Path, Operator, str, dict[str, Any] | None, Problem]
"""A template root, an operator below it, the name of a kernel, its config (None for the first), and a call."""


def same_sections(given: Mapping[str, Any]) -> Any:
    """Code and constants of our image and of the JIT's, for the same call of each kernel: equal or not."""
    # Descriptors that kernels make themselves need memory, and the JIT asks for it.
    importlib.import_module("triton").set_allocator(
        lambda size, _alignment, _stream: torch.empty(size, dtype=torch.int8, device="cuda")
    )
    answers = _all_compared(list(_example_cases()))
    return answers + (_all_compared(list(_bundled_cases())) if given["bundled"] else [])


def _all_compared(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Our images are compiled in parallel, the JIT's one after the other. All cases are of the root read last."""
    answers = []
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        making = [
            threads.submit(build, root, operator, kernel, chosen, target(), Path(scratch, str(number)), config)
            for number, (root, operator, kernel, config, chosen) in enumerate(cases)
        ]
        for (root, operator, kernel, config, chosen), made in zip(cases, making, strict=True):
            what = {"operator": operator.name, "kernel": kernel, "config": config, "problem": chosen.id}
            try:
                answers.append({**what, **_compared(made.result(), root)})
            except (Exception, SystemExit) as error:  # the others are compared anyway
                answers.append({**what, "error": f"{type(error).__name__}: {str(error)[:500]}"})
    return answers


def _example_cases() -> Iterator[Case]:
    for name, width in (("rms_norm", 4096), ("swiglu", 14336)):
        operator = read_operator(EXAMPLE, name, target())
        tuned = next(k for k in operator.kernels if k.triton is not None and not k.generic)
        assert tuned.triton is not None
        for config in tuned.triton.inspections[target()].configs or ({},):
            given_values = {n: v for n, v in config.items() if v is not None}
            yield EXAMPLE, operator, tuned.name, given_values, problem(R=64, D=width)


def _bundled_cases() -> Iterator[Case]:
    bundled = bundled_templates()
    for folder in operator_folders([bundled]):
        operator = read_operator(bundled, folder.name, target())
        for kernel in operator.kernels:
            if kernel.triton is None or kernel.generic or target() not in kernel.triton.inspections:
                continue
            wanted = (*operator.legal, *kernel.requires, *kernel.worthwhile)
            fit = [p for p in operator.workload_for("cuda") if all_of(wanted, operator.facts(p))]
            fit = [
                p for p in fit if any({**_defaults(operator), **p.dtypes} == d for d in operator.dtype_choices(kernel))
            ]
            if fit:
                least = min(fit, key=operator.compulsory_bytes)
                yield bundled, operator, kernel.name, None, least


def _defaults(operator: Operator) -> dict[str, str]:
    return {variable: choices[0] for variable, choices in operator.dtypes.items()}


def _compared(built: Built, root: Path) -> dict[str, Any]:
    function, count = jit_of(built, root), multiprocessors()
    arguments = built.arguments(tensors_of(built.operator, built.problem), count)
    grid = built.grid(arguments, count)
    ours = _sections(built.image.read_bytes())

    def theirs(lines: bool) -> dict[str, bytes]:
        return _sections(_by_jit(function, grid, arguments, built.recipe.options, lines=lines))

    made = [theirs(lines=False)]
    while ours != made[-1] and len(made) < _MADE:
        made.append(theirs(lines=False))
    return {
        "same": ours == made[-1],
        "lined": ours == theirs(lines=True),
        "varies": any(m != made[0] for m in made),
        "sections": sorted(ours),
        "bytes": sum(map(len, ours.values())),
    }


def _by_jit(
    function: Any, grid: tuple[int, ...], arguments: Mapping[str, Any], options: Mapping[str, Any], *, lines: bool
) -> bytes:
    """The JIT's cubin. One of Triton's options gives it line numbers, by default; ours never have any."""
    compilation = importlib.import_module("triton").knobs.compilation
    compilation.disable_line_info, compilation.always_compile = not lines, True
    function.device_caches.clear()
    made = function[grid](**arguments, **options)
    torch.cuda.synchronize()
    return bytes(made.asm["cubin"])


def _sections(image: bytes) -> dict[str, bytes]:
    return {s.name: s.data() for s in ELFFile(io.BytesIO(image)).iter_sections() if s.name.startswith(_CODE)}


def call_times(given: Mapping[str, Any]) -> Any:
    """Host ns per call, from C and from Python, ours and the JIT's, for each of `rounds` rounds."""
    package = _package()
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, width in (("rms_norm", 4096), ("swiglu", 14336)):
            operator = read_operator(EXAMPLE, name, target())
            found[name] = _calls_of(operator, problem(R=1, D=width), Path(scratch, name), given["rounds"], package)
    return found


def _package() -> Any:
    """The installed module of the example; None if there is none."""
    if importlib.util.find_spec(_PACKAGE) is None:
        return None
    return importlib.import_module(f"{_PACKAGE}.ops")


def _calls_of(operator: Operator, given: Problem, folder: Path, rounds: int, package: Any) -> Any:
    kernel = next(k.name for k in operator.kernels if not k.generic)
    tensors = tensors_of(operator, given)
    facts = _explained(package, operator, tensors, kernel)
    built = build(EXAMPLE, operator, kernel, given, target(), folder / "built", facts.get("config"))
    prober = Prober(built.operator, given, tensors, folder)
    stream = torch.cuda.current_stream().cuda_stream
    arguments, function = built.arguments(tensors), _loaded(built)
    launch = getattr(ctypes.CDLL(str(built.library)), f"{built.symbol}_launch")
    ways: dict[str, Callable[[int], float]] = {
        "bare cuLaunchKernel": lambda count: prober.bare(function, built, arguments, stream, count),
        "launcher from C": lambda count: prober.launcher(launch, stream, count),
        "JIT from Python": _loop(_jit_call(built, arguments)),
    }
    if package is not None:
        library = ctypes.CDLL(str(next(Path(package.__file__).parent.rglob("lib*.so"))))
        ways["library from C"] = lambda count: prober.library(
            getattr(library, f"{_PACKAGE}_{operator.name}"), stream, count
        )
        ways["library from Python"] = _our_loop(package, operator, tensors)
    return {"explained": facts, "config": built.candidate.config, "ns": _rounds(ways, rounds)}


def _explained(package: Any, operator: Operator, tensors: Mapping[str, Any], kernel: str) -> dict[str, Any]:
    """The library's variant for the call, and its config if it is of that kernel."""
    if package is None:
        return {"missing": f"{_PACKAGE} is not installed"}
    told = package.explain(operator.name, **tensors)
    variants = next(o for o in package.manifest()["operators"] if o["name"] == operator.name)["variants"]
    chosen = next(v for v in variants if v["name"] == told["variant"])
    config = {"config": chosen["config"]} if chosen["kernel"] == kernel else {}
    return {"kernel": chosen["kernel"], "variant": chosen["name"], **config}


def _loaded(built: Built) -> int:
    """The kernel of the image, loaded in torch's context."""
    driver, module, function = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    image = built.image.read_bytes()
    if driver.cuModuleLoadData(ctypes.byref(module), image) or driver.cuModuleGetFunction(
        ctypes.byref(function), module, built.kernel_name.encode()
    ):
        raise RuntimeError("the driver does not load the image")
    shared = built.constants["shared"]
    if shared > 48 << 10 and driver.cuFuncSetAttribute(function, 8, shared):
        raise RuntimeError("the driver does not allow the kernel's shared memory")
    assert function.value is not None
    return function.value


def _jit_call(built: Built, arguments: Mapping[str, Any]) -> Callable[[], object]:
    function, grid = jit_of(built, EXAMPLE), built.grid(arguments)
    positional, options = list(arguments.values()), dict(built.recipe.options)
    return lambda: function[grid](*positional, **options)


def _our_loop(package: Any, operator: Operator, tensors: Mapping[str, Any]) -> Callable[[int], float]:
    """Calls on two inputs, written as users write them. Unpacking arguments would take a third of a call."""
    function = getattr(package, operator.name)
    first, second = (tensors[t.name] for t in operator.inputs)
    (out,) = (tensors[t.name] for t in operator.outputs)

    def run(count: int) -> float:
        began = time.perf_counter_ns()
        for _ in range(count):
            function(first, second, out=out)
        return (time.perf_counter_ns() - began) / count

    return run


def _loop(call: Callable[[], object]) -> Callable[[int], float]:
    def run(count: int) -> float:
        began = time.perf_counter_ns()
        for _ in range(count):
            call()
        return (time.perf_counter_ns() - began) / count

    return run


def _rounds(ways: Mapping[str, Callable[[int], float]], rounds: int) -> dict[str, list[float]]:
    """In each round, each way has a turn of one batch, in a new order."""
    generator, taken = random.Random(0), {name: list[float]() for name in ways}
    for number in range(rounds + 3):
        order = list(ways)
        generator.shuffle(order)
        for name in order:
            torch.cuda.synchronize()
            spent = ways[name](BATCH)
            if number >= 3:  # the first warm up
                taken[name].append(spent)
    torch.cuda.synchronize()
    return taken


def new_maps(given: Mapping[str, Any]) -> Any:
    """ns per launch of the bundled product on descriptors, with the same tensors and with one that is always new."""
    root = bundled_templates()
    operator = read_operator(root, "gemm", target())
    names = [k.name for k in operator.kernels if k.triton is not None and target() in k.triton.inspections]
    if "triton_tma" not in names:
        return {"missing": f"no kernel triton_tma for {target()}"}
    chosen = problem(M=128, N=128, K=128, order={"b": (1, 0)}, dtypes={"T": "bf16"})
    with tempfile.TemporaryDirectory() as scratch:
        built = build(root, operator, "triton_tma", chosen, target(), Path(scratch, "built"))
        steps, step = 4096, 4096
        tensors = tensors_of(built.operator, chosen)
        many = torch.randn(steps * step // 2 + tensors["a"].numel(), device="cuda").to(torch.bfloat16)
        tensors["a"] = many.as_strided(tensors["a"].shape, tensors["a"].stride())
        prober = Prober(built.operator, chosen, tensors, Path(scratch))
        library, stream = ctypes.CDLL(str(built.library)), torch.cuda.current_stream().cuda_stream
        size = prober.workspace(getattr(library, f"{built.symbol}_workspace"))
        memory = torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")
        launch = getattr(library, f"{built.symbol}_launch")
        ways: dict[str, Callable[[int], float]] = {
            "the same tensors": lambda count: prober.launcher(launch, stream, count, memory),
            "one new tensor": lambda count: prober.launcher(launch, stream, count, memory, step, steps),
        }
        return {"config": built.candidate.config, "ns": _rounds(ways, given["rounds"])}


def attention(given: Mapping[str, Any]) -> Any:
    """µs of flash attention forward in interleaved rounds: the installed library's, and that of torch's backends."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from aot_tune import ops

    answers = []
    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    for width, tokens, causal in (
        (w, t, c) for w in (128, 64, 256) for t in (4096, 8192, 16384) for c in (False, True)
    ):
        shape = (16384 // tokens, 2048 // width, tokens, width)
        q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        out, mode = torch.empty_like(q), "upper_left" if causal else "none"

        def ours(_: int, q: Any = q, k: Any = k, v: Any = v, out: Any = out, mode: str = mode) -> object:
            stream = torch.cuda.current_stream().cuda_stream
            return ops.flash_attention(q, k, v, causal=mode, out=out, stream=stream)

        def theirs(backend: Any, q: Any = q, k: Any = k, v: Any = v, causal: bool = causal) -> Callable[[int], object]:
            def run(_: int) -> object:
                with sdpa_kernel(backend):
                    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

            return run

        answer: dict[str, Any] = {"width": width, "tokens": tokens, "causal": causal, "shape": list(shape)}
        told = ops.explain("flash_attention", q=q, k=k, v=v, out=out, causal=mode)
        answer["explained"] = {key: told.get(key) for key in ("kernel", "variant", "tuned")}
        contenders, wanted = [Contender("aot_tune", ours, 1)], None
        for name, backend in backends.items():
            try:
                wanted = theirs(backend)(0)
                contenders.append(Contender(name, theirs(backend), 1))
            except RuntimeError as error:  # the backend does not take the problem
                answer[f"no {name}"] = str(error).splitlines()[0][:200]
        ours(0)
        torch.cuda.synchronize()
        if wanted is not None:
            answer["difference"] = float((out.float() - wanted.float()).abs().max())
        answer["us"] = race(contenders, given["rounds"])
        answers.append(answer)
        print(f"  {answer['width']} {tokens} {mode}: "
              f"{ {n: round(statistics.median(t), 1) for n, t in answer['us'].items()} }", file=sys.stderr)  # fmt: skip
    return answers


def machine(_: Mapping[str, Any]) -> Any:
    """The GPU and what runs on it."""
    import triton

    properties = torch.cuda.get_device_properties(0)
    return {"gpu": properties.name, "torch": torch.__version__, "triton": triton.__version__, "target": target()}


PARTS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "machine": machine,
    "sections": same_sections,
    "calls": call_times,
    "maps": new_maps,
    "attention": attention,
}

if __name__ == "__main__":
    torch.set_grad_enabled(False)
    print(json.dumps(PARTS[sys.argv[1]](json.loads(sys.argv[2]))))
