"""TF32 products by f16: factors as halves where those hold them, and the product of others, on the host."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from gemm_on_host import HOPPER, OPERATORS, TARGET, build_for_host, by_columns, render, run_check, with_faults

from aot_tune.render import Rendered
from aot_tune.spec import all_of, problem

pytestmark = pytest.mark.slow

GEMM = OPERATORS["gemm"]
KERNEL = GEMM.kernel("cutlass_tf32_halves")

# Each tile is made by one block, once.
FIRST = """
static void check_is_first(int64_t tile) {
  static std::set<int64_t> made;
  if (threadIdx.x == 0 && !made.insert(tile).second) host::fail("a tile is made twice");
}
"""
# Where CUTLASS stands on a GPU: the same sums from the same halves and powers of two, one after the other.
PRODUCT = """
static void multiply_all(Arguments args, Halves halves) {
  wait_for_earlier_kernels();
  if (!all_fit(halves) || std::getenv("WHOLE") != nullptr) {
    whole::multiply_tiles(args, host::shared_memory());
    return;
  }
  if (threadIdx.x != 0 || blockIdx.x != 0 || blockIdx.y != 0) return;
  for (int64_t i = 0; i < args.dim_M; ++i)
    for (int64_t j = 0; j < args.dim_N; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < args.dim_K; ++k)
        sum += __half2float(halves.a[i * args.dim_K + k]) * __half2float(halves.b[j * args.dim_K + k]);
      sum *= halves.of_rows[i] * halves.of_columns[j];
      if (args.bias != nullptr) sum += args.bias[j];
      if (args.activation == 1 && sum < 0) sum = 0;
      if (args.residual != nullptr) sum += args.residual[i * args.stride_residual[0] + j];
      args.out[i * args.stride_out[0] + j] = sum;
    }
}
"""
SIGNATURE = (
    "const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, "
    "int32_t activation, int32_t math"
)


def rendered(target: str = HOPPER.name) -> Rendered:
    return render(GEMM, KERNEL, TARGET[target], {"TN": 256})


def for_host(text: str, faults: tuple[tuple[str, str], ...] = (), check: str = "") -> str:
    """What is not CUTLASS's, for the host; a fault is chosen by FAULT in the environment.

    What is a `check` stands behind each of them.
    """
    own, found, rest = text.partition("#include <cuda.h>")
    assert found, "the part before CUTLASS's headers ends elsewhere"
    (packed,) = set(re.findall(r"const Arguments args = (\{.*?\});", rest))
    (symbol,) = set(re.findall(r"(aot_tune_gemm_\w+)_launch", rest))
    own = own.replace("#define CUTLASS_ENABLE_GDC_FOR_SM90", "//")
    before, start, kernel = own.partition("namespace {\n\n// -- factors as halves")
    functions = f"""
static Arguments arguments_of({SIGNATURE}) {{ return {packed}; }}
static int {symbol}_workspace({SIGNATURE}, size_t* size) {{
  *size = Halves(arguments_of(a, b, bias, residual, out, activation, math)).bytes;
  return 0;
}}
static int {symbol}_launch({SIGNATURE}, void* workspace, size_t, void*) {{
  const Arguments args = arguments_of(a, b, bias, residual, out, activation, math);
  const Halves halves(args, workspace);
  const dim3 rows(static_cast<unsigned>(args.dim_M + args.dim_N));
  launch_kernel(halve, rows, HALVING, 0, 1, true, nullptr, args, halves);
  return launch_kernel(multiply_all, dim3(2, 3), whole::THREADS, whole::SHARED_BYTES, 1, true, nullptr, args, halves);
}}
"""
    tile = "    multiply_tile(args, shared, tile);"
    assert kernel.count(tile) == 1
    kernel = kernel.replace(tile, f"    check_is_first(tile);\n{tile}")
    own = start + kernel + PRODUCT + functions + check
    return f'#include "halves.h"\n#include <set>\n{before}{FIRST}' + with_faults(own, symbol, faults)


WRONG = (
    ("blockIdx.y * int64_t{gridDim.x} + blockIdx.x; tile < tiles;", "blockIdx.x; tile < tiles;"),
    ("    __syncthreads();  // the next one's factors", "    // the next one's factors"),
)


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_for_host(tmp_path_factory.mktemp("product"), rendered(), lambda text: for_host(text, WRONG))


@pytest.mark.parametrize("shape", [(130, 200, 136), (97, 8, 320), (8, 392, 8)])
@pytest.mark.parametrize("whole", [False, True])
def test_products_are_right(
    whole: bool, shape: tuple[int, int, int], product: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By halves, of factors of 12 bits rounded to the nearest 11; and, for all tiles and their edges, by TF32."""
    monkeypatch.setenv(*(("WHOLE", "1") if whole else ("FINE", "tf32")))
    strides = by_columns(*shape)
    for haste in (False, True):
        assert run_check(product, 1, shape, strides, epilogue=True, haste=haste) == ""
        assert run_check(product, 1, shape, strides, epilogue=False, haste=haste) == ""


