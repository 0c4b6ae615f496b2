"""Libraries for the tests of link: small operators with candidates written by hand, linked as a package would be."""

import functools
import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import module_files
import msgspec
from compiled import PRELUDE

from aot_tune.compile import Object, Variant
from aot_tune.link import Generated, LibrarySpec, OperatorTable, RegimeCalls, TargetTable, generate
from aot_tune.render import Candidate, Rendered
from aot_tune.spec import Attribute, Expr, Kernel, Operator, Scalar, Target, Tensor, dim, dims, problem, stride
from aot_tune.support.installed_paths import BINDING, RUNTIME

M, N, K = dims("M N K")

GEMM = (
    PRELUDE
    + """
extern "C" __attribute__((weak)) void spend(int mark);
#define ARGS const DLTensor *a, const DLTensor *b, const DLTensor *bias, const DLTensor *residual, \\
             const DLTensor *out, int32_t activation
EXPORT int32_t SYMBOL_workspace(ARGS, size_t* size) {
  *size = SCRATCH;
  return 0;
}
EXPORT int32_t SYMBOL_launch(ARGS, void* workspace, size_t size, void*) {
  if (size < SCRATCH || (SCRATCH > 0 && reinterpret_cast<uintptr_t>(workspace) % 64 != 0)) return 90;
  for (size_t i = 0; i < SCRATCH; ++i) static_cast<char*>(workspace)[i] = 1;
  if (spend != nullptr) spend(MARK);
  for (int64_t i = 0; i < out->shape[0]; ++i) {
    for (int64_t j = 0; j < out->shape[1]; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < a->shape[1]; ++k) {
        sum += static_cast<const float*>(a->data)[i * a->strides[0] + k * a->strides[1]] *
               static_cast<const float*>(b->data)[k * b->strides[0] + j * b->strides[1]];
      }
      if (bias) sum += static_cast<const float*>(bias->data)[j * bias->strides[0]];
      if (activation == 1) sum = sum > 0 ? sum : 0;
      const float* r = residual ? static_cast<const float*>(residual->data) : nullptr;
      if (r) sum += r[i * residual->strides[0] + j * residual->strides[1]];
      static_cast<float*>(out->data)[i * out->strides[0] + j * out->strides[1]] = sum + MARK;
    }
  }
  return FAILURE;
}
"""
)

NORM = (
    PRELUDE
    + """
#define ARGS const DLTensor *x, const DLTensor *weight, const DLTensor *residual, const DLTensor *out, \\
             const DLTensor *residual_out, float eps
EXPORT int32_t SYMBOL_workspace(ARGS, size_t* size) { *size = 0; return 0; }
EXPORT int32_t SYMBOL_launch(ARGS, void*, size_t, void*) {
  auto at = [](const DLTensor* t, int64_t i, int64_t j) -> float& {
    return static_cast<float*>(t->data)[i * t->strides[0] + j * t->strides[1]];
  };
  for (int64_t i = 0; i < x->shape[0]; ++i) {
    float sum = 0;
    for (int64_t j = 0; j < x->shape[1]; ++j) {
      const float v = at(x, i, j) + (residual ? at(residual, i, j) : 0);
      if (residual_out) at(residual_out, i, j) = v;
      sum += v * v;
    }
    const float scale = 1 / __builtin_sqrtf(sum / x->shape[1] + eps);
    for (int64_t j = 0; j < x->shape[1]; ++j) {
      const float v = at(x, i, j) + (residual ? at(residual, i, j) : 0);
      at(out, i, j) = v * scale * static_cast<const float*>(weight->data)[j * weight->strides[0]];
    }
  }
  return 0;
}
"""
)


def _reference(_xp: object, _call: object) -> dict[str, object]:
    raise AssertionError("link computes nothing")


def gemm_operator() -> Operator:
    return Operator(
        name="gemm",
        dims=("M", "N", "K"),
        tensors=(
            Tensor("a", (M, K)),
            Tensor("b", (K, N), cold=True),
            Tensor("bias", (N,), optional=True),
            Tensor("residual", (M, N), optional=True),
            Tensor("out", (M, N), output=True),
        ),
        attributes=(Attribute("activation", ("none", "relu")),),
        reference=_reference,
        flops=2 * M * N * K,
        workload=(problem(M=8, N=8, K=8), problem(M=64, N=8, K=8, order={"b": (1, 0)})),
        kernels=(Kernel("plain", "gemm/plain.cpp.j2", generic=True), Kernel("packed", "gemm/packed.cpp.j2")),
        documentation="out = activation(a @ b + bias) + residual.",
        fold="M",
    )


def norm_operator() -> Operator:
    return Operator(
        name="rms_norm",
        dims=("M", "N"),
        tensors=(
            Tensor("x", (M, N)),
            Tensor("weight", (N,)),
            Tensor("residual", (M, N), optional=True),
            Tensor("out", (M, N), output=True),
            Tensor("residual_out", (M, N), output=True, optional=True),
        ),
        scalars=(Scalar("eps", "f32", 1e-5),),
        reference=_reference,
        flops=4 * M * N,
        workload=(problem(M=8, N=8),),
        kernels=(Kernel("plain", "rms_norm/plain.cpp.j2", generic=True),),
        documentation="out = (x + residual) / rms(x + residual) * weight.",
        fold="M",
    )


