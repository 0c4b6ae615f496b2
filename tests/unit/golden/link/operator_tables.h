// The operators of libaot_tune_ops.so. Written by aot_tune, for the library, its Python module and XLA's handlers.
#ifndef AOT_TUNE_OPERATOR_TABLES_H_
#define AOT_TUNE_OPERATOR_TABLES_H_

#include "arithmetic.h"
#include "aot_tune/ops.h"
#include "tables.h"

namespace aot_tune {
namespace {

namespace operator_gemm {

constexpr const char* kChoices_activation[] = {"none", "relu"};
constexpr TensorInfo kTensors[] = {
    {"a", "[M, K]", "f32", {2, 32, "float32"}, 2, -1, false, false, false, false, -1, true},
    {"b", "[K, N]", "f32", {2, 32, "float32"}, 2, -1, false, false},
    {"bias", "[N]", "f32", {2, 32, "float32"}, 1, -1, false, true},
    {"residual", "[M, N]", "f32", {2, 32, "float32"}, 2, -1, false, true, false, false, -1, true},
    {"out", "[M, N]", "f32", {2, 32, "float32"}, 2, -1, true, false, false, false, -1, true},
};
constexpr AttributeInfo kAttributes[] = {
    {"activation", kChoices_activation, 2},
};
constexpr const char* kDims[] = {
    "M",
    "N",
    "K",
};

inline void shape(int tensor, const int64_t* dims, int64_t* extents) {
  (void)dims;
  switch (tensor) {
    case 0:
      extents[0] = dims[0];
      extents[1] = dims[2];
      break;
    case 1:
      extents[0] = dims[2];
      extents[1] = dims[1];
      break;
    case 2:
      extents[0] = dims[1];
      break;
    case 3:
      extents[0] = dims[0];
      extents[1] = dims[1];
      break;
    case 4:
      extents[0] = dims[0];
      extents[1] = dims[1];
      break;
    default:
      break;
  }
}

constexpr OperatorInfo kOperator = {"gemm", kTensors, 5, nullptr, 0, kAttributes, 1, kDims, 3, nullptr, 0, 0x3, 0x0, shape};

// Passes arguments to a function of C, followed by more.
struct Pass {
  template <typename Function, typename... More>
  __attribute__((always_inline)) static auto to(Function function, Tensors t, const Scalar* s, const int32_t* c, More... more) {
    (void)s;
    (void)c;
    return function(t[0], t[1], t[2], t[3], t[4], c[0], more...);
  }
};

constexpr Operator kCalls = {kOperator, by_arrays<Pass, aot_tune_gemm>,
                             by_arrays<Pass, aot_tune_gemm_explain>,
                             by_arrays<Pass, aot_tune_gemm_is_tuned>,
                             by_arrays<Pass, aot_tune_gemm_infer>};

}  // namespace operator_gemm

namespace operator_rms_norm {

constexpr TensorInfo kTensors[] = {
    {"x", "[M, N]", "f32", {2, 32, "float32"}, 2, -1, false, false, false, false, -1, true},
    {"weight", "[N]", "f32", {2, 32, "float32"}, 1, -1, false, false},
    {"residual", "[M, N]", "f32", {2, 32, "float32"}, 2, -1, false, true, false, false, -1, true},
    {"out", "[M, N]", "f32", {2, 32, "float32"}, 2, -1, true, false, false, false, -1, true},
    {"residual_out", "[M, N]", "f32", {2, 32, "float32"}, 2, -1, true, true, false, false, -1, true},
};
constexpr ScalarInfo kScalars[] = {
    {"eps", ScalarInfo::kF32, {static_cast<float>(1e-05)}, false, -1},
};
constexpr const char* kDims[] = {
    "M",
    "N",
};

inline void shape(int tensor, const int64_t* dims, int64_t* extents) {
  (void)dims;
  switch (tensor) {
    case 0:
      extents[0] = dims[0];
      extents[1] = dims[1];
      break;
    case 1:
      extents[0] = dims[1];
      break;
    case 2:
      extents[0] = dims[0];
      extents[1] = dims[1];
      break;
    case 3:
      extents[0] = dims[0];
      extents[1] = dims[1];
      break;
    case 4:
      extents[0] = dims[0];
      extents[1] = dims[1];
      break;
    default:
      break;
  }
}

constexpr OperatorInfo kOperator = {"rms_norm", kTensors, 5, kScalars, 1, nullptr, 0, kDims, 2, nullptr, 0, 0x1, 0x0, shape};

// Passes arguments to a function of C, followed by more.
struct Pass {
  template <typename Function, typename... More>
  __attribute__((always_inline)) static auto to(Function function, Tensors t, const Scalar* s, const int32_t* c, More... more) {
    (void)s;
    (void)c;
    return function(t[0], t[1], t[2], t[3], t[4], s[0].f32, more...);
  }
};

constexpr Operator kCalls = {kOperator, by_arrays<Pass, aot_tune_rms_norm>,
                             by_arrays<Pass, aot_tune_rms_norm_explain>,
                             by_arrays<Pass, aot_tune_rms_norm_is_tuned>,
                             by_arrays<Pass, aot_tune_rms_norm_infer>};

}  // namespace operator_rms_norm

}  // namespace
}  // namespace aot_tune

#endif  // AOT_TUNE_OPERATOR_TABLES_H_