@pytest.mark.parametrize("fault", range(len(WRONG) + 1))
def test_tiles_are_made_once_and_one_after_the_other(
    fault: int, product: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHOLE", "1")
    monkeypatch.setenv("FAULT", str(fault))
    shape = (200, 800, 72)
    found = "".join(run_check(product, 1, shape, by_columns(*shape), epilogue=True, haste=h) for h in (False, True))
    assert (found != "") == (fault > 0), found


FAULTS = (
    ("if (most == 0) return 127;", ""),
    ("largest > FARTHEST ?", "largest > 127 ?"),
    ("largest > FARTHEST ?", "largest > FARTHEST + 1 ?"),
    ("largest < -FARTHEST ||", ""),
    ("constexpr int LARGEST = 14;", "constexpr int LARGEST = 16;"),
    ("constexpr int LARGEST = 14;", "constexpr int LARGEST = 13;"),
    ("constexpr int LEAST = -14;", "constexpr int LEAST = -15;"),
    ("constexpr int LEAST = -14;", "constexpr int LEAST = -13;"),
    ("constexpr int ONE_IN = 32;", "constexpr int ONE_IN = 30;"),
    ("  if (int64_t{lossy} * ONE_IN > {K}) back = UNFIT;\n", ""),
    ("size_of(x) - 1 < bound;", "size_of(x) < bound;"),
    ("    count(v.y);\n", ""),
    ("max(size_of(v.z), size_of(v.w))", "size_of(v.z)"),
    ("  most = __reduce_max_sync(0xffffffffu, most);\n", ""),
    ("most = max(most, largest[i]);", ";"),
    ("__reduce_add_sync(0xffffffffu, scale.small)", "scale.small"),
    ("lossy += small[i];", "lossy = small[i];"),
    ("(of_a ? to.of_rows : to.of_columns)[row]", "to.of_rows[row]"),
    ("*padding = 1.0f;", "*padding = 0.0f;"),
    (": block - {M};", ": block;"),
    ("i += static_cast<int>(blockDim.x)", "i = halves.count"),
    ("four.z == 0.0f || four.w == 0.0f", "four.z == 0.0f"),
    ("  wait_for_earlier_kernels();\n  let_later_kernels_start();\n", ""),
    ("piece += HALVING) most = max(most, largest_of(from[piece]));", "piece += HALVING) ;"),
    ("      halves[piece] = scale.halve(four);\n", ""),
)


MAIN = """
int main(int, char** argv) {
  static int (*const checks[])(char**) = {%s};
  return checks[std::atoi(std::getenv("FAULT"))](argv);
}
"""


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that checks the kernel, or the one with the fault of the number FAULT, each in its own namespace."""
    wrong = tuple((re.sub(r"\{([MK])\}", r"args.dim_\1", old), new) for old, new in FAULTS)
    checks = ", ".join(f"fault_{i}::check_halves" for i in range(len(FAULTS) + 1))

    def change(text: str) -> str:
        return for_host(text, wrong, '#include "check_halves.cpp"\n') + MAIN % checks

    return build_for_host(tmp_path_factory.mktemp("halves"), rendered(), change, "")


@pytest.mark.parametrize("fault", range(len(FAULTS) + 1))
def test_halves_are_the_floats(fault: int, halves: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the row does not fit, and the whole product is by TF32; a fault in the kernel is noticed."""
    monkeypatch.setenv("FAULT", str(fault))
    found = ""
    for shape in ((29, 16, 64), (14, 40, 8200), (201, 40, 320)):
        done = subprocess.run([str(halves), *map(str, shape)], capture_output=True, text=True, check=False, timeout=120)
        found += done.stdout + done.stderr + (f"exit {done.returncode}" if done.returncode else "")
    assert (found != "") == (fault > 0), found


def test_it_is_taken_for_tf32_alone() -> None:
    for math, taken in (("ieee", False), ("tf32", True)):
        call = problem(M=512, N=512, K=512, dtypes={"T": "f32"}, order={"b": (1, 0)}, attributes={"math": math})
        assert all_of(KERNEL.requires, GEMM.facts(call)) == taken


def test_it_is_tried_where_products_are_large() -> None:
    """Of the workload's TF32 products those of 1024 rows and more: below, making halves costs more than f16 saves."""
    calls = [p for p in GEMM.workload_for("cuda") if p.attributes.get("math") == "tf32"]
    worth = {p.dims["M"] for p in calls if all_of(KERNEL.worthwhile, GEMM.facts(p))}
    assert worth == {1024, 4096}
    assert {p.dims["M"] for p in calls} == {1, 16, 64, 256} | worth


def test_elsewhere_there_is_none() -> None:
    assert len(list(KERNEL.configs(HOPPER.facts))) == len(KERNEL.order)
    assert not any(list(KERNEL.configs(t.facts)) for name, t in TARGET.items() if name != HOPPER.name)
