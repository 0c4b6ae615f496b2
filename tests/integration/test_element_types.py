"""Element types and scalars that few operators have: declared, verified, linked and called from Python and C."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import shutil
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from element_types import write_operators
from project import Project

torch: Any = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A library of the three operators, built once."""
    made = Project.make(
        tmp_path_factory.mktemp("kernels") / "project",
        arguments="bundled OPERATORS quantise rescale mix MODULE kernels",
    )
    shutil.rmtree(made.templates / "twice")
    write_operators(made.templates)
    made.cmake()
    said = made.make_all()
    assert "variants verified inside the library" in said, said
    return made


@pytest.fixture(scope="module")
def module(project: Project) -> ModuleType:
    """Its Python module."""
    loader = importlib.machinery.ExtensionFileLoader("kernels", str(project.folder / "cmake" / "kernels.abi3.so"))
    spec = importlib.util.spec_from_loader("kernels", loader)
    assert spec is not None
    found = importlib.util.module_from_spec(spec)
    loader.exec_module(found)
    return found


def test_quantised_to_eight_bits(module: ModuleType) -> None:
    x = torch.randn(4099) * 100
    x[:5] = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -1e9])
    q = module.quantise(x, scale=0.5)
    assert q.dtype == torch.float8_e4m3fn
    want = (x / 0.5).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(q.view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.float8_e4m3fn])
def test_eight_bits_in_and_out(module: ModuleType, dtype: Any) -> None:
    patterns = torch.arange(256, dtype=torch.uint8).view(dtype)
    y = module.rescale(patterns, factor=0.75)
    largest = torch.finfo(dtype).max
    want = (patterns.float() * 0.75).clamp(-largest, largest).to(dtype)
    assert y.dtype == dtype
    assert torch.equal(y.float(), want.float()) or _same_but_nan(y, want)
    assert module.explain("rescale", patterns, factor=1.0)["dtypes"] == {
        "T": {torch.float8_e5m2: "f8e5m2", torch.float8_e4m3fn: "f8e4m3"}[dtype]
    }


def _same_but_nan(got: Any, want: Any) -> bool:
    got, want = got.float(), want.float()
    return bool(((got == want) | (got.isnan() & want.isnan())).all())


def test_numpy_passes_what_it_has_and_takes_results_elsewhere(module: ModuleType) -> None:
    x = np.linspace(-300, 300, 257, dtype=np.float32)
    q = torch.empty(257, dtype=torch.float8_e4m3fn)
    assert module.quantise(x, scale=1, q=q) is q
    assert _same_but_nan(q, torch.from_numpy(x).to(torch.float8_e4m3fn))
    with pytest.raises(module.ArgumentTypeError, match="output 'q' cannot be made for arrays of this kind; pass q="):
        module.quantise(x)
    with pytest.raises(module.ArgumentTypeError, match="tensor 'q' has dtype u8, wanted f8e4m3"):
        module.quantise(x, q=np.empty(257, np.uint8))
    with pytest.raises(module.ArgumentTypeError, match="tensor 'x' has dtype f8e4m3, wanted f32"):
        module.quantise(q, q=q)


@pytest.mark.parametrize("mixes", [True, False])
def test_integers_of_64_bits_are_whole(module: ModuleType, mixes: bool) -> None:
    draw = np.random.default_rng(3)
    keys = draw.integers(0, 2**64, 1001, dtype=np.uint64)
    added = draw.integers(-(2**15), 2**15, 1001).astype(np.int16)
    mixed = (keys ^ (keys >> 33)) * np.uint64(0xFF51AFD7ED558CCD) if mixes else keys
    want = mixed + added.astype(np.uint64) + np.uint64(7)
    out, low = module.mix(keys, added, mixes=mixes, seed=7)
    assert (out.dtype, low.dtype) == (np.uint64, np.uint16)
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(low, (mixed >> np.uint64(7)).astype(np.uint16))
    theirs, _ = module.mix(torch.from_numpy(keys), torch.from_numpy(added), mixes=mixes, seed=7)
    assert theirs.dtype == torch.uint64
    np.testing.assert_array_equal(theirs.numpy(), want)


def test_a_scalar_beyond_its_range(module: ModuleType) -> None:
    keys, added = np.zeros(3, np.uint64), np.zeros(3, np.int16)
    with pytest.raises(OverflowError, match="mix: 'seed' is 256, wanted a whole number of 8 bits, from 0 to 255"):
        module.mix(keys, added, seed=256)
    with pytest.raises(module.ArgumentTypeError, match="mix: 'mixes' is 'no', wanted True or False"):
        module.mix(keys, added, mixes="no")
    with pytest.raises(module.ArgumentTypeError, match="tensor 'added' has dtype u16, wanted i16"):
        module.mix(keys, added.view(np.uint16))


def test_the_manifest_names_them(project: Project) -> None:
    (found,) = (o for o in project.manifest("cmake/aot_tune/tiny")["operators"] if o["name"] == "rescale")
    assert {str(v.get("dtypes", "")) for v in found["variants"]} >= {"{'T': 'f8e5m2'}"}, found["variants"][0]
