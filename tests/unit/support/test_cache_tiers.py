"""Caches of others that are only read: what they have is taken, and whatever is wrong with them is told and no more."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from aot_tune.bench.protocol.measurement_records import Device, Measurement, Policy
from aot_tune.compile import ObjectCache, target_by_name, toolchain_for
from aot_tune.compile.cache_entry import file_digest
from aot_tune.database import MeasurementStore
from aot_tune.spec import problem
from aot_tune.support.cache_tiers import CacheTier, open_tiers
from aot_tune.support.errors import OptionError
from aot_tune.support.storage import cache_location

TARGET = target_by_name("cpu-x86-64")
DEVICE, POLICY = Device(family="cpu", name="A CPU", slug="a-cpu", identity={"model": "A CPU"}), Policy()
MEASURED = Measurement(
    candidate="c1",
    code="o1",
    problem=problem(M=16),
    device=DEVICE.digest,
    policy=POLICY.digest,
    status="ok",
    screen=(10.5, 11.25),
)


@pytest.fixture
def chain(counting_compiler):
    return toolchain_for("cxx", {"PATH": os.environ["PATH"], "CXX": str(counting_compiler[0])})


@pytest.fixture
def there(tmp_path: Path, chain, make_rendered) -> Path:
    """A cache with one object and one measurement, last read before it was written."""
    folder = tmp_path / "there"
    ObjectCache(folder, chain).get(make_rendered(1), TARGET)
    put(MeasurementStore(folder), MEASURED)
    for path in (folder, *folder.rglob("*")):
        os.utime(path, ns=(10**9, path.stat().st_mtime_ns))
    return folder


def put(store: MeasurementStore, one: Measurement) -> None:
    store.operator("gemm", contract="con", device=DEVICE, policy=POLICY).put(one)


def find(store: MeasurementStore, m: int = 16) -> Measurement | None:
    return store.operator("gemm", contract="con", device=DEVICE, policy=POLICY).find("c1", "o1", problem(M=m))


def as_it_is(folder: Path) -> dict[str, tuple[int, ...]]:
    """All that a folder holds, with modes, sizes and times, those of access too."""
    found = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.lstat()
        found[str(path)] = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_atime_ns, status.st_ctime_ns)
    return found


def opened(*folders: Path, trusted: bool = False) -> tuple[tuple[CacheTier, ...], list[str]]:
    told: list[str] = []
    return open_tiers(folders, trusted=trusted, log=told.append), told


def test_what_a_tier_has_is_taken_and_the_rest_is_made_here(
    there: Path, tmp_path: Path, chain, counting_compiler, make_rendered
) -> None:
    (tier,), told = opened(there)
    before, runs = as_it_is(there), counting_compiler[1]()
    cache = ObjectCache(tmp_path / "own", chain, tiers=(tier,))
    found = cache.get(make_rendered(1), TARGET)
    assert found.cached
    assert Path(found.path).is_relative_to(tmp_path / "own")  # the tier may go at any time
    assert file_digest(found.path) == found.digest
    assert counting_compiler[1]() == runs
    assert not cache.get(make_rendered(2), TARGET).cached
    assert ObjectCache(tmp_path / "own", chain).get(make_rendered(1), TARGET).cached
    assert counting_compiler[1]() == runs + 1
    assert (cache.counters.compiled, cache.counters.copied) == (1, 1)

    store = MeasurementStore(tmp_path / "own", tiers=(tier,))
    assert store.knew_any
    assert find(store) == MEASURED
    assert find(store, m=17) is None
    put(store, msgspec.structs.replace(MEASURED, problem=problem(M=17)))
    assert find(MeasurementStore(tmp_path / "own"), m=17) is not None
    assert find(MeasurementStore(tmp_path / "own")) is None
    cache.close()
    assert (tmp_path / "own" / "pruned").exists()  # what was copied counts in its size
    assert as_it_is(there) == before
    assert tier.summary() == f"cache tier {there} served 1 object, 1 result"
    assert not told


def is_gone(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def is_a_file(folder: Path) -> None:
    is_gone(folder)
    folder.write_text("")


def others_may_write(folder: Path) -> None:
    folder.chmod(0o777)


def is_corrupt(folder: Path) -> None:
    for path in folder.rglob("object.o"):
        path.write_bytes(path.read_bytes()[:-3])
    for path in (folder / "measurements").rglob("*.jsonl"):
        path.write_bytes(path.read_bytes().replace(b"10.5", b"10.6"))


def has_links(folder: Path) -> None:
    for path in [*folder.rglob("object.o"), *(folder / "measurements").rglob("*.jsonl")]:
        path.rename(path.with_suffix(".moved"))
        path.symlink_to(path.with_suffix(".moved"))


def has_entries_of_others(folder: Path) -> None:
    for path in folder.rglob("*.*"):
        path.chmod(0o666)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (is_gone, "NOT used: No such file or directory"),
        (is_a_file, "NOT used: Not a directory"),
        (others_may_write, "NOT used: "),
        (is_corrupt, "its object is not the one that was stored; others like it are not reported"),
        (has_links, "object.o cannot be read: "),
        (has_entries_of_others, "may be written by others"),
    ],
)
def test_a_fault_is_told_once_and_costs_its_hits_alone(
    there: Path, tmp_path: Path, chain, make_rendered, fault: Callable[[Path], None], said: str
) -> None:
    fault(there)
    (tier,), told = opened(there)
    cache, store = (
        ObjectCache(tmp_path / "own", chain, tiers=(tier,)),
        MeasurementStore(tmp_path / "own", tiers=(tier,)),
    )
    assert not cache.get(make_rendered(1), TARGET).cached
    assert find(store) is None
    assert len(told) == 1
    assert told[0].startswith(f"cache tier {there}: ")
    assert said in told[0]
    usable = "NOT used" not in said
    end = "served 0 objects, 0 results; 2 entries passed over" if usable else "served nothing: it cannot be used"
    assert tier.summary() == f"cache tier {there} {end}"


def test_tiers_are_named_by_whole_paths() -> None:
    named = {"AOT_TUNE_CACHE_TIERS": " /a; /b c ;", "HOME": "/home/me"}
    assert cache_location(named).tiers == (Path("/a"), Path("/b c"))
    assert cache_location({"AOT_TUNE_CACHE_TIERS": "/a"}).tiers == (Path("/a"),)  # without a home
    for mode in ("off", "fresh"):
        assert cache_location({**named, "AOT_TUNE_CACHE": mode}).tiers == ()
    with pytest.raises(OptionError, match="AOT_TUNE_CACHE_TIERS has 'b', which is not an absolute path"):
        cache_location({"AOT_TUNE_CACHE_TIERS": "/a;b", "HOME": "/home/me"})
