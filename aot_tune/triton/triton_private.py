"""Everything that uses private parts of Triton: unwrapping decorated functions, and compiling without a GPU.

Triton documents none of this. It was read in versions 3.6 and 3.9, and `installed` refuses untested versions. Only this
module and `interpreter` import Triton.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.compiler.errors import CompilationError
from triton.language import core
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.driver import driver
from triton.runtime.errors import PTXASError
from triton.runtime.jit import JITCallable, JITFunction, KernelInterface
from triton.tools.tensor_descriptor import TensorDescriptor

from aot_tune.render.triton.recipe import Recipe, as_data, of_data
from aot_tune.spec import Expr, KernelParameter, next_power_of_2
from aot_tune.support.errors import SpecError
from aot_tune.triton.absent_devices import DeviceFacts
from aot_tune.triton.fragment_functions import fragment_function
from aot_tune.triton.function_digest import Reached, reach

__all__ = [
    "DESCRIPTOR_ROUNDING",
    "VERSION",
    "CompileError",
    "Compiled",
    "Function",
    "compile_function",
    "element_type",
    "fake_driver",
    "reached",
    "symbolic_helpers",
    "unwrap",
]

VERSION = str(triton.__version__)
OWN_DEFAULT = "own"
"""The key of a constant that stands for a parameter's default, if the default is not plain data."""
DESCRIPTOR_ROUNDING = "round_f32_to_tf32" in {f.name for f in dataclasses.fields(TensorDescriptor)}
"""Whether a descriptor that is passed in parts has this flag after the one for padding: since 3.7."""
_TEXTS = ("ttgir", "ptx", "amdgcn")
"""Stages whose results people read."""
BASELINE_PTX = {80: 80, 89: 81}
"""The PTX version of a baseline, which all drivers of CUDA 12 take. For sm_89 it is 12.1's, which has 8-bit floats."""

_ELEMENT_TYPES = {
    "f32": core.float32, "f64": core.float64, "f16": core.float16, "bf16": core.bfloat16,
    "f8e4m3": core.float8e4nv, "f8e5m2": core.float8e5, "bool": core.int1, "u1": core.int1,
    "i8": core.int8, "i16": core.int16, "i32": core.int32, "i64": core.int64,
    "u8": core.uint8, "u16": core.uint16, "u32": core.uint32, "u64": core.uint64,
}  # fmt: skip


class CompileError(Exception):
    """A function could not be compiled. The message is the line that matters. `lasting`: it would happen again."""

    def __init__(self, message: str, lasting: bool = True) -> None:
        super().__init__(message)
        self.lasting = lasting


@dataclasses.dataclass(frozen=True)
class Function:
    """A decorated function. `layers` are its decorators, the outermost first. `jit` is the function inside of them."""

    jit: Any
    layers: tuple[Any, ...]

    @property
    def autotuner(self) -> Any | None:
        """The @triton.autotune of the function."""
        return next((layer for layer in self.layers if isinstance(layer, Autotuner)), None)

    def heuristics(self) -> Iterator[tuple[str, Any, bool]]:
        """Parameters with the functions that compute them, in the order of a call; and whether these see configs."""
        inner = self.autotuner is None
        for layer in self.layers:
            inner = inner or layer is self.autotuner
            if isinstance(layer, Heuristics):
                yield from ((name, compute, inner) for name, compute in layer.values.items())

    def configs(self) -> list[dict[str, Any]]:
        """The autotuner's configs: constexprs and launch options, without options that are left to Triton."""
        tuner = self.autotuner
        found = [c.all_kwargs() for c in tuner.configs] if tuner is not None else []
        names = self.jit.arg_names
        return [{k: unwrapped(v) for k, v in c.items() if v is not None or k in names} for c in found]

    def hooked(self) -> bool:
        """Whether anything other than `reset_to_zero` and `restore_value` runs around a launch."""
        tuner = self.autotuner
        own = tuner is not None and (
            tuner.user_defined_pre_hook
            or tuner.user_defined_post_hook
            or any(c.pre_hook is not None for c in tuner.configs)
        )
        return own or bool(self.jit.pre_run_hooks)

    def debug(self) -> bool:
        """Whether assertions are kept."""
        return bool(self.jit.debug)

    def parameters(self) -> tuple[KernelParameter, ...]:
        """The parameters in order. A default that is not plain data becomes `{"own": text}`."""
        return tuple(
            KernelParameter(
                name=p.name,
                constexpr=p.is_constexpr,
                special=not p.do_not_specialize,
                align=not p.do_not_specialize_on_alignment,
                has_default=p.has_default,
                default=_plain_default(p.default) if p.has_default else None,
                annotation=p.annotation_type if not p.is_constexpr else "",
            )
            for p in self.jit.params
        )


