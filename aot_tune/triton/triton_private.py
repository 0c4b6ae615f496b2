"""Everything that uses private parts of Triton: unwrapping decorated functions, and compiling without a GPU.

Triton documents none of this. It was read in versions 3.6 and 3.9, and `installed` refuses untested versions. Only this
module and `interpreter` import Triton.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import enum
import hashlib
import importlib.util
import inspect
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

from aot_tune.render.triton.recipe import Recipe, TritonFragment, as_data, function_source, of_data
from aot_tune.spec import Expr, KernelParameter, next_power_of_2
from aot_tune.support.errors import SpecError, ToolchainError
from aot_tune.triton.absent_devices import DeviceFacts
from aot_tune.triton.installed import module_file

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


knobs.compilation.disable_line_info = True  # line infos hold paths, so the same source would give other bytes elsewhere
knobs.nvidia.dump_ptxas_log = True  # registers and spills are reported nowhere else

_PREFIX = "aot_tune_fragment_"

_MISSING = object()


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
        configs = [c.all_kwargs() for c in tuner.configs] if tuner is not None else []
        names = self.jit.arg_names
        return [{k: unwrapped(v) for k, v in c.items() if v is not None or k in names} for c in configs]

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
    """The parts of a decorated function. Raises SpecError when it is not a @triton.jit function."""
    layers: list[Any] = []
    while not isinstance(value, JITFunction) and isinstance(value, KernelInterface) and hasattr(value, "fn"):
        layers.append(value)
        value = value.fn
    if not isinstance(value, JITFunction) or value.is_gluon():
        kind = "of Gluon" if isinstance(value, JITFunction) else f"a {type(value).__name__}"
        raise SpecError(
            f"{reference} is {kind}, not a Triton function", fix="name a function that is decorated with @triton.jit"
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
    by_name = {str(t): t for t in vars(core).values() if isinstance(t, core.dtype)}
    short = {"i": "int", "u": "uint"}.get(name[:1], name[:1]) + name[1:]
    return by_name.get(name, by_name.get(short))


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
    replaced = [(s, n, v) for s in spaces for n, v in s.items() if v is original_power or v is original_cdiv]
    try:
        for space, name, value in replaced:
            space[name] = power if value is original_power else cdiv
        yield
    finally:
        for space, name, value in replaced:
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
    where = sources.place(inner.src, line) if inner.src else ""
    return f"{where}: error: {text}{shown}" if where else f"error: {text}{shown}"


def fragment_function(fragment: TritonFragment, folder: Path) -> Any:
    """The @triton.jit function of a fragment. Its module is kept below `folder` and imported once in a process.

    Raises:
        ToolchainError: when the fragment was written by another version of this package.
    """
    text = function_source(fragment)
    digest = hashlib.sha256(text.encode()).hexdigest()
    if digest != fragment.digest:
        raise ToolchainError(
            f"the function of the fragment {fragment.name!r} has changed since it was rendered",
            why="the build uses two versions of aot_tune",
            fix="configure and build again",
        )
    name = f"{_PREFIX}{digest[:16]}"
    if name not in sys.modules:
        path = folder / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return getattr(sys.modules[name], fragment.name)


@dataclasses.dataclass(frozen=True)
class Reached:
    """A function and all that it reaches. `functions` has each source, its file, and the number of its first line.

    Files are named by their modules (`package/module.py`), so that no folder of the machine is in a message.
    """

    digest: str
    functions: tuple[tuple[str, str, int], ...]

    @property
    def files(self) -> tuple[str, ...]:
        """The files that were read, sorted."""
        return tuple(sorted({file for _, file, _ in self.functions}))

    def place(self, source: str, line: int) -> str:
        """`file.py:line` of a line of one of the sources, counted from 1; empty if the source is unknown."""
        for text, file, first in self.functions:
            if text == source:
                return f"{file}:{first + line - 1}"
        return ""


_reached: dict[int, tuple[Any, Reached]] = {}


def reached(jit: Any) -> Reached:
    """The digest of a function, with the sources that it covers. It is computed once.

    Triton's own digest differs between versions and changes with line numbers. This one does not. Triton's library is
    left out, because the toolchain's identity covers it.
    """
    # by identity: Triton's hash of a function is as slow as this and refuses more functions
    if id(jit) not in _reached:
        walk = _FunctionWalk()
        walk.add(jit)
        text = "\0".join(sorted(walk.texts))
        _reached[id(jit)] = (jit, Reached(hashlib.sha256(text.encode()).hexdigest(), tuple(walk.functions)))
    return _reached[id(jit)][1]


class _FunctionWalk:
    """Follows what a function's code depends on: its source, the sources of all that it reaches, and their globals."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.texts: list[str] = []
        self.functions: list[tuple[str, str, int]] = []

    def add(self, function: Any) -> None:
        """Add a function and all that it reads."""
        if id(function) in self.seen or _of_triton(function):
            return
        self.seen.add(id(function))
        python = function.fn
        source = str(function.src)
        lines, start = inspect.getsourcelines(python)
        first = start + next((i for i, row in enumerate(lines) if row.lstrip().startswith("def ")), 0)
        self.functions.append((source, module_file(python.__module__), first))
        values = {f"{path}={self._read(path, value)}" for path, value in self.reads(function)}
        defaults = [f"{p.name}={self.text(p.default)}" for p in function.signature.parameters.values()]
        kind = f"{type(function).__name__} {bool(getattr(function, 'noinline', False))}"
        self.texts.append("\n".join([function.__qualname__, kind, source, *defaults, *sorted(values)]))

    def reads(self, function: Any) -> Iterator[tuple[str, object]]:
        """Names outside of the function that the source reads, such as `module.NAME`, each with its value."""
        python = function.fn
        outside = dict(python.__globals__)
        outside |= {
            n: cell.cell_contents
            for n, cell in zip(python.__code__.co_freevars, python.__closure__ or (), strict=True)
            if _filled(cell)
        }
        for name in python.__code__.co_varnames:
            outside.pop(name, None)
        for node in ast.walk(ast.parse(function.src)):
            if isinstance(node, (ast.Name, ast.Attribute)):
                value = _value(node, outside)
                if value is not _MISSING and not isinstance(value, types.ModuleType):
                    yield ast.unparse(node), value

    def _read(self, path: str, value: object) -> str:
        bare = _plain(value)
        name = _choice(bare)
        # `tl.PropagateNan.ALL` names the choice; under another name, its value must tell
        return type(bare).__qualname__ if name and path.rpartition(".")[2] == name else self.text(value)

    def text(self, value: object) -> str:
        """A value as text that says everything code may depend on. Functions are followed."""
        given, value = value, _plain(value)
        if name := _choice(value):
            return f"{type(value).__qualname__}.{name}"
        if isinstance(value, enum.Enum):
            return f"{type(value).__qualname__}.{value.name}={self.text(value.value)}"
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            return repr(value)
        if isinstance(value, (tuple, list, set, frozenset)):
            each = [self.text(v) for v in value]
            return f"{type(value).__name__}({', '.join(each if isinstance(value, (tuple, list)) else sorted(each))})"
        if isinstance(value, dict):
            return f"dict({', '.join(sorted(f'{self.text(k)}: {self.text(v)}' for k, v in value.items()))})"
        held = self._held(value, constant=given is not value)
        return f"{type(value).__qualname__}{self.text(held)}" if held else self._code(value)

    def _held(self, value: Any, constant: bool) -> dict[str, object]:
        """The contents of an object that is a record or a constant, because code may depend on any part of it."""
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        held = getattr(value, "__dict__", {})
        if not constant or callable(value) or id(value) in self.seen:
            return {}
        self.seen.add(id(value))
        return dict(held)

    def _code(self, value: Any) -> str:
        """The name of a function or class, with its source unless it is Triton's."""
        name = getattr(value, "__qualname__", type(value).__qualname__)
        if _of_triton(value) or inspect.isbuiltin(value) or getattr(value, "__module__", "") == "builtins":
            return str(name)
        if isinstance(value, JITCallable):
            self.add(value)
            return str(name)
        if inspect.isfunction(value) or isinstance(value, type):
            return f"{name}{self._source(value)}"
        shown = str(value)  # such as a dtype of a framework
        return type(value).__qualname__ if " at 0x" in shown else f"{type(value).__qualname__} {shown}"

    def _source(self, value: Any) -> str:
        if id(value) in self.seen:
            return ""
        self.seen.add(id(value))
        members = [v for v in vars(value).values() if isinstance(v, JITCallable)] if isinstance(value, type) else []
        for member in members:
            self.add(member)
        try:
            return f" {inspect.getsource(value)}"
        except (OSError, TypeError):
            return ""


def _value(node: ast.AST, outside: dict[str, object]) -> object:
    if isinstance(node, ast.Name):
        return outside.get(node.id, _MISSING) if isinstance(node.ctx, ast.Load) else _MISSING
    if not isinstance(node, ast.Attribute):
        return _MISSING
    base = _value(node.value, outside)
    # attributes of modules and classes are read; the attributes of other values follow from the value
    return getattr(base, node.attr, _MISSING) if isinstance(base, (types.ModuleType, type)) else _MISSING


def _plain(value: object) -> object:
    """The value of a constexpr, and the name of a dtype. Anything else stays as it is."""
    value = unwrapped(value)
    return f"dtype {value}" if isinstance(value, core.dtype) else value


def _of_triton(value: object) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "triton"


def _choice(value: object) -> str:
    """The name of one of Triton's own choices. Only some versions use Python's enumerations for them."""
    name = getattr(value, "name", None) if type(value).__module__.startswith("triton._C.") else None
    return name if isinstance(name, str) else ""


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True
