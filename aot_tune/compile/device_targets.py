"""Targets of CPUs and of NVIDIA GPUs: what each may use, what runs it, and which compilers know it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from aot_tune.spec import Target
from aot_tune.spec.targets import TILES_LEVEL
from aot_tune.support.errors import ToolchainError

_LEVELS = (
    (2, "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"),
    (3, "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"),
    (4, "avx512f avx512bw avx512cd avx512dq avx512vl"),
    (5, "avx512_bf16"),
    (TILES_LEVEL, "amx_tile amx_bf16 amx_int8"),
)
_BF16 = ("-mavx512bf16",)
_MORE = {"bf16": _BF16, "amx": (*_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8")}
"""Flags for what is above x86-64-v4, in addition to its own."""
_KIB = 1024
_MAX_THREADS = 1024
_REGISTERS = 65536
_REGISTERS_PER_THREAD = 255
_REGISTERS_OF_A_WARP = 256
"""Warps get registers in steps of this many."""
_SINCE = {"80": "11.0", "86": "11.1", "89": "11.8", "90": "11.8", "90a": "12.0"}
_SINCE_OTHERS = "12.8"


def _cpu(name: str, level: int, vector_bytes: int, registers: int, bf16_dot: int = 0, tiles: int = 0) -> Target:
    facts = {"vector_bytes": vector_bytes, "registers": registers, "bf16_dot": bf16_dot, "tiles": tiles}
    return Target(name=f"cpu-x86-64{name}", family="cpu", level=level, facts=facts, machine="x86_64")


CPU_TARGETS = (
    _cpu("", 1, 16, 16),
    _cpu("-v2", 2, 16, 16),
    _cpu("-v3", 3, 32, 16),
    _cpu("-v4", 4, 64, 32),
    _cpu("-v4-bf16", 5, 64, 32, bf16_dot=1),
    _cpu("-v4-amx", TILES_LEVEL, 64, 32, bf16_dot=1, tiles=1),
)
"""Those of x86-64."""
OTHER_CPUS = (
    Target(
        name="cpu-aarch64",
        family="cpu",
        level=1,
        facts={"vector_bytes": 16, "registers": 32, "bf16_dot": 0, "tiles": 0},
        machine="aarch64",
    ),
)
"""Every CPU of a machine that libraries are compiled for, and that nothing is measured on."""
_MARCH = {"cpu-aarch64": "armv8-a"}


def cpu_level(cpuinfo: str) -> int:
    """The level of the highest target whose features all processors in /proc/cpuinfo's text have.

    It is 1 to 4 for the x86-64 levels, 5 for v4 with AVX512-BF16, and 6 with AMX in addition. 0 on another
    architecture.
    """
    rows = [set(line.partition(":")[2].split()) for line in cpuinfo.splitlines() if line.startswith("flags")]
    if not rows or "lm" not in rows[0]:
        return 0
    flags = set.intersection(*rows)
    level = 1
    for number, words in _LEVELS:
        if not flags.issuperset(words.split()):
            break
        level = number
    return level


def _cuda(suffix: str, last: int, shared_kib: int) -> Target:
    level, special = int(suffix.rstrip("a")), suffix.endswith("a")
    facts = {
        "capability": level,
        "shared_bytes": shared_kib * _KIB,
        "wgmma": int(suffix == "90a"),
        "arch_specific": int(special),
    }
    return Target(name=f"cuda-sm_{suffix}", family="cuda", level=level, last=last, facts=facts)


# Generic variants run on every GPU with as much room as those since sm_80: 99 KiB of shared memory in a block.
BASELINE = Target(
    name="cuda-ptx_80",
    family="cuda",
    level=80,
    facts={"capability": 80, "shared_bytes": 99 * _KIB, "wgmma": 0, "arch_specific": 0},
)
# The same from sm_89 on, for kernels that have no code for older GPUs. See `plan.wanted_targets`.
EIGHT_BIT_BASELINE = Target(name="cuda-ptx_89", family="cuda", level=89, facts={**BASELINE.facts, "capability": 89})
CUDA_TARGETS = (
    BASELINE,
    _cuda("80", 80, 163),  # GPUs of 86 and 89 have less shared memory than this target's candidates may use
    _cuda("86", 89, 99),
    _cuda("89", 89, 99),
    _cuda("90", 99, 227),
    _cuda("90a", 90, 227),
    _cuda("100", 109, 227),
    _cuda("100a", 100, 227),
    _cuda("120", 129, 99),
    _cuda("120a", 120, 99),
)


def best_targets(levels: Iterable[int]) -> tuple[Target, ...]:
    """The best targets of devices of these levels, the best last. If nothing else runs, it is the baseline.

    A device of level 90 has cuda-sm_90 and cuda-sm_90a. One of level 87 has cuda-sm_86, the highest that it runs.
    """
    by_name: dict[str, Target] = {}
    for level in sorted(set(levels)):
        able = [t for t in CUDA_TARGETS if t.runs_on(level) and t is not BASELINE]
        highest = max((t.level for t in able), default=0)
        best = [t for t in able if t.level == highest] or [t for t in (BASELINE,) if t.runs_on(level)]
        by_name |= {t.name: t for t in best}
    return tuple(sorted(by_name.values(), key=lambda t: (t.level, t.name)))


def cpu_flags(target: str) -> tuple[str, ...]:
    """The flags that tell a C++ compiler the target of that name."""
    march, _, more = _MARCH.get(target, target.removeprefix("cpu-")).partition("-v4-")
    return (f"-march={march}-v4", *_MORE[more]) if more else (f"-march={march}",)


def host_flags(baselines: Iterable[str]) -> tuple[str, ...]:
    """The flags for a library's own code, which its baseline of CPUs decides, not the machine that compiles it."""
    name = next(b for b in baselines if b.startswith("cpu-"))
    return (*cpu_flags(name), *(("-mtune=generic",) if name == CPU_TARGETS[0].name else ()))


