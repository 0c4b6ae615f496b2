"""Damaged, foreign and outdated measurements are measured again; killed writers lose at most one each."""

import logging
import os
import random
import time
from pathlib import Path

import msgspec
import pytest

from aot_tune.bench.protocol.measurement_records import Device, Measurement, Policy
from aot_tune.database import MeasurementStore, compact_store
from aot_tune.database.measurement_store import OperatorStore
from aot_tune.spec import problem
from aot_tune.support.storage import CacheLocation

pytestmark = pytest.mark.slow

WHERE = problem(M=16, N=64)
DEVICE, POLICY = Device(family="cpu", name="A CPU", slug="a-cpu", identity={"model": "A CPU"}), Policy()
END = b'{"end":{}}\n'
"""Of the head, and of each measurement."""
KILLS = 4  # of the 200 that the design asks for; AOT_TUNE_TEST_KILLS sets more


def shelf(root: Path, **named: bool) -> tuple[MeasurementStore, OperatorStore]:
    store = MeasurementStore(root, **named)
    return store, store.operator("gemm", "con", DEVICE, POLICY)


def measured(code: str = "o", *, m: int = 16, screen: tuple[float, ...] = (1.5, 2.5)) -> Measurement:
    where = problem(M=m, N=64)
    return Measurement(
        candidate="c", code=code, problem=where, device=DEVICE.digest, policy=POLICY.digest, status="ok", screen=screen
    )


def ends_of(text: bytes) -> list[int]:
    """Where the head and each measurement end."""
    return [i + len(END) for i in range(len(text)) if text.startswith(END, i)]


def text_of(root: Path, *found: Measurement) -> Path:
    """The file of a store, in which measurements are put."""
    for one in found:
        shelf(root)[1].put(one)
    (path,) = (root / "measurements").glob("*.jsonl")
    return path


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, Path, Measurement]:
    """A store with one measurement: its root, the file, the measurement."""
    found = measured()
    return tmp_path / "c", text_of(tmp_path / "c", found), found


THREE = [measured(f"o{i}", m=i + 1) for i in range(3)]


def test_cut_at_every_byte(tmp_path: Path) -> None:
    """What was whole before the cut is found, nothing else is, and the next one that is added is whole."""
    kept, path = THREE, text_of(tmp_path, *THREE)
    whole = path.read_bytes()
    ends = ends_of(whole)
    assert len(ends) == 4  # with the head's
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        store, mine = shelf(tmp_path)
        there = [one for one in kept if mine.find("c", one.code, one.problem) == one]
        assert there == kept[: sum(end <= length for end in ends[1:])]
        assert store.damaged == 0
        mine.put(kept[2])
        assert whole.startswith(path.read_bytes()[: max((end for end in ends if end <= length), default=0)])
        store, mine = shelf(tmp_path)
        assert [mine.find("c", one.code, one.problem) for one in (*there, kept[2])] == [*there, kept[2]]
        assert store.damaged == 0


def test_three_flipped_bytes_cost_their_measurement_and_are_gone_once_another_is_added(tmp_path: Path, caplog) -> None:
    kept, rng, path = THREE, random.Random(5), text_of(tmp_path, *THREE)
    whole = path.read_bytes()
    _, begin, end, _ = ends_of(whole)  # the second of three
    for _ in range(100):
        data = bytearray(whole)
        for at in rng.sample(range(begin, end - 1), 3):
            data[at] ^= rng.randrange(1, 256)
        path.write_bytes(data)
        caplog.clear()
        store, mine = shelf(tmp_path)
        assert [mine.find("c", one.code, one.problem) for one in kept] == [kept[0], None, kept[2]]
        assert store.damaged >= 1
        assert [str(path) in r.getMessage() for r in caplog.records] == [True]
        mine.put(kept[1])
        store, mine = shelf(tmp_path)
        assert [mine.find("c", one.code, one.problem) for one in kept] == kept
        assert store.damaged == 0


