// What gemm/cutlass/halves.cuh.j2 asks of the device beside what other kernels do.
#pragma once
#define AOT_TUNE_DEPENDENTS_CUH  // matrix.h has what is in there
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "matrix.h"

using std::max;
using std::min;

inline float4 __ldcs(const float4* p) {
  host::check_has_waited();
  host::check_readable(p, sizeof(float4));
  return *p;
}

// The values of all lanes, joined one after the other to the first.
template <typename Value, typename Join>
Value reduce_warp(Value value, Join join) {
  host::Warp& warp = host::warp();
  std::memcpy(warp.words[host::lane()], &value, 4);
  host::wait_warp();
  Value all[32];
  for (int lane = 0; lane < 32; ++lane) std::memcpy(all + lane, warp.words[lane], 4);
  host::wait_warp();
  return std::accumulate(all + 1, all + 32, all[0], join);
}
inline uint32_t __reduce_max_sync(uint32_t, uint32_t value) {
  return reduce_warp(value, [](uint32_t x, uint32_t y) { return max(x, y); });
}
inline int __reduce_add_sync(uint32_t, int value) { return reduce_warp(value, std::plus<int>()); }
inline int __syncthreads_or(int value) {
  static int any;
  __syncthreads();
  any = 0;
  __syncthreads();
  any |= value;
  __syncthreads();
  return any;
}
