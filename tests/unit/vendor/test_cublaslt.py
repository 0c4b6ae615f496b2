"""Asking cuBLASLt for its algorithms, with a stand-in for the library."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stand_ins import with_cublaslt

from aot_tune.vendor import cublaslt

KEYS = {"ALGO", "TILE", "STAGES", "SPLITK", "REDUCTION", "SWIZZLE", "CUSTOM", "INNER", "CLUSTER", "VERSION"}
BIG = {"m": 256, "n": 4096, "k": 4096}


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_cublaslt(tmp_path_factory.mktemp("stub"))


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


def ask(folder: Path, stub: Path, *arguments: str, **products: dict[str, Any]) -> dict[str, Any]:
    """The answers for products, by their names."""
    where = ("--library", str(stub / "libcublasLt.so.13"))
    answer, errors = run(folder, [*products.values()], *where, *arguments, libraries=stub)
    assert answer is not None, errors
    assert answer["version"] == 130100
    return dict(zip(products, answer["products"], strict=True))


def test_configs_are_whole_distinct_and_begin_with_the_librarys_own(tmp_path: Path, stub: Path) -> None:
    found = ask(tmp_path, stub, "--limit", "40", big=BIG)["big"]
    configs = found["configs"]
    assert len(configs) == 40
    assert found["heuristics"] == 1
    assert configs[0]["ALGO"] == 900
    assert all(set(c) == KEYS and c["VERSION"] == 130100 for c in configs)
    assert all(type(v) is int for c in configs for v in c.values())
    assert len({json.dumps(c, sort_keys=True) for c in configs}) == 40
    assert {c["ALGO"] for c in configs} == {900, 7, 21, 66}


PRODUCTS = {
    "big": BIG,
    "f32": BIG | {"dtype": "f32"},
    "short": {"m": 16, "n": 4096, "k": 300},
    "residual": BIG | {"residual": True, "bias": True},
    "batch": BIG | {"batch": 8},
}


def test_what_is_listed_is_what_the_product_needs_and_passes_the_librarys_check(tmp_path: Path, stub: Path) -> None:
    found = ask(tmp_path, stub, "--limit", "5000", **PRODUCTS)
    configs = {name: one["configs"] for name, one in found.items()}
    assert 0 < found["big"]["passed"] < found["big"]["checked"] <= 12_000
    for config in configs["big"][1:]:
        assert not (config["ALGO"] == 66 and config["CLUSTER"] == 0)
        assert not (config["TILE"] == 23 and config["STAGES"] == 36)
        assert config["ALGO"] == 21 or (config["SPLITK"], config["SWIZZLE"], config["CUSTOM"]) == (1, 0, 0)
    for name, schemes in (("big", {0, 2}), ("f32", {0, 1, 2})):  # sums of parts are kept in float
        split = [c for c in configs[name] if c["ALGO"] == 21]
        assert {c["REDUCTION"] for c in split} == schemes
        assert all((c["SPLITK"] > 1) == (c["REDUCTION"] > 0) for c in split)
    assert {c["SPLITK"] for c in configs["short"]} == {1, 2}
    algorithms = {name: {c["ALGO"] for c in rows} for name, rows in configs.items()}
    assert algorithms["big"] == {900, 7, 21, 66}
    assert algorithms["residual"] == algorithms["batch"] == {900, 21, 66}  # 7 can do neither


def test_what_the_librarys_own_list_names_comes_first(tmp_path: Path) -> None:
    """Algorithms that it does not take itself wait behind those that it does, though they be as good by their tiles."""
    for named, other in ((21, 66), (66, 21)):
        folder = with_cublaslt(tmp_path / str(named), f"-DNAMED={named}")
        own, *rest = ask(tmp_path, folder, "--limit", "60", big=BIG)["big"]["configs"]
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