def test_a_text_that_gets_an_earlier_one_s_inode_is_read_from_its_beginning(tmp_path: Path) -> None:
    """File systems give a number again at once, so two rewritings by others can bring it back."""
    path = text_of(tmp_path / "c", measured("o", m=100))
    store, mine = shelf(tmp_path / "c")
    assert mine.find("c", "o", problem(M=100, N=64)) is not None
    path.write_bytes(text_of(tmp_path / "d", *THREE).read_bytes())
    assert [mine.find("c", one.code, one.problem) for one in THREE] == THREE
    mine.put(measured("p", m=4))
    store, mine = shelf(tmp_path / "c")
    assert [mine.find("c", one.code, one.problem) for one in THREE] == THREE
    assert store.damaged == 0


def test_what_is_superseded_goes_in_the_end(tmp_path: Path) -> None:
    for n in range(600):
        _, mine = shelf(tmp_path)
        mine.find("c", "o", WHERE)
        mine.put(measured(screen=(float(n + 1),)))
    assert text_of(tmp_path).read_bytes().count(END) < 300
    found = shelf(tmp_path)[1].find("c", "o", WHERE)
    assert found is not None
    assert found.screen == (600.0,)


def test_recording_drops_what_is_damaged_or_superseded(tmp_path: Path, caplog) -> None:
    kept = measured("other")
    path = text_of(tmp_path, *(measured(screen=(float(n + 1),)) for n in range(3)), kept)
    path.write_bytes(path.read_bytes().replace(b"[2.0]", b"[2.1]") + b'{"problem":{"id":"torn')
    later = path.with_name("gemm-of-a-later-version.jsonl")
    later.write_bytes(path.read_bytes().replace(b'"schema":', b'"schema":9'))
    before = later.read_bytes()
    for _ in range(2):
        compact_store(CacheLocation(root=tmp_path, mode="rw"))
        assert path.read_bytes().count(END) == 3  # with the head
        store, mine = shelf(tmp_path)
        assert [mine.find("c", one.code, WHERE) for one in (kept, measured())] == [kept, measured(screen=(3.0,))]
        assert store.damaged == 0
    assert later.read_bytes() == before
    os.utime(later, (time.time() - 40 * 24 * 3600,) * 2)
    compact_store(CacheLocation(root=tmp_path, mode="rw"))
    assert not later.exists()
    inode = path.stat().st_ino
    compact_store(CacheLocation(root=tmp_path, mode="ro"))
    compact_store(CacheLocation(root=None, mode="rw"))
    compact_store(CacheLocation(root=tmp_path / "none", mode="rw"))
    assert path.stat().st_ino == inode
    assert not caplog.records


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").touch()


