"""The sandbox, entered by processes of the tests' own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from aot_tune.support.kernel_features import features


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    argv = [
        sys.executable,
        "-c",
        "import sys, os\nfrom pathlib import Path\nfrom aot_tune.bench.worker import sandbox\n" + code,
    ]
    argv += [str(a) for a in arguments]
    return subprocess.run(argv, env={"PYTHONPATH": str(ROOT)}, capture_output=True, check=False, text=True, timeout=60)


needs_landlock = pytest.mark.skipif(not features()["landlock"], reason="this kernel has no Landlock")


@needs_landlock
def test_writing_is_allowed_below_the_scratch_folder_only(tmp_path: Path) -> None:
    scratch, outside = tmp_path / "scratch", tmp_path / "outside"
    scratch.mkdir()
    outside.mkdir()
    (outside / "file").write_text("kept")
    done = run(
        "scratch, outside = map(Path, sys.argv[1:])\n"
        "assert sandbox.restrict([scratch, Path('/dev/null'), Path('/no/such/place')]) == ''\n"
        "(scratch / 'a').mkdir(); (scratch / 'a' / 'b').write_text('x'); (scratch / 'a' / 'b').rename(scratch / 'c')\n"
        "open('/dev/null', 'w').write('x')\n"
        "assert (outside / 'file').read_text() == 'kept'\n"
        "def denied(action):\n"
        "    try:\n        action()\n    except PermissionError:\n        return True\n"
        "    except OSError as error:\n        return error.errno == 18\n"
        "assert denied(lambda: (outside / 'new').write_text('x'))\n"
        "assert denied(lambda: (outside / 'file').write_text('x'))\n"
        "assert denied(lambda: (outside / 'file').unlink())\n"
        "assert denied(lambda: (outside / 'new').mkdir())\n"
        "assert denied(lambda: os.symlink('a', outside / 'link'))\n"
        "assert denied(lambda: (scratch / 'c').rename(outside / 'c'))\n"
        "assert denied(lambda: os.truncate(outside / 'file', 0))\n"
        "print('done')\n",
        scratch,
        outside,
    )
    assert done.stdout == "done\n", done.stderr
    assert (outside / "file").read_text() == "kept"


@pytest.mark.skipif(not features()["landlock_tcp"], reason="this kernel's Landlock knows no network")
def test_tcp_is_denied(tmp_path: Path) -> None:
    done = run(
        "import socket\nsandbox.restrict([])\n"
        "for action in (lambda s: s.bind(('127.0.0.1', 0)), lambda s: s.connect(('127.0.0.1', 9))):\n"
        "    try:\n        action(socket.socket())\n    except PermissionError:\n        print('denied')\n"
    )
    assert done.stdout == "denied\ndenied\n", done.stderr


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


def test_files_have_a_largest_size_and_there_are_no_core_dumps(tmp_path: Path) -> None:
    done = run(
        "import resource\nsandbox.limit(1 << 20)\nassert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)\n"
        "assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY\n"
        "try:\n    Path(sys.argv[1]).write_bytes(bytes(2 << 20))\nexcept OSError as error:\n    print(error.errno)\n",
        tmp_path / "big",
    )
    assert done.stdout == "27\n", done.stderr
    assert (tmp_path / "big").stat().st_size <= 1 << 20


def test_a_process_whose_parent_is_gone_ends_at_once() -> None:
    assert run("sandbox.tie_to_parent(os.getpid())\nprint('alive')").returncode == 1
    assert run("sandbox.tie_to_parent(os.getppid())\nprint('alive')").stdout == "alive\n"