def compile_object(
    folder: Path,
    source: str,
    name: str,
    *,
    march: str = "x86-64",
    mark: str = "0",
    failure: str = "0",
    scratch: int = 0,
    flags: Sequence[str] = (),
) -> tuple[str, str, str]:
    """Compile a candidate; its symbol, path and digest. `mark` is added to every result, to tell variants apart."""
    symbol, target = f"aot_tune_{name}", folder / f"{name}.o"
    for word, text in (("SYMBOL", symbol), ("MARK", mark), ("FAILURE", failure), ("SCRATCH", str(scratch))):
        source = source.replace(word, text)
    if not target.exists():
        path = folder / f"{name}.cpp"
        path.write_text(source)
        _compile(path, target, [*_FLAGS, "-O1", f"-march={march}", *flags])
    return symbol, str(target), hashlib.sha256(target.read_bytes()).hexdigest()


class NamedVariant(Variant, frozen=True, kw_only=True):
    """A variant with a name that tests choose, for a target that may be no compiler's."""

    name: str
    target: Target


def made_by_hand(
    name: str,
    target: str,
    level: int,
    *,
    last: int = 0,
    symbol: str = "",
    path: str = "",
    digest: str = "",
    requires: tuple[Expr, ...] = (),
    **identity: Any,
) -> NamedVariant:
    """A variant without a source; `identity` are more fields of its candidate."""
    symbol = symbol or f"aot_tune_{name}"
    candidate = Candidate(operator="", kernel=name.partition("_")[0], backend="", target=target, **identity)
    return NamedVariant(
        name=name,
        target=Target(name=target, family=target.partition("-")[0], level=level, last=last),
        rendered=Rendered(candidate=candidate, source="", digest="", symbol=symbol, lines=(), requires=requires),
        object=Object(key="", path=path, digest=digest, symbol=symbol, source="", target=target, status="ok"),
    )


def changed(made: NamedVariant, **identity: Any) -> NamedVariant:
    """A variant of another candidate, which differs in these fields."""
    rendered = msgspec.structs.replace(made.rendered, candidate=msgspec.structs.replace(made.candidate, **identity))
    return msgspec.structs.replace(made, rendered=rendered)


def variant(
    folder: Path,
    source: str,
    name: str,
    *,
    level: int = 1,
    target: str = "",
    generic: bool = False,
    requires: tuple[Expr, ...] = (),
    **how: Any,
) -> NamedVariant:
    """A variant, by default for a level of CPUs from 1 to 4; `how` is that of `compile_object`."""
    symbol, path, digest = compile_object(folder, source, name, **how)
    return made_by_hand(
        name,
        target or "cpu-x86-64" + f"-v{level}" * (level > 1),
        level,
        symbol=symbol,
        path=path,
        digest=digest,
        generic=generic,
        requires=requires,
        config={} if generic else {"MR": 4},
    )