def code_flags(target: Target) -> tuple[str, ...]:
    """The flags that tell nvcc the target: machine code for it, and for the baseline also PTX for later devices."""
    if target.name in (BASELINE.name, EIGHT_BIT_BASELINE.name):
        return ("-gencode", f"arch=compute_{target.level},code=[sm_{target.level},compute_{target.level}]")
    suffix = target.name.removeprefix("cuda-sm_")
    return ("-gencode", f"arch=compute_{suffix},code=sm_{suffix}")


def check_known(target: Target, known: Collection[str], version: str) -> None:
    """Raise ToolchainError if an nvcc of that version cannot compile a target. It lists `known`, such as sm_90."""
    suffix = target.name.removeprefix("cuda-sm_").removeprefix("cuda-ptx_")
    since = _SINCE.get(suffix, _SINCE_OTHERS)
    if f"sm_{target.level}" in known and _version(version) >= _version(since):
        return
    if _version(version) >= _version(since):
        fix = f"use an nvcc that still knows sm_{suffix}, or leave {target.name} out of AOT_TUNE_TARGETS"
    else:
        fix = (
            f"install CUDA {since} or later and point NVCC or CUDA_HOME to it, or `pip install nvidia-cuda-nvcc`, "
            f"or leave {target.name} out of AOT_TUNE_TARGETS"
        )
    listed = ", ".join(sorted(known, key=lambda n: (len(n), n)))
    raise ToolchainError(
        f"nvcc {version} cannot compile for {target.name}", why=f"it knows {listed or 'no architecture'}", fix=fix
    )


def fits(target: Target, shared_bytes: int, threads: int, registers: int = 0) -> str:
    """Why a block of that many threads with that many registers each can never run on a target. Empty if it can.

    Args:
        shared_bytes: shared memory of the block, dynamic and static together.
        registers: of each thread. 0 if that is not known yet.
    """
    room = target.facts["shared_bytes"]
    if shared_bytes > room:
        return f"{shared_bytes} bytes of shared memory, {target.name} has {room} for a block"
    if not 0 < threads <= _MAX_THREADS:
        return f"{threads} threads in a block, 1 to {_MAX_THREADS} are possible"
    if registers > _REGISTERS_PER_THREAD:
        return f"{registers} registers for a thread, {_REGISTERS_PER_THREAD} are possible"
    warps = -(-threads // 32)
    of_a_warp = -(-registers * 32 // _REGISTERS_OF_A_WARP) * _REGISTERS_OF_A_WARP
    if warps * of_a_warp > _REGISTERS:
        return f"{warps * of_a_warp} registers for a block of {threads} threads, {_REGISTERS} are there"
    return ""


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(".")[:2])