def make_link(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


def make_writable(path: Path) -> None:
    path.chmod(0o666)


@pytest.mark.parametrize("damage", [make_folder, make_link, make_writable])
def test_damage_is_a_miss_and_one_warning_and_replaced(kept, caplog, damage) -> None:
    root, path, found = kept
    damage(path)
    with caplog.at_level(logging.WARNING):
        _, mine = shelf(root)
        assert mine.find("c", "o", WHERE) is None
        mine.put(found)
    assert len(caplog.records) == 1
    assert str(path) in caplog.text
    assert shelf(root)[1].find("c", "o", WHERE) == found
    assert list((root / "tmp").iterdir()) == []


def test_what_others_may_write_to_is_refused_but_not_lost(kept) -> None:
    """As of a cache that was unpacked without its modes."""
    root, path, found = kept
    before = path.read_bytes()
    make_writable(path)
    shelf(root)[1].put(msgspec.structs.replace(found, candidate="d", code="p"))
    assert path.with_name(f"{path.name}.refused").read_bytes() == before


def test_measurements_of_another_text_or_another_version_are_not_taken(kept) -> None:
    root, path, found = kept
    newer = Policy(seed=1)
    other = MeasurementStore(root).operator("gemm", "con", DEVICE, newer)
    other.put(msgspec.structs.replace(found, policy=newer.digest))
    (place,) = (p for p in path.parent.glob("*.jsonl") if p != path)
    place.write_bytes(path.read_bytes())
    assert MeasurementStore(root).operator("gemm", "con", DEVICE, newer).find("c", "o", WHERE) is None
    path.write_bytes(path.read_bytes().replace(b'"at":', b'"new":1,"at":'))  # as a later version may write it
    assert shelf(root)[1].find("c", "o", WHERE) is None


WRITER = """
import sys
from itertools import count
from pathlib import Path
from aot_tune.bench.protocol.measurement_records import Device, Measurement, Policy
from aot_tune.database import MeasurementStore
from aot_tune.spec import problem
device, policy = Device(family="cpu", name="A CPU", slug="a-cpu", identity={"model": "A CPU"}), Policy()
mine = MeasurementStore(Path(sys.argv[1])).operator("gemm", "con", device, policy)

def put(code, *screen):
    where, ids = problem(M=1, N=64), {"device": device.digest, "policy": policy.digest}
    mine.put(Measurement(candidate="c", code=code, problem=where, status="ok", screen=screen, **ids))

print("ready", flush=True)
"""
"""A process that puts measurements; what follows says which."""
ENDLESS = """
for n in count(1):
    put(f"o{n % 500}", *[float(n)] * 50)
    print(n, flush=True)
"""


def test_kill_9_loses_at_most_one_measurement(tmp_path: Path, start_python) -> None:
    rng, root, torn = random.Random(11), tmp_path / "c", 0
    for _ in range(int(os.environ.get("AOT_TUNE_TEST_KILLS", KILLS))):
        process = start_python(WRITER + ENDLESS, root)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        said = [int(line) for line in process.stdout.read().splitlines() if line.strip().isdigit()]
        process.wait()
        store, mine = shelf(root)
        for n in said[:-1][-499:]:
            found = mine.find("c", f"o{n % 500}", problem(M=1, N=64))
            assert found is not None
            assert found.screen[0] >= n or n + 500 > said[-1]
        torn += store.damaged
        assert list((root / "tmp").glob("*")) == []  # opening the store swept what the dead left
    assert torn == 0
    assert text_of(root).read_bytes().count(END) > 20  # the kills did hit writers at work


TOGETHER = """
for n in range(int(sys.argv[3])):
    put(f"{sys.argv[2]}{n}", *[float(n)] * 2000)
    print(n, flush=True)
"""


def test_two_builds_at_once_one_of_them_killed(tmp_path: Path, start_python) -> None:
    """The killed one loses at most the line it was at, the other one none. Neither damages a line."""
    rng, root = random.Random(3), tmp_path / "c"
    for round_ in range(int(os.environ.get("AOT_TUNE_TEST_KILLS", KILLS))):
        stays, dies = f"stays{round_}-", f"dies{round_}-"
        processes = [start_python(WRITER + TOGETHER, root, *given) for given in ((stays, 150), (dies, 10**6))]
        for process in processes:
            assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "0\n"]
        time.sleep(rng.uniform(0, 0.1))
        processes[1].kill()
        said = [1 + len(process.stdout.read().splitlines()) for process in processes]
        assert [p.wait() for p in processes] == [0, -9]
        assert said[0] == 150
        store, mine = shelf(root)
        for name, count in ((stays, 150), (dies, said[1] - 1)):
            assert all(mine.find("c", f"{name}{n}", problem(M=1, N=64)) is not None for n in range(count))
        assert store.damaged == 0


AGAIN = """
for n in range(500):
    assert mine.find("c", f"none{n}", problem(M=1, N=64)) is None  # so that it reads what the others added
    put(f"{sys.argv[2]}{n % 5}", float(n + 1))
"""


def test_texts_that_are_written_anew_while_others_append_lose_nothing(tmp_path: Path, start_python) -> None:
    """The latest of each holds, although each process also knows earlier lines of the others."""
    root, names = tmp_path / "c", ("a", "b", "c")
    for process in [start_python(WRITER + AGAIN, root, name) for name in names]:
        assert process.communicate()[0] == "ready\n"
        assert process.returncode == 0
    store, mine = shelf(root)
    for name in names:
        found = [mine.find("c", f"{name}{n}", problem(M=1, N=64)) for n in range(5)]
        assert [None if m is None else m.screen for m in found] == [(float(n),) for n in range(496, 501)]
    assert store.damaged == 0
    assert text_of(root).read_bytes().count(END) < 900  # of 1500
