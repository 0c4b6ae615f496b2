"""Several builds on one cache, and builds that are killed at any moment."""

import os
import random
import shutil
import time
from pathlib import Path

from processes import becomes_true, processes, program

from aot_tune.compile.cache_entry import read_entry
from aot_tune.support.storage import CorruptError

KILLS = 4  # of the 200 that the design asks for: each costs a start of Python; AOT_TUNE_TEST_KILLS sets more

BUILD = """
import sys, hashlib
from pathlib import Path
from aot_tune.compile import ObjectCache, compile_all, toolchain_for
from aot_tune.render import Candidate, Rendered

def rendered(n):
    s = f'extern "C" int s{n}_launch(float* x) {{ x[0] = {n}; return 0; }}\\n'
    candidate = Candidate(operator="o", kernel="k", backend="cxx", target="cpu-x86-64", config={"N": n})
    digest = hashlib.sha256(s.encode()).hexdigest()
    return Rendered(candidate=candidate, source=s, digest=digest, symbol=f"s{n}", lines=[])

root, count = Path(sys.argv[1]), int(sys.argv[2])
cache = ObjectCache(root, toolchain_for("cxx"))
work = [rendered(n) for n in range(count)]
print("ready", flush=True)
found = compile_all(cache, work, 2)
cache.close()
print("digests", *sorted(f"{o.symbol}={o.digest}" for o in found.values()))
print("compiled", cache.counters.compiled)
"""


def lines(output: str) -> dict[str, str]:
    return dict(line.partition(" ")[::2] for line in output.splitlines())


def working_in(folder: Path) -> list[int]:
    return processes(lambda entry: folder in (entry / "cwd").readlink().parents)


def test_kill_9_at_any_moment(tmp_path: Path, start_python) -> None:
    rng, root, count = random.Random(7), tmp_path / "c", 24
    kills, interrupted = int(os.environ.get("AOT_TUNE_TEST_KILLS", KILLS)), 0
    for kill in range(kills):
        if len(list(root.glob("objects/*/*"))) > count // 2:
            shutil.rmtree(root / "objects")  # so that every run has work to do
        process = start_python(BUILD, root, count)
        assert process.stdout is not None
        process.stdout.readline()  # ready
        seen = "objects/*/*" if kill in (0, kills - 1) else "tmp/*"  # something is kept in the end
        while process.poll() is None and not list(root.glob(seen)):
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.25))
        process.kill()
        process.communicate()
        interrupted += len(list(root.glob("tmp/*"))) > 0
        for folder in (root / "objects").glob("*/*"):
            read_entry(folder, folder.name, trusted=False)  # no torn entry
    assert interrupted > kills // 4  # the kills did hit compilers at work
    assert becomes_true(lambda: not working_in(root), 2)
    kept = len(list((root / "objects").glob("*/*")))
    assert kept > 0
    process = start_python(BUILD, root, count)
    after = lines(process.communicate(timeout=300)[0])
    assert process.returncode == 0
    assert int(after["compiled"]) == count - kept
    undisturbed = lines(start_python(BUILD, tmp_path / "other", count).communicate(timeout=300)[0])
    assert after["digests"] == undisturbed["digests"]
    assert list((root / "tmp").iterdir()) == []


def test_a_killed_holder_of_a_lock_holds_up_nobody(tmp_path: Path, start_python, make_rendered) -> None:
    root = tmp_path / "c"
    slow = program(tmp_path / "slow-g++", 'case " $* " in *" -c "*) sleep 30;; esac\nexec g++ "$@"')
    process = start_python(BUILD, root, 1, CXX=str(slow))
    assert becomes_true(lambda: list(root.glob("locks/*/*.lock")), 20)
    process.kill()
    process.communicate()
    program(slow, 'exec g++ "$@"')
    (lock,) = root.glob("locks/*/*.lock")
    began = time.monotonic()
    output, _ = start_python(BUILD, root, 1).communicate(timeout=60)
    assert lines(output)["compiled"] == "1"
    assert time.monotonic() - began < 15  # not 30
    assert lock.exists()


def test_readers_never_see_half_an_entry(tmp_path: Path, start_python, make_rendered) -> None:
    """One process keeps replacing entries (mode fresh) while this one reads them."""
    code = BUILD.replace('cache = ObjectCache(root, toolchain_for("cxx"))', "").replace(
        "found = compile_all(cache, work, 2)",
        "chain = toolchain_for('cxx')\nwhile True:\n    compile_all(ObjectCache(root, chain, mode='fresh'), work, 2)",
    )
    process = start_python(code, tmp_path / "c", 4)
    try:
        assert process.stdout is not None
        process.stdout.readline()  # ready
        torn = reads = 0
        until = time.monotonic() + 30
        while reads < 500 and time.monotonic() < until:
            for folder in (tmp_path / "c" / "objects").glob("*/*"):
                try:
                    read_entry(folder, folder.name, trusted=False)
                    reads += 1
                except FileNotFoundError:
                    pass  # between the old one and the new one
                except CorruptError as error:
                    torn += "it has no" not in str(error)
        assert reads > 100
        assert torn == 0
    finally:
        process.kill()
        process.communicate()
