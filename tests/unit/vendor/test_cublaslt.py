"""Asking cuBLASLt for its algorithms, with a stand-in for the library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cublaslt_stand_in import build_stub

from aot_tune.vendor import cublaslt

KEYS = {"ALGO", "TILE", "STAGES", "SPLITK", "REDUCTION", "SWIZZLE", "CUSTOM", "INNER", "CLUSTER", "VERSION"}
BIG = {"m": 256, "n": 4096, "k": 4096}


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stub(tmp_path_factory.mktemp("stub"))


def run(folder: Path, products: list[dict[str, Any]], *arguments: str, libraries: Path | None) -> tuple[Any, str]:
    """The answer of the program for `products`, and what it wrote on standard error."""
    (folder / "in.json").write_text(json.dumps(products))
    # Only what the test gives: a real library would answer otherwise.
    environ = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "PYTHONPATH")}
    environ["PYTHONPATH"] = str(Path(cublaslt.__file__).parents[2])
    if libraries is not None:
        environ["LD_LIBRARY_PATH"] = str(libraries)
    argv = [sys.executable, "-m", "aot_tune.vendor.cublaslt", "--problems", "in.json", "--out", "out.json", *arguments]
    done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False)
    out = folder / "out.json"
    assert out.exists() == (done.returncode == 0)
    return (json.loads(out.read_text()) if out.exists() else None), done.stderr


def ask(folder: Path, stub: Path, *arguments: str, **product: Any) -> dict[str, Any]:
    answer, errors = run(folder, [product], "--library", str(stub / "libcublasLt.so.13"), *arguments, libraries=stub)
    assert answer is not None, errors
    assert answer["version"] == 130100
    found: dict[str, Any] = answer["products"][0]
    return found


def test_configs_are_whole_distinct_and_begin_with_the_librarys_own(tmp_path: Path, stub: Path) -> None:
    found = ask(tmp_path, stub, "--limit", "40", **BIG)
    configs = found["configs"]
    assert len(configs) == 40
    assert found["heuristics"] == 1
    assert configs[0]["ALGO"] == 900
    assert all(set(c) == KEYS and c["VERSION"] == 130100 for c in configs)
    assert all(type(v) is int for c in configs for v in c.values())
    assert len({json.dumps(c, sort_keys=True) for c in configs}) == 40
    assert {c["ALGO"] for c in configs} == {900, 7, 21, 66}


def test_only_what_passes_the_librarys_check_is_listed(tmp_path: Path, stub: Path) -> None:
    found = ask(tmp_path, stub, "--limit", "5000", **BIG)
    assert 0 < found["passed"] < found["checked"] <= 12_000
    for config in found["configs"][1:]:
        assert not (config["ALGO"] == 66 and config["CLUSTER"] == 0)
        assert not (config["TILE"] == 23 and config["STAGES"] == 36)
        assert config["ALGO"] == 21 or (config["SPLITK"], config["SWIZZLE"], config["CUSTOM"]) == (1, 0, 0)


def test_sums_of_parts_are_kept_in_float(tmp_path: Path, stub: Path) -> None:
    for dtype, schemes in (("bf16", {0, 2}), ("f32", {0, 1, 2})):
        found = ask(tmp_path, stub, "--limit", "5000", **BIG, dtype=dtype)
        split = [c for c in found["configs"] if c["ALGO"] == 21]
        assert {c["REDUCTION"] for c in split} == schemes
        assert all((c["SPLITK"] > 1) == (c["REDUCTION"] > 0) for c in split)


def test_short_products_are_not_split(tmp_path: Path, stub: Path) -> None:
    found = ask(tmp_path, stub, "--limit", "5000", m=16, n=4096, k=300)
    assert {c["SPLITK"] for c in found["configs"]} == {1, 2}


def test_a_residual_needs_algorithms_that_can_add_another_matrix(tmp_path: Path, stub: Path) -> None:
    found = ask(tmp_path, stub, "--limit", "5000", **BIG, residual=True, bias=True)
    assert {c["ALGO"] for c in found["configs"]} == {900, 21, 66}


def test_batches_are_laid_out_before_the_library_is_asked(tmp_path: Path, stub: Path) -> None:
    """The stand-in's own choice holds the number of matrices, and the distances of those of b, a and out."""
    product = {"batch": 6, "m": 8, "n": 16, "k": 24}
    dense = ask(tmp_path, stub, **product)["configs"][0]
    assert [dense[n] for n in ("ALGO", "TILE", "CUSTOM", "SWIZZLE", "STAGES")] == [900, 6, 24 * 16, 8 * 24, 8 * 16]
    apart = ask(tmp_path, stub, **product, next_a=24, lda=144, next_b=0, next_d=200, ldd=20)["configs"][0]
    assert [apart[n] for n in ("TILE", "CUSTOM", "SWIZZLE", "STAGES")] == [6, 0, 24, 200]
    padded = ask(tmp_path, stub, **product, lda=32, ldb=40, ldd=20)["configs"][0]
    assert [padded[n] for n in ("TILE", "CUSTOM", "SWIZZLE", "STAGES")] == [6, 40 * 16, 32 * 8, 20 * 8]


def test_a_batch_needs_algorithms_that_can_do_one(tmp_path: Path, stub: Path) -> None:
    alone, batch = (ask(tmp_path, stub, "--limit", "5000", **BIG, batch=n) for n in (1, 8))
    assert {c["ALGO"] for c in alone["configs"]} == {900, 7, 21, 66}
    assert {c["ALGO"] for c in batch["configs"]} == {900, 21, 66}


def test_what_the_librarys_own_list_names_comes_first(tmp_path: Path) -> None:
    """Algorithms that it does not take itself wait behind those that it does, though they be as good by their tiles."""
    for named, other in ((21, 66), (66, 21)):
        folder = build_stub(tmp_path / str(named), f"-DNAMED={named}")
        own, *rest = ask(tmp_path, folder, "--limit", "60", **BIG)["configs"]
        assert own["ALGO"] == named
        places = [(c["ALGO"], c["TILE"]) for c in rest]
        assert all(places.index((named, tile)) < places.index((other, tile)) for tile in (5, 15, 20, 23))


def test_without_a_library_or_with_bad_input_it_says_so(tmp_path: Path, stub: Path) -> None:
    where = ("--library", str(stub / "libcublasLt.so.13"))
    answer, errors = run(tmp_path, [BIG], "--library", str(tmp_path / "none.so"), libraries=None)
    assert answer is None
    assert "cuBLASLt not found" in errors
    assert "nvidia-cublas" in errors
    for wrong in ({"m": 1}, BIG | {"dtype": "f64"}, BIG | {"n": 0}, BIG | {"batch": 0}, BIG | {"activation": "silu"}):
        answer, errors = run(tmp_path, [wrong], *where, libraries=stub)
        assert answer is None
        assert errors.startswith("error: ")
