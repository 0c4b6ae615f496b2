"""The sandbox where the kernel has none, and its limit of memory, which is lifted; candidates try the rest."""

import subprocess
import sys

from places import ROOT


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    argv = [
        sys.executable,
        "-c",
        "import sys, os\nfrom pathlib import Path\nfrom aot_tune.bench.worker import sandbox\n" + code,
    ]
    argv += [str(a) for a in arguments]
    return subprocess.run(argv, env={"PYTHONPATH": str(ROOT)}, capture_output=True, check=False, text=True, timeout=60)


def test_a_kernel_without_landlock_is_said_and_nothing_fails() -> None:
    done = run("sandbox.landlock_abi = lambda: 0\nprint(sandbox.restrict([Path('/tmp')]))")
    assert "no Landlock" in done.stdout
    assert done.returncode == 0


def test_the_memory_limit_is_relative_and_is_lifted() -> None:
    done = run(
        "held = bytearray(200 << 20)\nsandbox.memory_limit(64 << 20)\nsmall = bytearray(16 << 20)\n"
        "try:\n    bytearray(128 << 20)\nexcept MemoryError:\n    print('denied')\n"
        "import mmap\nmmap.mmap(-1, 1 << 36, flags=mmap.MAP_PRIVATE | 0x4000, prot=mmap.PROT_READ)\n"
        "sandbox.memory_limit(None)\nbytearray(128 << 20)\nprint('lifted')\n"
    )
    assert done.stdout == "denied\nlifted\n", done.stderr
