"""A disk that is full, read only or not there costs the cache, not the build."""

import errno
import logging
import os
from pathlib import Path

import pytest
from processes import program, small_disk
from project import Project
from stand_ins import build

from aot_tune.compile import ObjectCache, target_by_name, toolchain_for
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


ODD = """
import ctypes, errno, hashlib, logging, os, sys
from pathlib import Path
from aot_tune.bench.protocol.measurement_records import Device, Measurement, Policy
from aot_tune.compile import ObjectCache, target_by_name, toolchain_for
from aot_tune.compile.object_cache import prune
from aot_tune.database import MeasurementStore
from aot_tune.database.measurement_store import begin, forget
from aot_tune.pipeline.measuring.device_lock import device_lock
from aot_tune.render import Candidate, Rendered
from aot_tune.spec import problem
from aot_tune.support.storage import CacheLocation
logging.basicConfig(stream=sys.stdout, format="%(message)s")
root, target, policy = Path(sys.argv[1]), target_by_name("cpu-x86-64"), Policy()
device = Device(family="cpu", name="n", slug="s", identity={}, unit=f"odd{os.getpid()}")

def rendered(n):
    text = f'extern "C" int s{n}_launch() {{ return {n}; }}'
    candidate = Candidate(operator="o", kernel="k", backend="cxx", target=target.name)
    return Rendered(candidate=candidate, source=text, digest=f"{n:064}", symbol=f"s{n}", lines=[])

def put(store, n):
    ids = {"device": device.digest, "policy": policy.digest}
    where = store.operator("gemm", "contract", device, policy)
    where.put(Measurement(candidate="a", code=f"b{n}", problem=problem(M=1), status="ok", **ids))
    return where

for call in sys.argv[2:]:
    here = root / call
    os.environ["ODD_CALLS"] = ""
    ObjectCache(here, toolchain_for("cxx")).get(rendered(1), target)
    put(MeasurementStore(here), 1)
    os.environ["ODD_CALLS"] = call
    print("==", call, os.strerror(int(call.partition("=")[2])), flush=True)
    location = CacheLocation(root=here, mode="rw")
    if (begun := begin(location, "build")) is not None:
        begun.end()
        begun.leave()
    forget(location, "build")
    cache, store = ObjectCache(here, toolchain_for("cxx")), MeasurementStore(here)
    made = [cache.get(rendered(n), target) for n in (2, 3, 1)]
    assert all(m.status == "ok" and Path(m.path).is_file() for m in made), made
    assert made[2].cached  # what it has is still read
    put(store, 2)
    assert put(store, 3).find("a", "b1", problem(M=1)) is not None
    prune(here, every=0.0)
    with device_lock(device, print, None):
        print("measured; kept", sum(1 for _ in (here / "objects").glob("*/*")) - 1, flush=True)
"""


def test_row_92_odd_disks(tmp_path: Path, start_python) -> None:
    """The first error is told with the folder, nothing more is written to it, and what it has is read."""
    keeps = ("utime=1",)  # no need to tell of it
    disables = (
        *("fsync=22", "fsync=9", "fsync_folder=22", "fsync_folder=9", "flock=22", "flock=37", "chmod=1", "chmod=95"),
        *("rename=18", "rename=16", "unlink=16", "mkdir=28", "write=28", "write=122", "write=5", "flock=38"),
    )
    locks = Path(f"/tmp/aot_tune-{os.getuid()}")
    shim = build(tmp_path, "odd_disk.so")
    odd = {"LD_PRELOAD": str(shim), "ODD_DISK": f"{tmp_path / 'c'}:{locks}", "TMPDIR": str(tmp_path)}
    told, _ = start_python(ODD, tmp_path / "c", *disables, *keeps, **odd).communicate()
    parts = {part.split()[0]: part for part in told.split("== ")[1:]}
    assert list(parts) == [*disables, *keeps], told
    for call, part in parts.items():
        assert "measured" in part, told
        cache = f"{tmp_path / 'c' / call}: {part.splitlines()[0].partition(' ')[2]}"
        assert part.count(f"cache disabled: {cache}") == (call in disables), part
        assert part.count(f"measurements are not kept: {cache}") <= 1
        kept = int(part.rpartition("kept ")[2])
        assert kept == 2 * (call in keeps), part
        if call.startswith("flock"):
            assert f"NOTE {locks}/cpu-" in part
            assert "cannot be locked" in part


def test_row_92_a_build_whose_cache_is_on_an_odd_disk(tuned: Project, tmp_path: Path) -> None:
    """It compiles what is new, once more beside the cache, and takes all else from there."""
    tuned.change("(1, 4, 16, 64, 256)", "(1, 4, 16, 64, 256, 1024)")
    tuned.configure()
    odd = {"LD_PRELOAD": str(build(tmp_path, "odd_disk.so")), "ODD_DISK": tuned.env["AOT_TUNE_CACHE_DIR"]}
    said = tuned.build(**odd, ODD_CALLS="chmod=1")
    assert said.count(f"cache disabled: {tuned.folder / 'cache'}: Operation not permitted") == 1
    assert "NOTE `aot-tune records export` will not find this build" in said
    assert tuned.compiler.candidates() == 2


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
            "    big = f'__attribute__((used)) static int big{n}[2000] = {{1}};'\n"
            "    s = f'extern \"C\" int s{n}_launch() {{ return {n}; }}\\n{big}\\n'\n"
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
