"""A disk that is full, read only or not there costs the cache, not the build."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from pathlib import Path

import pytest
from processes import program, small_disk

from aot_tune.bench.protocol.measurement_records import Device, Measurement, Policy
from aot_tune.compile import ObjectCache, target_by_name, toolchain_for
from aot_tune.compile.object_cache import prune
from aot_tune.database import MeasurementStore
from aot_tune.spec import problem
from aot_tune.support.errors import CacheError

TARGET = target_by_name("cpu-x86-64")


def no_space(*_arguments: object, **_named: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_nowhere_to_write_at_all_is_one_clear_error(tmp_path: Path, make_rendered, monkeypatch) -> None:
    cache = ObjectCache(None, toolchain_for("cxx"), scratch=tmp_path / "s")
    monkeypatch.setattr(Path, "write_text", no_space)
    with pytest.raises(CacheError, match="No space left") as caught:
        cache.get(make_rendered(1), TARGET)
    assert str(tmp_path / "s") in caught.value.what
    assert "TMPDIR" in caught.value.fix


@pytest.mark.parametrize("words", ["No space left on device", "Disk quota exceeded"])
def test_a_compiler_without_disk_is_not_a_failed_candidate(tmp_path: Path, make_rendered, caplog, words: str) -> None:
    """The compiler finds the disk full the first time: the cache goes, the object is made elsewhere."""
    (mark := tmp_path / "full").touch()
    said = f"echo 'as: object.o: {words}'; echo 'g++: error: x'; exit 1"
    script = f'case " $* " in *" -c "*) if rm "{mark}" 2>/dev/null; then {said}; fi;; esac\nexec g++ "$@"'
    path = program(tmp_path / "g++", script)
    cache = ObjectCache(tmp_path / "c", toolchain_for("cxx", {"PATH": os.environ["PATH"], "CXX": str(path)}))
    with caplog.at_level(logging.WARNING):
        assert cache.get(make_rendered(1), TARGET).status == "ok"
    assert "cache disabled" in caplog.text


def no_locks(*_arguments: object) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_a_disk_without_locks(tmp_path: Path, make_rendered, caplog, monkeypatch) -> None:
    """It is told at once: filelock waits only for a lock that another process holds."""
    cache, store = ObjectCache(tmp_path / "c", toolchain_for("cxx")), MeasurementStore(tmp_path / "c")
    monkeypatch.setattr(fcntl, "flock", no_locks)
    device, policy, begun = Device(family="cpu", name="n", slug="s", identity={}), Policy(), time.monotonic()
    store.operator("gemm", "contract", device, policy).put(
        Measurement(
            candidate="a", code="b", problem=problem(M=1), device=device.digest, policy=policy.digest, status="ok"
        )
    )
    assert store.root is None
    assert "measurements are not kept" in caplog.text
    assert time.monotonic() - begun < 10
    with caplog.at_level(logging.WARNING, "aot_tune"):
        found = [cache.get(make_rendered(n), TARGET) for n in (1, 2)]
        prune(tmp_path / "c", every=0.0)
    assert all(o.status == "ok" and Path(o.path).is_file() for o in found)
    assert caplog.text.count("cache disabled") == 1
    assert "No locks available" in caplog.text


@pytest.mark.parametrize("place", ["locks", "objects", "tmp"])
def test_a_file_where_a_folder_should_be(tmp_path: Path, make_rendered, caplog, place: str) -> None:
    cache = ObjectCache(tmp_path / "c", toolchain_for("cxx"))
    (tmp_path / "c" / place).touch()
    found = cache.get(make_rendered(1), TARGET)
    assert found.status == "ok"
    assert Path(found.path).is_file()
    assert "cache disabled" in caplog.text


def test_a_cache_that_somebody_removes_meanwhile(tmp_path: Path, make_rendered) -> None:
    root = tmp_path / "c"
    script = f'case " $* " in *" -c "*) g++ "$@"; s=$?; rm -rf "{root}"; exit $s;; esac\nexec g++ "$@"'
    path = program(tmp_path / "g++", script)
    cache = ObjectCache(root, toolchain_for("cxx", {"PATH": os.environ["PATH"], "CXX": str(path)}))
    found = cache.get(make_rendered(1), TARGET)
    assert found.status == "ok"
    assert Path(found.path).is_file()


def test_files_that_may_not_grow(tmp_path: Path, start_python) -> None:
    """RLIMIT_FSIZE stands in for a quota: nothing half-written is left, and nothing is taken for a result."""
    code = (
        "import logging, resource, sys\nfrom pathlib import Path\nlogging.basicConfig()\n"
        "from aot_tune.bench.protocol.measurement_records import Device, Measurement, Policy\n"
        "from aot_tune.database import MeasurementStore\n"
        "from aot_tune.spec import problem\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))\n"
        "store = MeasurementStore(Path(sys.argv[1]))\n"
        "where, policy = Device(family='cpu', name='n', slug='s', identity={}), Policy()\n"
        "mine = store.operator('o', 'c', where, policy)\n"
        "m = Measurement(candidate='a', code='b', problem=problem(M=1), device=where.digest, policy=policy.digest,"
        " status='ok',"
        " screen=tuple(float(n) for n in range(99)))\n"
        "mine.put(m)\nprint(mine.find('a', 'b', problem(M=1)) == m, store.root)\n"
    )
    output, _ = start_python(code, tmp_path / "c").communicate()
    assert "True None" in output
    assert "not kept" in output
    assert [p for p in (tmp_path / "c").rglob("*") if p.is_file() and p.stat().st_size] == []


def test_a_small_file_system(tmp_path: Path, start_python) -> None:
    """A real file system of 96 KiB fills up while candidates are compiled."""
    with small_disk(tmp_path / "disk", "size=96k,mode=700") as disk:
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
