"""The runtime and Python agree on the normal form of strides, and that form is harmless."""

import ctypes
import itertools
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot_tune.spec.tensors import canonical_strides, stride_class
from aot_tune.support.installed_paths import RUNTIME

SHIM = """
#include "check.cpp"
namespace aot_tune {
int32_t fail(int32_t code, const char*, ...) noexcept { return code; }
void Text::add(const char*, ...) noexcept {}
}
extern "C" int64_t shim(int rank, int64_t* shape, int64_t* strides) {
  DLTensor tensor{};
  tensor.ndim = rank;
  tensor.shape = shape;
  tensor.strides = strides;
  aot_tune::canonical_strides(shape, rank, strides);
  return aot_tune::stride_class(tensor);
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("shim")
    (folder / "shim.cpp").write_text(SHIM)
    runtime = RUNTIME
    flags = ["-std=c++17", "-shared", "-fPIC", f"-I{runtime}", f"-I{runtime / 'include'}"]
    subprocess.run(["g++", *flags, str(folder / "shim.cpp"), "-o", str(folder / "shim.so")], check=True)
    library = ctypes.CDLL(str(folder / "shim.so"))
    library.shim.restype = ctypes.c_int64
    return library


axes = st.lists(st.tuples(st.integers(1, 4), st.integers(-40, 40)), min_size=1, max_size=6)


@given(axes)
def test_runtime_and_python_agree(shim: ctypes.CDLL, layout: list[tuple[int, int]]) -> None:
    shape, strides = [e for e, _ in layout], [s for _, s in layout]
    array = ctypes.c_int64 * len(layout)
    in_place = array(*strides)
    code = shim.shim(len(layout), array(*shape), in_place)
    assert tuple(in_place) == canonical_strides(shape, strides)
    assert code == stride_class(in_place)


@given(axes)
def test_no_element_moves(layout: list[tuple[int, int]]) -> None:
    shape, strides = [e for e, _ in layout], [s for _, s in layout]
    moved = canonical_strides(shape, strides)

    def addresses(steps: Sequence[int]) -> list[int]:
        return [sum(i * s for i, s in zip(at, steps, strict=True)) for at in itertools.product(*map(range, shape))]

    assert addresses(moved) == addresses(strides)
    assert canonical_strides(shape, moved) == moved
