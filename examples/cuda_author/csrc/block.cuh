#pragma once
// The sum and the largest value over all threads of a block of BLOCK threads.

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Largest {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <typename Join>
__device__ float over_block(float value, Join join) {
  __shared__ float parts[BLOCK / 32];
  for (int distance = 16; distance > 0; distance /= 2)
    value = join(value, __shfl_xor_sync(0xffffffff, value, distance));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[0];
  for (int i = 1; i < BLOCK / 32; ++i) value = join(value, parts[i]);
  return value;
}
