"""Levels of x86-64, by the flags of CPUs."""

from __future__ import annotations

from aot_tune.spec.targets import TILES_LEVEL

__all__ = ["cpu_level"]

_LEVELS = (
    (2, "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"),
    (3, "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"),
    (4, "avx512f avx512bw avx512cd avx512dq avx512vl"),
    (5, "avx512_bf16"),
    (TILES_LEVEL, "amx_tile amx_bf16 amx_int8"),
)


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
