"""Functions of the author's: the source around them, what they are passed, and that it compiles and runs."""

import ctypes
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from authors import FIELDS, HEAD, OnHost, project, rendered
from nvcc_sources import MISSING
from places import GOLDEN

from aot_tune.compile import Object, Variant
from aot_tune.compile.diagnostics import first_error
from aot_tune.compile.nvcc import NvccToolchain
from aot_tune.compile.object_files import public_functions
from aot_tune.compile.toolchain import target_by_name
from aot_tune.support.errors import SpecError

SCALE = """
template <typename T, int PER_THREAD>
__global__ void scale(T* out, const T* x, int64_t stride, int width, float factor, bool negate) {
  for (int i = threadIdx.x * PER_THREAD; i < width; i += THREADS * PER_THREAD)
    for (int j = i; j < i + PER_THREAD && j < width; ++j)
      out[blockIdx.x * width + j] = x[blockIdx.x * stride + j] * (negate ? -factor : factor);
}
"""
FUNCTION = """CudaFunction(
    "csrc/own.cu:scale",
    {"stride": stride("x", 0), "width": D, "negate": False},
    grid=R, block=parameter("THREADS"), shared=R * parameter("BYTES"),
    template={"T": DTypeOf("x")},
)"""
NAMES = '"THREADS PER_THREAD BYTES"'
KERNELS = f"""(
    Kernel("scaled", function={FUNCTION}, listed=table({NAMES}, (8, 1, 1024), (4, 2, 1024), (8, 1, 512))),
    Kernel("generic", function={FUNCTION}, listed=table({NAMES}, (8, 1, 1024)), generic=True),
)"""
SPLIT = """
struct Sizes { int rows, columns; struct { float factor; } more; };
__global__ void partial(const float* x, float* parts, unsigned* visits, Sizes sizes, const float* nothing) {
  const int r = blockIdx.x, s = blockIdx.y;
  if (threadIdx.x != 0 || nothing != nullptr) return;
  const float* row = x + r * sizes.columns;
  for (int c = s; c < sizes.columns; c += SPLIT) parts[(s * sizes.rows + r) * sizes.columns + c] = row[c];
  visits[r] += 1;
}
__global__ void combine(const float* parts, const unsigned* visits, float* out, Sizes sizes) {
  const int r = blockIdx.x;
  for (int c = 0; c < sizes.columns; ++c) {
    const float part = parts[((c % SPLIT) * sizes.rows + r) * sizes.columns + c];
    out[r * sizes.columns + c] = visits[r] == SPLIT ? part * sizes.more.factor : -1;
  }
}
"""
SPLIT_HEAD = (
    HEAD
    + """
parts = Buffer("f32", parameter("SPLIT") * R * D)
visits = Buffer("u8", R * 4, zero=True)
sizes = Struct("Sizes", {"rows": R, "columns": D, "more.factor": "factor"})
"""
)
SPLIT_KERNELS = """(
    Kernel("generic", listed=table("SPLIT", (3,)), generic=True, function=(
        CudaFunction("csrc/own.cu:partial", ("x", parts, visits, sizes, None), grid=(R, parameter("SPLIT")), block=2,
                     shared=parameter("SPLIT") * 16),
        CudaFunction("csrc/own.cu:combine", (parts, visits, "out", sizes), grid=R),
    )),
)"""


def arrays(rows: int, columns: int, padded: int = 0) -> tuple[Any, Any]:
    x = np.random.default_rng(1).standard_normal((rows, columns + padded)).astype(np.float32)[:, :columns]
    return x, np.full((rows, columns), np.nan, np.float32)


def test_a_kernel_gets_its_arguments_its_macros_and_its_shape(tmp_path: Path) -> None:
    own = project(tmp_path, KERNELS, {"csrc/own.cu": SCALE})
    _, made = rendered(own, "scaled", "cuda-sm_90a", THREADS=4, PER_THREAD=2)
    assert "#define THREADS 4\n" in made.source
    assert "#define PER_THREAD" not in made.source  # it is the template's
    call = OnHost(tmp_path / "host", made)
    x, out = arrays(3, 21, padded=2)
    assert call((x, out), ctypes.c_float(2.5)) == 0
    np.testing.assert_array_equal(out, x * np.float32(2.5))
    assert call.noted == ["grid 3 1 1 block 4 1 1 shared 3072"]


def test_how_kernels_are_launched(tmp_path: Path) -> None:
    """Much shared memory is asked for once, an empty grid is not launched; in clusters, and all blocks at once."""
    kernels = KERNELS.replace("grid=R,", "grid=R, cluster=2, cooperative=True,")
    own = project(tmp_path, kernels, {"csrc/own.cu": SCALE})
    call = OnHost(tmp_path / "host", rendered(own, "generic", "cuda-ptx_80")[1])
    for rows in (0, 50, 50):
        assert call(arrays(rows, 3), ctypes.c_float(1)) == 0
    launch = "grid 50 1 1 block 8 1 1 shared 51200 cluster 2 cooperative"
    assert call.noted == ["allow 51200", launch, launch]


