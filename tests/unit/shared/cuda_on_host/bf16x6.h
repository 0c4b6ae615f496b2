// What gemm/cuda/wgmma/bf16x6_device.cuh.j2 defines, on the host: products with rows in registers, which are read
// as late as their waits allow, and 16 bytes of shared memory.
#pragma once
#define AOT_TUNE_BF16X6_DEVICE_CUH
#include "wgmma.h"

inline float2 load_two(uint32_t at) {
  float2 v;
  std::memcpy(&v, host::shared_at(at, 8), 8);
  return v;
}
inline void store_shared(uint32_t at, uint4 v) { std::memcpy(host::shared_at(at, 16), &v, 16); }

inline void settle(uint32_t (&)[4]) {}

template <size_t N>
void multiply_rows(float (&sums)[N], const uint32_t (&rows)[4], uint64_t columns) {
  if (!host::now().may_multiply) host::fail("a product before its registers are ready");
  host::now().open_products.push_back({sums, 2 * N, 0, columns, rows});
}
template <size_t N>
void begin_sums(float (&sums)[N], const uint32_t (&rows)[4], uint64_t columns) {
  multiply_rows(sums, rows, columns);
  host::now().open_products.back().begins = true;
}

// A multiple of 8 that the hardware knows; a block's threads share what it was started with.
template <int count>
void take_registers() {
  static_assert(count % 8 == 0 && count >= 24 && count <= 256);
}
template <int count>
void leave_registers() {
  static_assert(count % 8 == 0 && count >= 24 && count <= 256);
}
