"""A disk that is full, read only or not there costs the cache, not the build."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path

import pytest

from aot_tune.compile import ObjectCache, target_by_name, toolchain_for

TARGET = target_by_name("cpu-x86-64")


@pytest.mark.parametrize("words", ["No space left on device", "Disk quota exceeded"])
def test_a_compiler_without_disk_is_not_a_failed_candidate(tmp_path: Path, make_rendered, caplog, words: str) -> None:
    """The compiler finds the disk full the first time: the cache goes, the object is made elsewhere."""
    path, mark = tmp_path / "g++", tmp_path / "full"
    mark.touch()
    path.write_text(
        f'#!/bin/sh\ncase " $* " in *" -c "*) if rm "{mark}" 2>/dev/null; then '
        f"echo 'as: object.o: {words}'; echo 'g++: error: x'; exit 1; fi;; esac\nexec g++ \"$@\"\n"
    )
    path.chmod(0o755)
    cache = ObjectCache(tmp_path / "c", toolchain_for("cxx", {"PATH": os.environ["PATH"], "CXX": str(path)}))
    with caplog.at_level(logging.WARNING):
        assert cache.get(make_rendered(1), TARGET).status == "ok"
    assert "cache disabled" in caplog.text


def test_a_small_file_system(tmp_path: Path, start_python) -> None:
    """A real file system of 96 KiB fills up while candidates are compiled."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k,mode=700", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        code = (
            "import logging, sys\nfrom pathlib import Path\nlogging.basicConfig(stream=sys.stdout)\n"
            "from aot_tune.compile import ObjectCache, target_by_name, toolchain_for\nfrom aot_tune.render import *\n"
            "import hashlib\nc = ObjectCache(Path(sys.argv[1]), toolchain_for('cxx'))\n"
            "for n in range(25):\n"
            "    s = f'extern \"C\" int s{n}_launch() {{ return {n}; }}\\nint big{n}[2000] = {{1}};\\n'\n"
            "    r = Rendered(candidate=Candidate(operator='o', kernel='k', backend='cxx', target='cpu-x86-64'),"
            " source=s, digest=hashlib.sha256(s.encode()).hexdigest(), symbol=f's{n}', lines=[])\n"
            "    o = c.get(r, target_by_name('cpu-x86-64'))\n"
            "    assert o.status == 'ok' and Path(o.path).is_file(), o\n"
            "print('done', c.root)\n"
        )
        output, _ = start_python(code, disk / "c").communicate()
        assert "done None" in output, output
        assert output.count("cache disabled") == 1
        assert list((disk / "c" / "tmp").iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)