@pytest.mark.parametrize(("change", "value"), [("grid=R", "grid=(1, R * 65536)"), ('"width": D', '"width": D * 2**40')])
def test_what_does_not_fit_goes_to_the_next_variant(tmp_path: Path, change: str, value: str) -> None:
    own = project(tmp_path, KERNELS.replace(change, value), {"csrc/own.cu": SCALE})
    call = OnHost(tmp_path / "host", rendered(own, "generic", "cuda-ptx_80")[1])
    assert call(arrays(3, 4), ctypes.c_float(1)) == -100  # AOT_TUNE_UNAVAILABLE
    assert call.noted == []


def test_several_functions_share_buffers_and_pass_structs(tmp_path: Path) -> None:
    own = project(tmp_path, SPLIT_KERNELS, {"csrc/own.cu": SPLIT}, SPLIT_HEAD)
    made = rendered(own, "generic", "cuda-ptx_80")[1]
    code = Object(status="ok", resources={"registers": 8, "shared": 32, "text": 900})
    assert Variant(rendered=made, object=code).resources == {"registers": 8, "shared": 80, "dynamic_shared": 48}
    call = OnHost(tmp_path / "host", made)
    x, out = arrays(5, 11)
    assert call((x, out), ctypes.c_float(0.5)) == 0
    np.testing.assert_array_equal(out, x * np.float32(0.5))
    assert call.workspace == 768 + 256  # 3 x 5 x 11 floats and 5 counters, each in whole 256 bytes
    assert call.noted == ["zero 256", "grid 5 3 1 block 2 1 1 shared 48", "grid 5 1 1 block 1 1 1 shared 0"]


TRAITS = """
template <typename T, int WIDE> struct Traits { using Type = T; static constexpr int bytes = WIDE * sizeof(T); };
constexpr float ONE = 1;
template <typename Traits>
__global__ void times(typename Traits::Type* out, const float* x, int n, float factor = -2.5e-1f, float more = ONE + 1,
                      bool skip = false, const int* nothing = NULL) {
  for (int i = 0; i < n && !skip && !nothing; ++i) out[i] = x[i] * (factor * Traits::bytes + more);
}
"""
TIMES = """CudaFunction(
    "csrc/own.cu:times", {"n": R * D, "factor": -0.25},
    template={"Traits": Code("Traits<{T}, {WIDE}>", {"T": DTypeOf("x"), "WIDE": parameter("WIDE")})},
    shared=Code("Traits<float, {WIDE}>::bytes", {"WIDE": parameter("WIDE")}),
)"""


def test_traits_and_defaults_of_the_source(tmp_path: Path) -> None:
    """Types are made of what a candidate knows; what is not listed has the source's default."""
    kernels = f'(Kernel("generic", function={TIMES}, listed=table("WIDE", (3,)), generic=True),)'
    own = project(tmp_path, kernels, {"csrc/own.cu": TRAITS})
    call = OnHost(tmp_path / "host", rendered(own, "generic", "cuda-ptx_80")[1])
    x, out = arrays(2, 5)
    assert call((x, out), ctypes.c_float(7)) == 0
    np.testing.assert_array_equal(out, x * np.float32(-0.25 * 12 + 2))
    assert call.noted == ["grid 1 1 1 block 1 1 1 shared 12"]


KINDS = """
namespace ops {
enum class Mode : short { kPlain, kNegated };
struct Sizes { int extents[2]; Mode mode; const float* rows[1]; };
void run(const Sizes& sizes, float*& out, const float& factor, Mode mode, long long many, unsigned few) {
  const int n = sizes.extents[0] * sizes.extents[1];
  const float sign = sizes.mode == Mode::kNegated && mode == Mode::kPlain ? -1 : 1;
  for (int i = 0; i < n; ++i) out[i] = sizes.rows[0][i] * factor * sign + many + few;
}
}
"""


def test_arrays_of_a_struct_enumerations_and_references(tmp_path: Path) -> None:
    sizes = 'Struct("ops::Sizes", {"extents[0]": R, "extents[1]": D, "mode": 1, "rows[0]": "x"})'
    function = f'Launcher("csrc/own.cu:run", ({sizes}, "out", "factor", Code("ops::Mode::kPlain"), 2**40, 3))'
    own = project(tmp_path, f'(Kernel("generic", function={function}, generic=True),)', {"csrc/own.cu": KINDS})
    call = OnHost(tmp_path / "host", rendered(own, "generic", "cuda-ptx_80")[1])
    x, out = arrays(2, 5)
    assert call((x, out), ctypes.c_float(3)) == 0
    np.testing.assert_array_equal(out, x * np.float32(-3) + np.float32(2**40) + 3)