def library_spec(folder: Path) -> LibrarySpec:
    """gemm, whose variants add 0 (generic), 10 (small M), 20 (big M, guarded) or 30 (v3) to each element; rms_norm.

    The table for level 2 was tuned with 3 threads, on M from 2 to 64, with N = 8 and K from 1 to 8. There, calls get
    small_2 up to M = 16, packed_2 up to 800, and then a variant that fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unit = stride("b", 1) == 1
    second, third = {"level": 2, "march": "x86-64-v2"}, {"level": 3, "march": "x86-64-v3"}
    gemm = OperatorTable(
        operator=gemm_operator(),
        variants=(
            variant(folder, GEMM, "plain", generic=True),
            variant(folder, GEMM, "small_2", **second, mark="10", scratch=100),
            variant(folder, GEMM, "packed_2", **second, mark="20", requires=(unit, dim("K") % 4 == 0)),
            variant(folder, GEMM, "packed_3", **third, mark="30", requires=(unit,)),
            variant(folder, GEMM, "broken", level=2, failure="7"),
        ),
        tables=(
            TargetTable(
                target="cpu-x86-64-v2",
                level=2,
                tuned=(problem(M=8, N=8, K=8), problem(M=64, N=8, K=8, order={"b": (1, 0)})),
                surveyed=tuple((problem(M=m, N=8, K=8), v) for m, v in ((4, (1,)), (64, (2, 1)), (10_000, (4,)))),
                regimes=(RegimeCalls(dims={"M": (2, 64), "N": (8, 8), "K": (1, 8)}),),
                processors=3,
            ),
            TargetTable(
                target="cpu-x86-64-v3",
                level=3,
                rest=(3,),
                tuned=(problem(M=8, N=8, K=8, present=("bias",), attributes={"activation": "relu"}),),
            ),
        ),
    )
    norm = OperatorTable(operator=norm_operator(), variants=(variant(folder, NORM, "norm", generic=True),))
    return LibrarySpec(output="linked_ops", operators=(gemm, norm), tools={"cxx": "test"}, devices=({"name": "test"},))


@dataclass(frozen=True)
class Built:
    spec: LibrarySpec
    made: Generated
    library: Path
    module: Path


_FLAGS = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti"]
_WARN = ["-Wall", "-Wextra", "-Werror"]
_LINK = ["g++", "-shared", "-Wl,--gc-sections", "-Wl,--build-id=none"]


def runtime_sources(*families: str) -> list[Path]:
    """What is compiled into every library, and for families of devices beside CPUs."""
    return [p for f in ("", *families) for p in sorted((RUNTIME / f).glob("*.cpp"))]


def link_library(
    spec: LibrarySpec, folder: Path, *, families: Sequence[str] = (), includes: Sequence[str] = (),
    libraries: Sequence[str] = (),
) -> Built:  # fmt: skip
    """Generate and link as a package would be, if it is not there; `families` are those beside CPUs."""
    folder.mkdir(parents=True, exist_ok=True)
    made = generate(spec, folder)
    library, module = folder / f"lib{spec.library}.so", folder / f"{spec.face}.abi3.so"
    if module.exists():
        return Built(spec, made, library, module)
    own = [*_FLAGS, "-O0", *(f"-I{folder}" for folder in (RUNTIME, RUNTIME / "include", *includes))]
    objects = compile_objects(
        [Path(made.dispatch), *runtime_sources(*families)], folder / "library", [*own, "-fopenmp"]
    )
    exports = [f"-Wl,--version-script={made.library_exports}", f"-Wl,-soname,{library.name}", "-Wl,-z,defs"]
    exports += [f"-Wl,--wrap=GOMP_{name}" for name in ("parallel", "barrier", "loop_end")] + ["-fopenmp"]
    subprocess.run([*_LINK, *objects, made.archive, *libraries, *exports, "-o", library], check=True)
    own += [f"-I{BINDING}", f"-I{sysconfig.get_paths()['include']}"]
    objects = compile_objects([Path(made.module), *sorted(BINDING.glob("*.cpp"))], folder / "module", own)
    exports = [f"-Wl,--version-script={made.module_exports}", "-Wl,-rpath,$ORIGIN"]
    subprocess.run([*_LINK, *objects, library, *exports, "-o", module], check=True)
    return Built(spec, made, library, module)


SANITIZE = [*_WARN, "-fno-sanitize-recover=all", "-fsanitize=address,undefined"]


def sanitized_runtime(folder: Path) -> list[Path]:
    own = ["-std=c++17", "-g", "-O0", f"-I{RUNTIME}", f"-I{RUNTIME / 'include'}"]
    return compile_objects(runtime_sources(), folder, [*SANITIZE, *own])


def compile_objects(sources: Sequence[Path], folder: Path, flags: Sequence[str]) -> list[Path]:
    folder.mkdir()
    objects = [folder / f"{number}-{source.stem}.o" for number, source in enumerate(sources)]
    for source, made in zip(sources, objects, strict=True):
        _compile(source, made, [*_WARN, *flags], source.parent if source.parent == folder.parent else None)
    return objects


def _compile(source: Path, made: Path, flags: Sequence[str], beside: Path | None = None) -> None:
    """Compile to an object, once for all tests and runs: of the same text, flags and headers there is one.

    What is generated includes what lies `beside` it, wherever that is.
    """
    known = hashlib.sha256("\0".join([source.name, *flags, _headers()]).encode() + source.read_bytes())
    for header in sorted(beside.rglob("*.h")) if beside is not None else ():
        known.update(header.read_bytes())
    kept = _kept() / f"{known.hexdigest()}.o"
    if not kept.exists():
        own = [f"-I{beside}", f"-ffile-prefix-map={beside}=."] if beside is not None else []
        part = made.with_suffix(".part")
        subprocess.run(["g++", *flags, *own, "-c", source.name, "-o", str(part)], cwd=source.parent, check=True)
        shutil.copyfile(part, kept.with_suffix(f".{os.getpid()}"))
        kept.with_suffix(f".{os.getpid()}").rename(kept)
        part.unlink()
    shutil.copyfile(kept, made)


@functools.cache
def _kept() -> Path:
    """Where objects are kept: beside those of ccache, in pytest's cache, which all processes of a run share."""
    usual = os.environ.get("CCACHE_DIR") or f"{tempfile.gettempdir()}/aot_tune_{os.getuid()}/ccache"
    folder = Path(usual).parent / "objects"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@functools.cache
def _headers() -> str:
    """The compiler, and what every header of the runtime and the binding says."""
    version = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout
    known = hashlib.sha256(version.encode())
    for folder in (RUNTIME, BINDING):
        for path in sorted(p for p in folder.rglob("*") if p.suffix in (".h", ".cpp")):
            known.update(path.read_bytes())
    return known.hexdigest()


def load_module(path: Path) -> ModuleType:
    return module_files.load_module(path, "ops")