def unwrap(value: object, reference: str) -> Function:
    """The parts of a decorated function.

    Raises:
        SpecError: when it is not a @triton.jit function.
    """
    layers: list[Any] = []
    while not isinstance(value, JITFunction) and isinstance(value, KernelInterface) and hasattr(value, "fn"):
        layers.append(value)
        value = value.fn
    if not isinstance(value, JITFunction) or value.is_gluon():
        kind = "of Gluon" if isinstance(value, JITFunction) else f"a {type(value).__name__}"
        raise SpecError(
            f"{reference} is {kind}, not a Triton function",
            fix="name a function that is decorated with @triton.jit",
        )
    if sum(isinstance(layer, Autotuner) for layer in layers) > 1:
        raise SpecError(f"{reference} is autotuned twice", fix="name a function with one @triton.autotune")
    return Function(value, tuple(layers))


def unwrapped(value: Any) -> Any:
    """A constexpr's value. Anything else stays as it is."""
    return value.value if isinstance(value, core.constexpr) else value


def _plain_default(value: Any) -> Any:
    value = unwrapped(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return as_data(value)
    return {OWN_DEFAULT: re.sub(r" at 0x[0-9a-f]+", "", str(value))}  # addresses differ between processes


def element_type(name: str) -> Any:
    """An element type in the form that kernels use, `tl.bfloat16`, from the spec's name or Triton's (`fp32`, `i32`)."""
    if name in _ELEMENT_TYPES:
        return _ELEMENT_TYPES[name]
    known = {str(t): t for t in vars(core).values() if isinstance(t, core.dtype)}
    short = {"i": "int", "u": "uint"}.get(name[:1], name[:1]) + name[1:]
    return known.get(name, known.get(short))


_reached: dict[int, tuple[Any, Reached]] = {}


def reached(jit: Any) -> Reached:
    """The digest of a function, with the sources that it covers. It is computed once."""
    # by identity: Triton's hash of a function is as slow as this and refuses more functions
    if id(jit) not in _reached:
        _reached[id(jit)] = (jit, _reach(jit))
    return _reached[id(jit)][1]


def _reach(jit: Any) -> Reached:
    def plain(value: object) -> object:
        value = unwrapped(value)
        return f"dtype {value}" if isinstance(value, core.dtype) else value

    return reach(jit, lambda value: isinstance(value, JITCallable), plain)


class _FakeUtils:
    def __init__(self, device: DeviceFacts) -> None:
        self._device = device

    def get_device_properties(self, _device: int = 0) -> dict[str, int]:
        d = self._device
        return {
            "max_shared_mem": d.shared,
            "multiprocessor_count": d.multiprocessors,
            "warpSize": d.warp_size,
            "max_num_regs": d.registers_unit,
            "sm_clock_rate": 0,
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
        }


class _FakeDriver:
    """What code gets that asks Triton for the device when there is none."""

    def __init__(self, device: DeviceFacts) -> None:
        self._device, self.utils = device, _FakeUtils(device)

    def is_active(self) -> bool:
        return True

    def get_current_target(self) -> Any:
        return _target(self._device)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int = 0) -> int:
        return 0

    def get_device_capability(self, _device: int = 0) -> tuple[int, int]:
        return self._device.capability

    def get_active_torch_device(self) -> Any:
        return sys.modules["torch"].device("cuda", 0)

    def get_device_interface(self) -> Any:
        return sys.modules["torch"].cuda


def fake_driver(device: DeviceFacts) -> None:
    """Make Triton answer for a device that does not exist here, for the rest of this process."""
    driver.set_active(_FakeDriver(device))


def _target(device: DeviceFacts) -> Any:
    return GPUTarget(device.backend, device.arch, device.warp_size)


@contextlib.contextmanager
def symbolic_helpers(functions: list[Any]) -> Iterator[None]:
    """In the block, `triton.next_power_of_2` and `triton.cdiv`, which heuristics call, also take expressions."""
    original_power, original_cdiv = triton.next_power_of_2, triton.cdiv

    def power(value: Any) -> Any:
        return next_power_of_2(value) if isinstance(value, Expr) else original_power(value)

    def cdiv(x: Any, y: Any) -> Any:
        return (x + y - 1) // y if isinstance(x, Expr) or isinstance(y, Expr) else original_cdiv(x, y)

    spaces = [vars(triton), *(f.__globals__ for f in functions if isinstance(f, types.FunctionType))]
    found = [(s, n, v) for s in spaces for n, v in s.items() if v is original_power or v is original_cdiv]
    try:
        for space, name, value in found:
            space[name] = power if value is original_power else cdiv
        yield
    finally:
        for space, name, value in found:
            space[name] = value


@dataclasses.dataclass(frozen=True)
class Compiled:
    """An image, what Triton says of it, its assembly text, and what its tools printed.

    `texts` are the results of its stages, by name: `ttgir`, `ptx` or `amdgcn`.
    """

    image: bytes
    metadata: Mapping[str, Any]
    assembly: str
    printed: str
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)


