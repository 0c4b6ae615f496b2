"""The object cache: what is in a key, what the modes do, what is counted and what goes."""

import logging
import os
import shutil
import time
from pathlib import Path

import pytest
from msgspec import structs

from aot_tune.cli.main import main
from aot_tune.compile import ObjectCache, compile_all, target_by_name, toolchain_for
from aot_tune.compile.object_cache import prune
from aot_tune.support.errors import OptionError
from aot_tune.support.storage import cache_location

TARGET = target_by_name("cpu-x86-64")


def entry(root: Path, key: str) -> Path:
    return root / "objects" / key[:2] / key


@pytest.fixture
def chain(counting_compiler):
    return toolchain_for("cxx", {"PATH": os.environ["PATH"], "CXX": str(counting_compiler[0])})


def test_each_part_is_a_miss_and_explained(
    tmp_path: Path, chain, counting_compiler, make_rendered, monkeypatch, capsys
) -> None:
    environ = {"PATH": os.environ["PATH"], "CXX": str(counting_compiler[0])}
    include = tmp_path / "include"
    include.mkdir()
    other = tmp_path / "other-g++"
    other.write_text(counting_compiler[0].read_text() + "# another compiler\n")
    other.chmod(0o755)
    march = [f"recipe.flags -march=x86-64{level}" for level in ("", "-v3")]
    sought = f"includes {include / 'stdc-predef.h'}"
    keys = dict[str, list[str]]()
    for toolchain, target, number, differs in [
        (chain, TARGET, 1, []),
        (chain, TARGET, 2, ["source", "symbol"]),
        (chain, target_by_name("cpu-x86-64-v3"), 1, [*march, "target"]),
        (
            toolchain_for("cxx", environ | {"CXX": f"{counting_compiler[0]} -DX=1"}),
            TARGET,
            1,
            ["recipe.added", "recipe.flags -DX=1"],
        ),
        (toolchain_for("cxx", environ | {"CPATH": str(include)}), TARGET, 1, [sought, "recipe.environment.CPATH"]),
        (toolchain_for("cxx", environ | {"CXX": str(other)}), TARGET, 1, ["toolchain.driver"]),
    ]:
        keys[ObjectCache(tmp_path / "c", toolchain).get(make_rendered(number), target).key] = differs
    assert len(keys) == 6
    assert counting_compiler[1]() == 6
    monkeypatch.setenv("AOT_TUNE_CACHE_DIR", str(tmp_path / "c"))
    first = next(iter(keys))
    for key, differs in keys.items():
        assert main(["cache", "explain", first[:20], str(entry(tmp_path / "c", key))]) == 0
        fields = [line for line in capsys.readouterr().out.splitlines()[2:] if not line.startswith(" ")]
        assert fields == (differs or ["nothing that decides them differs"])
    assert main(["cache", "explain", f"tuned_{make_rendered(1).digest[:8]}"]) == 0  # as reports name it
    assert main(["cache", "explain", "nowhere"]) == 1
    assert "no object of the cache is named 'nowhere'" in capsys.readouterr().err


def test_an_object_is_of_the_source_that_asks_for_it(tmp_path: Path, chain, counting_compiler, make_rendered) -> None:
    """Guards and an operator's checks are part of a source's digest, but not of what is compiled."""
    first = make_rendered(1)
    other = structs.replace(first, digest="other")
    cache = ObjectCache(tmp_path / "c", chain)
    made = [cache.get(rendered, TARGET) for rendered in (first, other)]
    assert [one.source for one in made] == [first.digest, "other"]
    assert counting_compiler[1]() == 1
    found = ObjectCache(tmp_path / "c", chain).find(other, TARGET)
    assert found is not None
    assert found.source == "other"


