// A matrix product with bias and ReLU through the C functions of the installed operators; no Python is
// involved.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "aot_tune/ops.h"

namespace {

// A row-major tensor of floats that owns its memory.
struct Tensor {
  explicit Tensor(std::vector<int64_t> extents, float value = 0) : shape(std::move(extents)) {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    data.assign(static_cast<size_t>(count), value);
    view.data = data.data();
    view.device = {kDLCPU, 0};
    view.ndim = static_cast<int32_t>(shape.size());
    view.dtype = {kDLFloat, 32, 1};
    view.shape = shape.data();
    view.strides = nullptr;  // row-major
    view.byte_offset = 0;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  std::vector<int64_t> shape;
  std::vector<float> data;
  DLTensor view{};
};

}  // namespace

int main() {
  const int64_t m = 16, n = 48, k = 100;
  Tensor a({m, k}), b({k, n}), bias({n}, 0.5F), out({m, n});
  for (size_t i = 0; i < a.data.size(); ++i) a.data[i] = static_cast<float>(i % 7) - 3;
  for (size_t i = 0; i < b.data.size(); ++i) b.data[i] = static_cast<float>(i % 5) - 2;

  if (aot_tune_gemm(&a.view, &b.view, &bias.view, nullptr, &out.view, AOT_TUNE_GEMM_ACTIVATION_RELU,
                    nullptr) != AOT_TUNE_OK) {
    std::fprintf(stderr, "%s\n", aot_tune_last_error());
    return 1;
  }
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float want = 0.5F;
      for (int64_t l = 0; l < k; ++l) want += a.data[i * k + l] * b.data[l * n + j];
      want = want > 0 ? want : 0;
      if (std::fabs(out.data[i * n + j] - want) > 1e-3F) {
        std::fprintf(stderr, "out[%ld, %ld] is %g, not %g\n", long(i), long(j), out.data[i * n + j], want);
        return 1;
      }
    }
  }

  char text[4096];
  aot_tune_gemm_explain(&a.view, &b.view, &bias.view, nullptr, &out.view, 0, text, sizeof text);
  std::printf("correct; the call is explained so:\n%s", text);

  Tensor wrong({m, k + 1});
  const int32_t status = aot_tune_gemm(&wrong.view, &b.view, nullptr, nullptr, &out.view, 0, nullptr);
  std::printf("a wrong call returns %d: %s\n", status, aot_tune_last_error());
  return status == AOT_TUNE_ERROR_SHAPE ? 0 : 1;
}
