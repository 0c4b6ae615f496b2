// The contract of kernels for the operator of these tests, y = 2 * x + 1 + bias, and a correct body to spoil.
// It is included for each that does not include it.
#pragma once

#include <cstddef>
#include <cstdint>

struct DLDevice {
  int32_t device_type, device_id;
};
struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

#define EXPORT extern "C" __attribute__((visibility("default")))

#ifndef WORKSPACE
#define WORKSPACE 64
#endif
EXPORT int32_t candidate_workspace(const DLTensor*, const DLTensor*, const DLTensor*, size_t* size) {
  *size = WORKSPACE;
  return 0;
}

#define LAUNCH                                                                                               \
  EXPORT int32_t candidate_launch([[maybe_unused]] const DLTensor* x, [[maybe_unused]] const DLTensor* bias, \
                                  [[maybe_unused]] const DLTensor* y, [[maybe_unused]] void* workspace,      \
                                  [[maybe_unused]] size_t size, [[maybe_unused]] void* stream)

static inline float* at(const DLTensor* t, int64_t i, int64_t j) {
  return static_cast<float*>(t->data) + i * t->strides[0] + j * t->strides[1];
}

static inline void correct(const DLTensor* x, const DLTensor* bias, const DLTensor* y) {
  for (int64_t i = 0; i < x->shape[0]; ++i)
    for (int64_t j = 0; j < x->shape[1]; ++j) {
      float v = 2 * *at(x, i, j) + 1;
      if (bias) v += static_cast<const float*>(bias->data)[j * bias->strides[0]];
      *at(y, i, j) = v;
    }
}
