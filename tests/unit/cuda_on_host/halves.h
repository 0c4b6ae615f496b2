// What gemm/cutlass_halves.cuh.j2 asks of the device beside what other kernels do.
#pragma once
#define AOT_TUNE_DEPENDENTS_CUH  // matrix.h has what is in there
#include "matrix.h"

using std::max;
using std::min;

inline float4 __ldcs(const float4* p) {
  host::check_has_waited();
  host::check_readable(p, sizeof(float4));
  return *p;
}

// `join` of the values of all lanes.
template <typename Join>
uint32_t reduce_warp(uint32_t value, Join join) {
  host::Warp& warp = host::warp();
  warp.words[host::lane()][0] = value;
  host::wait_warp();
  for (const auto& words : warp.words) value = join(value, words[0]);
  host::wait_warp();
  return value;
}
inline uint32_t __reduce_max_sync(uint32_t, uint32_t value) {
  return reduce_warp(value, [](uint32_t x, uint32_t y) { return max(x, y); });
}
inline uint32_t __reduce_min_sync(uint32_t, uint32_t value) {
  return reduce_warp(value, [](uint32_t x, uint32_t y) { return min(x, y); });
}
inline int __syncthreads_or(int value) {
  static int any;
  __syncthreads();
  any = 0;
  __syncthreads();
  any |= value;
  __syncthreads();
  return any;
}
