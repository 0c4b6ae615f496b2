"""A cache that others share by a volume: a build takes from it what it can, and leaves it as it is."""

import re
from pathlib import Path

from project import Project


def held(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in (folder, *folder.rglob("*"))}


def test_a_build_beside_a_shared_cache_compiles_and_measures_nothing_again(tuned: Project, tmp_path: Path) -> None:
    made, winners = tuned, tuned.winners()
    shared = (made.folder / "cache").rename(tmp_path / "shared")
    before = held(shared)

    tiers = {"AOT_TUNE_CACHE_TIERS": f"{tmp_path / 'gone'};{shared}"}
    made.configure(build="beside", **tiers)
    said = made.build("beside", **tiers)
    assert f"cache tier {tmp_path / 'gone'}: NOT used: No such file or directory" in said
    assert f"cache tier {tmp_path / 'gone'} served nothing" in said
    (served,) = re.findall(rf"cache tier {shared} served (\d+) objects, (\d+) results$", said, re.MULTILINE)
    assert int(served[0]) == 6
    assert int(served[1]) >= 14
    assert " 0 measurements made, 14 known from before" in said
    assert made.compiler.candidates() == 0
    assert made.winners("beside") == winners
    assert held(shared) == before

    said = made.build("beside", **tiers)  # objects were copied, results were not
    assert f"cache tier {shared} served 0 objects, " in said
    assert held(shared) == before
