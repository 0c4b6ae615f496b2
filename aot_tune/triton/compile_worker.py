"""A process that compiles Triton functions for one target.

    python -m aot_tune.triton.compile_worker <target> <root>...

Requests and replies are lines of JSON on its standard input and output. It ends when its input ends. Output of Triton,
its tools and the modules of kernels goes to the file `worker.log` in its folder, and from there into the reply.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import msgspec

from aot_tune.render.triton.recipe import Recipe
from aot_tune.support.cuda_tools import kernel_resources
from aot_tune.support.errors import AotTuneError, SentError
from aot_tune.triton.absent_devices import DeviceFacts, device_of, stand_in, target_of
from aot_tune.triton.installed import find_triton, load
from aot_tune.triton.triton_messages import CompileReply, CompileRequest, CompilerReady, DescriptorMap, Image

_KEPT = 32 << 10
_VARIABLES = ("TRITON_", "AMDGCN_", "LLVM_", "MLIR_", "NVPTX_", "PTXAS_", "DISABLE_")
_DIAGNOSTIC = re.compile(r"^(?:loc\(.*?\)|[^\s:]+:\d+:\d+|<unknown>:0): (error: .*)$", re.MULTILINE)

_WIDTH = re.compile(r"\b(?:32|64)[ -]bit\b|\bu?int64\b|\bi64\b")


class _StaleError(Exception):
    """What the process has loaded differs from what a new process would compile."""


class _Compiler:
    def __init__(self, target: str, roots: list[str]) -> None:
        from aot_tune.triton import triton_private

        self._triton = triton_private
        self._device: DeviceFacts = device_of(target)
        self._virtual = target_of(target)[1]
        self._roots = roots
        self._functions: dict[str, Any] = {}
        self._changed_by = ""  # functions whose import has set variables of Triton
        triton_private.fake_driver(self._device)
        stand_in(self._device)

    def version(self) -> str:
        return str(self._triton.VERSION)

    def compile(self, request: CompileRequest) -> CompileReply:
        """Compile one recipe. Whatever happens, the process goes on."""
        recipe = request.recipe
        try:
            jit = self._function(recipe.function)
            if self._triton.reached(jit).digest != recipe.digest:
                # the function is not as it was read; the next build reads it again
                raise _StaleError(f"{recipe.function} has changed since it was read")
            compiled = self._triton.compile_function(jit, recipe, self._device, self._virtual, texts=request.texts)
            with open(request.image, "wb") as file:  # noqa: PTH123 - one system call less each
                file.write(compiled.image)
            image = _image(recipe.signature, compiled)
            return CompileReply(image=image, log=compiled.printed[-_KEPT:], texts=dict(compiled.texts))
        except _StaleError as error:
            return CompileReply(error=f"error: {error}", lasting=False, stale=True)
        except self._triton.CompileError as error:
            return CompileReply(error=_with_hint(str(error), recipe, jit), lasting=error.lasting)
        except AotTuneError as error:
            return CompileReply(error=f"error: {error.what}", log=str(error))
        except (MemoryError, OSError) as error:
            return CompileReply(error=f"error: {type(error).__name__}: {error}", lasting=False)
        except Exception as error:
            return CompileReply(error=f"error: {type(error).__name__}: {' '.join(str(error).split())[:500]}")

    def _function(self, reference: str) -> Any:
        module, before = reference.partition(":")[0], _settings()
        if self._changed_by not in ("", module):
            raise _StaleError(f"{self._changed_by} has set variables of Triton")
        if reference not in self._functions:
            try:
                self._functions[reference] = self._triton.unwrap(load(reference, self._roots), reference).jit
            finally:
                self._changed_by = module if _settings() != before else self._changed_by
        return self._functions[reference]


def _settings() -> dict[str, str]:
    """Variables that change what Triton makes. Modules of kernels may set them, for all kernels of their process."""
    return {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}


def _image(signature: dict[str, str], compiled: Any) -> Image:
    """The constants of `kernel.h`. Metadata that a target lacks counts as none."""
    from aot_tune.triton import triton_private

    m = compiled.metadata
    named = [name for name, kind in signature.items() if kind.startswith("tensordesc")]
    maps = m.get("tensordesc_meta") or []
    if maps and (len(maps) != len(named) or None in maps):
        raise triton_private.CompileError(
            f"error: Triton makes tensor maps of {len(maps)} of {len(named)} descriptors: pass only those that are used"
        )
    registers, spills = _resources(compiled)
    return Image(
        name=m["name"],
        warps=m["num_warps"],
        warp_size=m["warp_size"],
        ctas=m["num_ctas"],
        shared=m["shared"],
        global_scratch=m.get("global_scratch_size", 0),
        global_scratch_alignment=m.get("global_scratch_align", 1),
        profile_scratch=m.get("profile_scratch_size", 0),
        profile_scratch_alignment=m.get("profile_scratch_align", 1),
        cooperative=bool(m.get("launch_cooperative_grid")),
        pdl=bool(m.get("launch_pdl")),
        tma=bool(maps),
        descriptor_rounding=triton_private.DESCRIPTOR_ROUNDING,
        descriptors=[_map(name, described) for name, described in zip(named, maps, strict=False)],
        size=len(compiled.image),
        tensor_memory=m.get("tmem_size") or 0,
        registers=registers,
        spill_bytes=spills,
    )


def _map(parameter: str, described: dict[str, Any]) -> DescriptorMap:
    return DescriptorMap(
        parameter=parameter,
        swizzle=described["swizzle"],
        element_size=described["elem_size"],
        element_type=described["elem_type"],
        fp4_padded=described["fp4_padded"],
        block=list(described["block_size"]),
    )


def _resources(compiled: Any) -> tuple[int, int]:
    """Registers of a thread and bytes that it spills: from ptxas, or from LLVM in the assembly for AMD."""
    if not compiled.assembly:
        reported = kernel_resources(compiled.printed)
        return reported["registers"] or -1, reported["spill_bytes"]
    counts = {
        key: int(n) for key, n in re.findall(r"^\s*\.(vgpr_count|vgpr_spill_count):\s*(\d+)", compiled.assembly, re.M)
    }
    return counts.get("vgpr_count", -1), 4 * counts.get("vgpr_spill_count", 0)


def _with_hint(error: str, recipe: Recipe, jit: Any) -> str:
    """The error, with a hint if code is refused because integers have 64 bits here, and 32 with the JIT."""
    wide = [p.name for p in jit.params if recipe.signature.get(p.name) == "i64" and not p.annotation_type]
    if not wide or not _WIDTH.search(error.partition(" in `")[0]):
        return error
    return f"{error} (64 bits wide here: {', '.join(wide)}; `narrow` of TritonFunction lists arguments of 32)"


def _with_diagnostic(reply: CompileReply, printed: str) -> CompileReply:
    """The reply with what was printed. MLIR prints what is wrong; its exception only says that something is."""
    diagnostic = _DIAGNOSTIC.search(printed)
    error = diagnostic[1] if diagnostic is not None and "PassManager" in reply.error else reply.error
    return msgspec.structs.replace(reply, error=error, log=(reply.log + printed)[-_KEPT:])


def main() -> int:
    """Answer requests until the input ends."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - modules of kernels, and what they run, read no requests
        os.dup2(nothing.fileno(), 0)
    log = os.open("worker.log", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)

    def say(message: msgspec.Struct) -> None:
        replies.write(msgspec.json.encode(message) + b"\n")

    try:
        find_triton()
        worker = _Compiler(sys.argv[1], sys.argv[2:])
    except AotTuneError as error:
        say(CompilerReady(fault=SentError.of(error)))
        return 1
    except Exception as error:
        what = f"Triton cannot be imported: {type(error).__name__}: {error}"
        say(CompilerReady(fault=SentError(what, fix="install it again, with a version for this Python")))
        return 1
    say(CompilerReady(version=worker.version()))
    decoder = msgspec.json.Decoder(CompileRequest)
    for line in requests:
        os.ftruncate(log, 0)
        reply = worker.compile(decoder.decode(line))
        sys.stdout.flush()
        sys.stderr.flush()
        say(_with_diagnostic(reply, os.pread(log, _KEPT, 0).decode(errors="replace")))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