def compile_function(jit: Any, recipe: Recipe, device: DeviceFacts, virtual: bool, *, texts: bool = False) -> Compiled:
    """Compile to cubin or hsaco, as a recipe says. If `virtual`, compile to PTX that ptxas accepts too.

    With `texts`, the results of the stages are kept.

    These are the steps of `triton.compile` without its file cache, which takes a third of the time.

    Raises:
        CompileError: when it does not compile.
    """
    target = _target(device)
    backend = make_backend(target)
    with contextlib.redirect_stdout(io.StringIO()) as out, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            given: dict[str, Any] = {"enable_fp_fusion": True, **recipe.options}
            if virtual:
                given["ptx_version"] = BASELINE_PTX[int(device.arch)]
            options = backend.parse_options(_known(given, backend, recipe.function))
            source = _source(jit, recipe, backend)
            results, metadata = _stages(source, backend, target, options, texts)
        except CompilationError as error:
            raise CompileError(_placed(error, reached(jit))) from error
        except PTXASError as error:
            raise CompileError(*_assembler_error(str(error))) from error
    image = results["ptx"].encode() if virtual else results[backend.binary_ext]
    kept = {name: str(results[name]) for name in _TEXTS if texts and name in results}
    return Compiled(image, metadata, results.get("amdgcn", ""), out.getvalue(), kept)


def _assembler_error(text: str) -> tuple[str, bool]:
    """The first complaint of ptxas, and whether it would complain again."""
    lasting = "error code -" not in text and "SIGSEGV" not in text
    complaints = (r for r in text.splitlines() if r.startswith("ptxas") and (" error " in r or " fatal " in r))
    first = next(complaints, f"error: {text.strip().splitlines()[0]}")
    return re.sub(r"\S+\.ptx\b", "kernel.ptx", first), lasting


def _known(given: dict[str, Any], backend: Any, function: str) -> dict[str, Any]:
    fields = vars(backend.parse_options({"enable_fp_fusion": True}))
    unknown = sorted(set(given) - set(fields) - {"launch_pdl"})  # AMD has no such launch
    if unknown:
        raise CompileError(f"error: {function}: Triton {VERSION} has no launch option {unknown[0]!r} for this target")
    return {name: value for name, value in given.items() if name in fields}


def _source(jit: Any, recipe: Recipe, backend: Any) -> Any:
    """The function with types, constants and attributes, as the JIT's binder would set them."""
    names = [p.name for p in jit.params]
    if names != list(recipe.signature):
        raise CompileError(f"error: {recipe.function} has other parameters than when it was read: {', '.join(names)}")
    signature, constants, marks = dict(recipe.signature), {}, {}
    for i, p in enumerate(jit.params):
        if p.is_const and signature[p.name].startswith("*") and not signature[p.name].startswith("*k"):
            signature[p.name] = "*k" + signature[p.name][1:]
        if signature[p.name] == "constexpr":
            constants[i,] = _constant(p, recipe)
        mark = "D" * (p.name in recipe.divisible) + "S" * (p.name in recipe.ranges)
        if mark:
            marks[i,] = backend.parse_attr(mark)
    return ASTSource(jit, signature, constants, marks)


def _constant(p: Any, recipe: Recipe) -> Any:
    if p.name in recipe.dtypes:
        return element_type(recipe.dtypes[p.name])
    if p.name in recipe.fragments:
        return fragment_function(recipe.fragments[p.name], Path.cwd())
    value = of_data(recipe.constexprs.get(p.name, {OWN_DEFAULT: ""}))
    if isinstance(value, dict):
        if not p.has_default:
            raise CompileError(f"error: {recipe.function}: the constexpr {p.name!r} has no value")
        return p.default
    return value


def _stages(source: Any, backend: Any, target: Any, options: Any, texts: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The result of each stage, and the metadata that the stages leave."""
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(
        target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )
    metadata = {"target": target, **vars(options)}
    results: dict[str, Any] = {}
    for name, run in stages.items():
        module = run(module, metadata)
        results[name] = str(module) if texts and name in _TEXTS else module  # because later stages change it in place
    return results, metadata


def _placed(error: Any, sources: Reached) -> str:
    """`file.py:line: error: message`, for the innermost function that does not compile."""
    inner = error
    while isinstance(inner.__cause__, CompilationError):
        inner = inner.__cause__
    cause = inner.__cause__
    message = inner.error_message or (
        f"{type(cause).__name__}: {cause}" if cause is not None else "it does not compile"
    )
    line = getattr(inner.node, "lineno", 0)
    text = " ".join(str(message).split())
    row = (inner.src or "").splitlines()[line - 1 : line]
    shown = f" in `{row[0].strip()[:160]}`" if row else ""
    place = sources.place(inner.src, line) if inner.src else ""
    return f"{place}: error: {text}{shown}" if place else f"error: {text}{shown}"


knobs.compilation.disable_line_info = True  # line infos hold paths, so the same source would give other bytes elsewhere
knobs.nvidia.dump_ptxas_log = True  # registers and spills are reported nowhere else