def test_the_source_of_a_small_kernel(tmp_path: Path) -> None:
    source = "__global__ void one(float* out, const float* x, int n, float factor) { out[0] = x[0] + n; }\n"
    function = 'CudaFunction("own.cu:one", {"n": R * D}, grid=ceildiv(R, 4), block=(4, 2))'
    own = project(tmp_path, f'(Kernel("generic", function={function}, generic=True),)', {"own.cu": source})
    _, made = rendered(own, "generic", "cuda-ptx_80")
    text = made.source[made.source.index(source) :].replace(made.symbol, "SYMBOL")
    if os.environ.get("UPDATE_GOLDEN"):
        (GOLDEN / "native_source.cu").write_text(text)
    assert text == (GOLDEN / "native_source.cu").read_text()


def test_what_is_compiled_in_must_be_known(tmp_path: Path) -> None:
    own = project(tmp_path, KERNELS.replace('"T": DTypeOf("x")', '"T": D'), {"csrc/own.cu": SCALE})
    with pytest.raises(SpecError, match=r"template argument 'T' is D, which only a call knows"):
        rendered(own, "generic", "cuda-ptx_80")


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernels", "source", "told"),
    [
        (
            KERNELS.replace(
                "512))", '512)), compile=CompileOptions(include_directories=("more",), definitions={"DEEP": 2})'
            ),
            f'#include "part.h"\nstatic_assert(PART == 1 && DEEP == 2);\n{SCALE}',
            "ok",
        ),
        (
            KERNELS.replace('"width": D', '"width": "x"'),
            SCALE,
            "scale: argument width is declared as another kind than what it takes",
        ),
        (KERNELS, SCALE.replace("negate ?", "negated ?"), "csrc/own.cu:6: error:"),
    ],
)
def test_what_nvcc_says(tmp_path: Path, kernels: str, source: str, told: str) -> None:
    """With the project's headers and macros; errors are of the author's lines and words."""
    own = project(tmp_path, kernels, {"csrc/own.cu": source, "more/part.h": "#define PART 1\n"})
    _, made = rendered(own, "scaled", "cuda-ptx_80", THREADS=8)
    (tmp_path / "out").mkdir()
    target = target_by_name("cuda-ptx_80")
    done = NvccToolchain().compile(made.source, target, tmp_path / "out" / "o.o", 120, made.compile)
    assert told in (done.status if done.status == "ok" else first_error(done.log, made.lines))
    if told == "ok":
        found = [i for i in done.includes if i.startswith(str(tmp_path)) and Path(i).is_file()]
        assert found == [str(tmp_path / "more/part.h")]
        _, other = rendered(own, "scaled", "cuda-ptx_80", BYTES=512)  # which only the launch reads
        again = NvccToolchain().compile(other.source, target, tmp_path / "out" / "other.o", 120, other.compile)
        assert again == msgspec.structs.replace(done, seconds=0.0)
        names = [f"{other.symbol}_{function}" for function in ("launch", "preload", "workspace")]
        assert public_functions(tmp_path / "out" / "other.o") == names
        assert (tmp_path / "out" / "other.o").read_bytes() != (tmp_path / "out" / "o.o").read_bytes()


SCALARS = '(Scalar("flag", "bool"), Scalar("small", "i8"), Scalar("seed", "u64"), Scalar("count", "u16"))'
TELL = """
template <typename T>
__global__ void tell(float* out, const T* x, bool flag, signed char small, long long seed, int count) {
  out[0] = flag ? 1 : 2;
  out[1] = small;
  out[2] = static_cast<float>(seed >> 60);
  out[3] = static_cast<float>(count + (x == nullptr));
}
"""
TELLS = (
    '(Kernel("generic", function=CudaFunction("own.cu:tell", {}, grid=1, block=1, template={"T": DTypeOf("x")}), '
    "generic=True),)"
)


def test_scalars_of_all_kinds_are_passed_or_left_to_the_next_variant(tmp_path: Path) -> None:
    """A number that a parameter's type does not hold is for another kernel."""
    fields = FIELDS.replace('(Scalar("factor"),)', SCALARS).replace("call.x * call.factor", "call.x")
    own = project(tmp_path, TELLS, {"own.cu": TELL}, fields=fields)
    call = OnHost(tmp_path / "host", rendered(own, "generic", "cuda-sm_90a")[1])
    for seed, status in ((2**63 - 1, 0), (2**63, -100)):
        out = np.zeros((1, 4), np.float32)
        scalars = (ctypes.c_bool(False), ctypes.c_int8(-7), ctypes.c_uint64(seed), ctypes.c_uint16(65535))
        assert call((np.zeros((1, 4), np.float32), out), *scalars) == status
        assert out[0].tolist() == ([0] * 4 if status else [2, -7, 7, 65535])