def test_modes(tmp_path: Path, chain, counting_compiler, make_rendered, caplog) -> None:
    root = tmp_path / "c"
    made = ObjectCache(root, chain).get(make_rendered(1), TARGET)
    before = sorted(root.rglob("*"))
    with caplog.at_level(logging.WARNING):
        reading = ObjectCache(root, chain, mode="ro")
        assert reading.get(make_rendered(1), TARGET).cached
        elsewhere = reading.get(make_rendered(2), TARGET)
        assert reading.get(make_rendered(2), TARGET).cached
    assert Path(elsewhere.path).is_file()
    assert root not in Path(elsewhere.path).parents
    assert sorted(root.rglob("*")) == before
    assert caplog.records == []
    assert counting_compiler[1]() == 2
    fresh = ObjectCache(root, chain, mode="fresh")
    assert not fresh.get(make_rendered(1), TARGET).cached
    assert fresh.get(make_rendered(1), TARGET).cached
    assert fresh.get(make_rendered(1), TARGET).digest == made.digest
    assert counting_compiler[1]() == 3
    off = ObjectCache(root, chain, mode="off")
    kept = [off.get(make_rendered(1), TARGET) for _ in range(2)]
    assert [o.cached for o in kept] == [False, True]
    assert counting_compiler[1]() == 4
    off.close()
    assert not Path(kept[0].path).exists()


def test_a_candidate_that_is_asked_for_twice_is_compiled_once(
    tmp_path: Path, chain, counting_compiler, make_rendered
) -> None:
    source = 'extern "C" int SYMBOL_launch() { return %d; }\n'
    rendereds = [make_rendered(n % 5, source % (n % 5)) for n in range(40)]
    rendereds += [make_rendered(0, source % 0, target="cpu-x86-64-v2")]
    seen = []
    cache = ObjectCache(tmp_path / "c", chain)
    objects = compile_all(cache, rendereds, 2, seen.append)
    assert counting_compiler[1]() == 6
    assert objects.keys() == {r.candidate.id for r in rendereds}
    assert len({o.key for o in objects.values()}) == 6
    assert [p.done for p in seen] == [1, 2, 3, 4, 5, 6]
    assert {p.total for p in seen} == {6}
    assert cache.counters.compiled == 6
    assert all(o.source == r.digest for r in rendereds for o in [objects[r.candidate.id]])


def test_pruning_takes_what_was_not_used_for_longest(tmp_path: Path, chain, make_rendered) -> None:
    root = tmp_path / "c"
    cache = ObjectCache(root, chain)
    first = cache.get(make_rendered(0), TARGET)
    size = sum(f.stat().st_size for f in entry(root, first.key).iterdir())
    keys = []
    for age in range(200):
        key = f"{age:064x}"
        shutil.copytree(entry(root, first.key), entry(root, key))
        when = time.time() - (2 + age) * 24 * 3600
        os.utime(entry(root, key) / "object.json", (when, when))
        keys.append(key)
    removed = prune(root, limit=101 * size, every=0)
    assert removed == 201 - int(101 * 0.9)
    assert entry(root, first.key).is_dir()
    assert [entry(root, k).exists() for k in keys] == [n < 200 - removed for n in range(200)]
    assert prune(root, limit=101 * size, every=0) == 0
    assert len(list((root / "objects").glob("*/*"))) == 201 - removed
    assert list((root / "tmp").iterdir()) == []
    assert prune(root, limit=1, every=3600) == 0  # it ran a moment ago
    assert prune(root, limit=1, every=0) == 200 - removed  # the one used today stays
    assert ObjectCache(root, chain).get(make_rendered(0), TARGET).cached


def test_where_the_cache_is(tmp_path: Path) -> None:
    assert cache_location({"HOME": "/h"}).root == Path("/h/.cache/aot_tune")
    assert cache_location({"HOME": "/h", "XDG_CACHE_HOME": "/x"}).root == Path("/x/aot_tune")
    named = cache_location({"HOME": "/h", "AOT_TUNE_CACHE_DIR": "/c", "AOT_TUNE_TRUST_CACHE": "1"})
    assert (named.root, named.required, named.trusted) == (Path("/c"), True, True)
    assert cache_location({"HOME": "/h", "AOT_TUNE_CACHE": "off"}).root is None
    nowhere = cache_location({})
    assert nowhere.root is None
    assert "HOME" in nowhere.message
    with pytest.raises(OptionError, match="did you mean"):
        cache_location({"AOT_TUNE_CACHE": "frsh"})
    with pytest.raises(OptionError, match="absolute"):
        cache_location({"AOT_TUNE_CACHE_DIR": "cache"})
