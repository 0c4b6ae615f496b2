"""TF32 products by f16: factors as halves where those hold them, and the product of others, on the host."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from gemm_on_host import HOPPER, OPERATORS, TARGET, build_for_host, by_columns, render, run_check

from aot_tune.render import Rendered
from aot_tune.spec import all_of, problem

GEMM = OPERATORS["gemm"]
KERNEL = GEMM.kernel("cutlass_tf32_halves")

# Where CUTLASS stands on a GPU: the same sums from the same halves and powers of two, one after the other.
PRODUCT = """
static void multiply_all(Arguments args, Halves halves) {
  wait_for_earlier_kernels();
  if (!all_fit(halves) || std::getenv("WHOLE") != nullptr) {
    whole::multiply_tiles(args, host::shared_memory());
    return;
  }
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
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


def for_host(text: str, faults: tuple[tuple[str, str], ...] = ()) -> str:
    """What is not CUTLASS's, for the host; a fault is chosen by FAULT in the environment."""
    own, found, rest = text.partition("#include <cuda.h>")
    assert found, "the part before CUTLASS's headers ends elsewhere"
    (packed,) = set(re.findall(r"const Arguments args = (\{.*?\});", rest))
    (symbol,) = set(re.findall(r"(aot_tune_gemm_\w+)_launch", rest))
    own = own.replace("#define CUTLASS_ENABLE_GDC_FOR_SM90", "//")
    before, start, kernel = own.partition("namespace {\n\n// -- factors as halves")
    parts = ['#include "halves.h"\n', before]
    functions = f"""
static Arguments arguments_of({SIGNATURE}) {{ return {packed}; }}
static int workspace_of({SIGNATURE}, size_t* size) {{
  *size = Halves(arguments_of(a, b, bias, residual, out, activation, math)).bytes();
  return 0;
}}
static int launch({SIGNATURE}, void* workspace, size_t, void*) {{
  const Arguments args = arguments_of(a, b, bias, residual, out, activation, math);
  const Halves halves(args, workspace);
  const dim3 rows(static_cast<unsigned>(args.dim_M + args.dim_N));
  launch_kernel(halve, rows, HALVING, 0, 1, true, nullptr, args, halves);
  return launch_kernel(multiply_all, dim3(3), whole::THREADS, whole::SHARED_BYTES, 1, true, nullptr, args, halves);
}}
"""
    right = start + kernel + PRODUCT + functions
    for i, (old, new) in enumerate((("", ""), *faults)):
        assert not old or right.count(old) == 1, (old, right.count(old))
        parts.append(f"namespace fault_{i} {{\n{right.replace(old, new) if old else right}}}\n")
    for name in ("workspace_of", "launch"):
        all_of_them = ", ".join(f"fault_{i}::{name}" for i in range(len(faults) + 1))
        exported = f"{symbol}_{name.partition('_')[0]}"
        parts.append(f"decltype(&fault_0::{name}) const {name}s[] = {{{all_of_them}}};\n")
        parts.append(f'const auto {exported} = {name}s[std::atoi(std::getenv("FAULT") ?: "0")];\n')
    return "".join(parts)


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_for_host(tmp_path_factory.mktemp("product"), rendered(), for_host)


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


FAULTS = (
    ("if (range.most == 0) return 127;", ""),
    ("largest > FARTHEST) return UNFIT;", "largest > 127) return UNFIT;"),
    ("largest < -FARTHEST ||", ""),
    ("  if (range.least_less_one + 1 < static_cast<uint32_t>(least + 127) << 23) return UNFIT;\n", ""),
    ("least_less_one = min(least_less_one, size - 1);", "least_less_one = min(least_less_one, size);"),
    ("constexpr int LARGEST = 14;", "constexpr int LARGEST = 16;"),
    ("constexpr int LARGEST = 14;", "constexpr int LARGEST = 8;"),
    ("    range.most = max(range.most, most[i]);\n", ""),
    ("(of_a ? to.of_rows : to.of_columns)[row]", "to.of_rows[row]"),
    ("to.of_rows[{M} + thread] = 1.0f;", "to.of_rows[{M} + thread] = 0.0f;"),
    (": block - {M};", ": block;"),
    ("i < halves.count / 4;", "i < halves.count / 8;"),
    ("  wait_for_earlier_kernels();\n  let_later_kernels_start();\n", ""),
    ("for (int piece = thread + KEPT * HALVING; piece < pieces; piece += HALVING) range.take(from[piece]);", ""),
)


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    source = rendered()

    def build(fault: int) -> Path:
        folder = tmp_path_factory.mktemp("halves")
        faults = [tuple(part.replace("{M}", "args.dim_M") for part in f) for f in FAULTS]

        def change(text: str) -> str:
            if fault:
                old, new = faults[fault - 1]
                assert text.count(old) == 1, (old, text.count(old))
                text = text.replace(old, new)
            return for_host(text).replace("}\ndecltype", "}\nusing namespace fault_0;\ndecltype", 1)

        return build_for_host(folder, source, change, "check_halves.cpp")

    return build


@pytest.mark.parametrize("fault", range(len(FAULTS) + 1))
def test_halves_are_the_floats(fault: int, halves: Callable[[int], Path]) -> None:
    """Or the row does not fit, and the whole product is by TF32; a fault in the kernel is noticed."""
    program = halves(fault)
    found = ""
    for shape in ((29, 16, 64), (14, 40, 8200)):
        done = subprocess.run(
            [str(program), *map(str, shape)], capture_output=True, text=True, check=False, timeout=120
        )
        found += done.stdout + done.stderr + (f"exit {done.returncode}" if done.returncode else "")
    assert (found != "") == (fault > 0), found


def test_it_is_taken_for_tf32_alone() -> None:
    for math, taken in (("ieee", False), ("tf32", True)):
        call = problem(M=512, N=512, K=512, dtypes={"T": "f32"}, order={"b": (1, 0)}, attributes={"math": math})
        assert all_of(KERNEL.requires, GEMM.facts(call)) == taken


def test_elsewhere_there_is_none() -> None:
    assert len(list(KERNEL.configs(HOPPER.facts))) == len(KERNEL.order)
    assert not any(list(KERNEL.configs(t.facts)) for name, t in TARGET.items() if name != HOPPER.name)
