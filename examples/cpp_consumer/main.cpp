// Multiplies two matrices with the tuned library, checks the result against a plain loop, and prints which
// kernel the library chose for these shapes.
#include <aot_tune/ops.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

// A row-major matrix and the view of it that the library takes.
struct Matrix {
  std::vector<float> values;
  int64_t shape[2];
  DLTensor view{};

  Matrix(int64_t rows, int64_t columns) : values(static_cast<size_t>(rows * columns)), shape{rows, columns} {
    view.data = values.data();
    view.device = {kDLCPU, 0};
    view.ndim = 2;
    view.dtype = {kDLFloat, 32, 1};
    view.shape = shape;  // strides stay NULL: row-major
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  float& at(int64_t i, int64_t j) { return values[static_cast<size_t>(i * shape[1] + j)]; }
};

// The greatest difference from the matrix product in double precision.
double error_of(Matrix& a, Matrix& b, Matrix& c) {
  double worst = 0;
  for (int64_t i = 0; i < c.shape[0]; ++i) {
    for (int64_t j = 0; j < c.shape[1]; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < a.shape[1]; ++k) sum += static_cast<double>(a.at(i, k)) * b.at(k, j);
      const double error = std::fabs(sum - c.at(i, j));
      if (!(error <= worst)) worst = error;  // also true for NaN
    }
  }
  return worst;
}

}  // namespace

int main() {
  Matrix a(16, 256), b(256, 100), c(16, 100);
  for (size_t i = 0; i < a.values.size(); ++i) a.values[i] = static_cast<float>(i % 17) / 16 - 0.5f;
  for (size_t i = 0; i < b.values.size(); ++i) b.values[i] = static_cast<float>(i % 13) / 12 - 0.5f;

  const int32_t none = AOT_TUNE_GEMM_ACTIVATION_NONE, ieee = AOT_TUNE_GEMM_MATH_IEEE;
  if (aot_tune_gemm(&a.view, &b.view, nullptr, nullptr, &c.view, none, ieee, nullptr) != AOT_TUNE_OK) {
    std::fprintf(stderr, "%s\n", aot_tune_last_error());
    return 1;
  }
  const double error = error_of(a, b, c);
  std::printf("16 x 100 x 256: greatest error %.2g\n", error);

  char text[4096];
  aot_tune_gemm_explain(&a.view, &b.view, nullptr, nullptr, &c.view, none, ieee, nullptr, text, sizeof text);
  std::fputs(text, stdout);

  // What does not fit is refused before anything is written.
  Matrix wrong(255, 100);
  if (aot_tune_gemm(&a.view, &wrong.view, nullptr, nullptr, &c.view, none, ieee, nullptr) !=
      AOT_TUNE_ERROR_SHAPE)
    return 1;
  std::printf("refused: %s\n", aot_tune_last_error());
  return error < 1e-3 ? 0 : 1;
}
