// Multiplies two matrices with the tuned library, checks the result against a plain loop, and prints which
// kernel the library chose for these shapes.
#include <aot_tune/ops.h>

#include <aot_tune/tensor.hpp>
#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr int64_t kRows = 16, kColumns = 100, kInner = 256;

// The greatest difference from the matrix product in double precision.
double error_of(const std::vector<float>& a, const std::vector<float>& b, const std::vector<float>& c) {
  double worst = 0;
  for (size_t i = 0; i < kRows; ++i) {
    for (size_t j = 0; j < kColumns; ++j) {
      double sum = 0;
      for (size_t k = 0; k < kInner; ++k) sum += static_cast<double>(a[i * kInner + k]) * b[k * kColumns + j];
      const double error = std::fabs(sum - c[i * kColumns + j]);
      if (!(error <= worst)) worst = error;  // also true for NaN
    }
  }
  return worst;
}

}  // namespace

int main() {
  std::vector<float> a(kRows * kInner), b(kInner * kColumns), c(kRows * kColumns);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 17) / 16 - 0.5f;
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i % 13) / 12 - 0.5f;

  // Row-major views of the vectors. A vector that is too small for its extents is refused here.
  const aot_tune::Tensor left = aot_tune::contiguous(a, {kRows, kInner});
  const aot_tune::Tensor right = aot_tune::contiguous(b, {kInner, kColumns});
  const aot_tune::Tensor out = aot_tune::contiguous(c, {kRows, kColumns});
  const int32_t none = AOT_TUNE_GEMM_ACTIVATION_NONE, ieee = AOT_TUNE_GEMM_MATH_IEEE;
  aot_tune::check(aot_tune_gemm(left, right, nullptr, nullptr, out, none, ieee, nullptr),
                  aot_tune_last_error);
  const double error = error_of(a, b, c);
  std::printf("16 x 100 x 256: greatest error %.2g\n", error);

  char text[4096];
  aot_tune_gemm_explain(left, right, nullptr, nullptr, out, none, ieee, nullptr, text, sizeof text);
  std::fputs(text, stdout);

  try {  // a shape that does not fit is refused before anything is written
    const aot_tune::Tensor wrong = right.transposed(0, 1);
    aot_tune::check(aot_tune_gemm(left, wrong, nullptr, nullptr, out, none, ieee, nullptr),
                    aot_tune_last_error);
    return 1;
  } catch (const aot_tune::Error& refused) {
    std::printf("refused: %s\n", refused.what());
    if (refused.status() != AOT_TUNE_ERROR_SHAPE) return 1;
  }
  return error < 1e-3 ? 0 : 1;
}
