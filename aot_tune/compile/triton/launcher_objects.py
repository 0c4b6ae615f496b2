"""The object of a Triton candidate. The C++ compiler makes it from the image, `kernel.h` and the launcher."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from aot_tune.compile.diagnostics import SOURCE_NAME
from aot_tune.compile.programs import CXX_ADDRESS_SPACE, baseline_flags
from aot_tune.support.installed_paths import RUNTIME
from aot_tune.support.run_program import Finished, run
from aot_tune.triton.triton_messages import DescriptorMap, Image

__all__ = ["HEADER", "IMAGE", "KERNEL_IMAGE", "LAUNCHER", "compile_launcher", "host_flags", "kernel_header"]

HEADER, IMAGE = "kernel.h", "kernel.bin"
KERNEL_IMAGE = ".rodata.aot_tune_kernel_image"
"""The section of an object that holds its image, with a zero byte after the image."""

LAUNCHER = RUNTIME / "triton"
"""The folder of the headers that launchers include, and of the functions that they call."""

_MOST_AXES = 5
_FLAGS = (
    "-std=c++17",
    "-O1",  # -O2 takes a third longer, and saves 2 of the 10 ns that a launcher takes
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",  # nothing throws, and such tables would make every launcher larger
    "-fno-gnu-unique",
    "-frandom-seed=candidate",
    "-fmax-errors=5",
    "-fdiagnostics-color=never",
    "-fno-diagnostics-show-caret",
    "-pipe",
)

_TEXT = """\
#pragma once

namespace kernel {{
constexpr char name[] = "{name}";
constexpr unsigned warps = {warps}, warp_size = {warp_size};
constexpr unsigned ctas = {ctas};
constexpr unsigned shared = {shared};
constexpr unsigned long long global_scratch = {global_scratch}, global_scratch_alignment = {global_scratch_alignment};
constexpr unsigned long long profile_scratch = {profile_scratch}, profile_scratch_alignment = \
{profile_scratch_alignment};
constexpr bool cooperative = {cooperative}, pdl = {pdl};
constexpr bool tma = {tma};
constexpr bool descriptor_rounding = {descriptor_rounding};
{descriptors}constexpr unsigned long long image_size = {size};
}}  // namespace kernel

// The label is not global: many of them meet in a library.
asm(".pushsection {section},\\"a\\",@progbits\\n"
    ".balign 16\\n"
    "aot_tune_kernel_image:\\n"
    ".incbin \\"{image}\\"\\n"
    ".byte 0\\n"
    ".popsection\\n");
extern "C" __attribute__((visibility("hidden"))) const unsigned char AOT_TUNE_KERNEL_IMAGE[] \
__asm__("aot_tune_kernel_image");
"""


def kernel_header(image: Image) -> str:
    """The text of `kernel.h`, to follow `launch.h`: what the launcher must know of an image, and the image itself."""
    values = {name: _literal(getattr(image, name)) for name in image.__struct_fields__ if name != "descriptors"}
    values |= {"descriptors": "".join(map(_descriptor, image.descriptors)), "image": IMAGE, "section": KERNEL_IMAGE}
    return _TEXT.format(**values)


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _descriptor(one: DescriptorMap) -> str:
    block = [*one.block, *([0] * (_MOST_AXES - len(one.block)))]
    return (
        f"constexpr launcher::DescriptorMeta descriptor_{one.parameter} = {{{one.swizzle}, {one.element_size}, "
        f"{one.element_type}, {_literal(one.fp4_padded)}, {len(one.block)}, "
        f"{{{', '.join(map(str, block))}}}}};\n"
    )


def host_flags() -> tuple[str, ...]:
    """Flags that compile launchers for every CPU of this machine's kind."""
    return (*_FLAGS, *baseline_flags())


def compile_launcher(
    command: list[str], source: str, image: Image, out: Path, environ: Mapping[str, str], timeout: float
) -> Finished:
    """Compile a launcher in the folder of `out`, which holds the image, under fixed names."""
    folder, began = out.parent, time.monotonic()
    (folder / SOURCE_NAME).write_text(source, encoding="utf-8")
    (folder / HEADER).write_text(kernel_header(image))
    argv = [*command, *host_flags(), "-I", ".", "-I", str(LAUNCHER), "-MD", "-MF", "candidate.d"]
    argv += ["-c", SOURCE_NAME, "-o", out.name]
    left = max(1.0, timeout - (time.monotonic() - began))
    return run(argv, folder=folder, environ=environ, timeout=left, memory=CXX_ADDRESS_SPACE)
