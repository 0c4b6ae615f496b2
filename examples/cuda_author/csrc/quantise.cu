// q = x / scale in 8 bits, with a scale for each row. The largest magnitude of the row becomes 448, which is
// the largest value of f8e4m3.
#include <cuda_fp8.h>

#include "block.cuh"

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    quantise(__nv_fp8_e4m3* q, float* scale, const T* x, int64_t q_stride, int64_t x_stride, int width) {
  q += blockIdx.x * q_stride;
  x += blockIdx.x * x_stride;
  float largest = 0;
  for (int i = threadIdx.x; i < width; i += BLOCK) largest = fmaxf(largest, fabsf(static_cast<float>(x[i])));
  const float step = fmaxf(over_block(largest, Largest()), 1e-12f) / 448.f;
  for (int i = threadIdx.x; i < width; i += BLOCK) q[i] = __nv_fp8_e4m3(static_cast<float>(x[i]) / step);
  if (threadIdx.x == 0) scale[blockIdx.x] = step;
}
