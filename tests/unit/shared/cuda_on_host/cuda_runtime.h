// Runs CUDA kernels on the host, one thread after the other, and notes what is launched. What a kernel with barriers
// writes means nothing. It stands in for the CUDA runtime and for templates/common/instructions.cuh.j2.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define AOT_TUNE_INSTRUCTIONS_CUH
#define __host__
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
inline dim3 gridDim, blockDim, blockIdx, threadIdx;

struct float2 {
  float x, y;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct __half {
  _Float16 value;
};
struct __half2 {
  __half x, y;
};
struct __nv_bfloat16 {
  uint16_t bits;
};
struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

template <typename To, typename From>
To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
inline float __uint_as_float(uint32_t u) { return bits_as<float>(u); }
inline uint32_t __float_as_uint(float f) { return bits_as<uint32_t>(f); }
inline float __half2float(__half h) { return static_cast<float>(h.value); }
inline __half __float2half_rn(float f) { return {static_cast<_Float16>(f)}; }
inline float2 __half22float2(__half2 h) { return {__half2float(h.x), __half2float(h.y)}; }
inline __half2 __floats2half2_rn(float a, float b) { return {__float2half_rn(a), __float2half_rn(b)}; }
inline float __bfloat162float(__nv_bfloat16 h) {
  return __uint_as_float(static_cast<uint32_t>(h.bits) << 16);
}
inline __nv_bfloat16 __float2bfloat16_rn(float f) {
  const uint32_t u = __float_as_uint(f);
  return {static_cast<uint16_t>(f != f ? 0x7fffu : (u + 0x7fffu + (u >> 16 & 1)) >> 16)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
  return {__float2bfloat16_rn(a), __float2bfloat16_rn(b)};
}
inline int __float2int_rn(float f) { return f != f ? 0 : static_cast<int>(std::nearbyint(f)); }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t which) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i) chosen |= (bytes >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return chosen;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

inline void __syncthreads() {}

// -- common/instructions.cuh.j2

enum class Cache { keep, once, first };

inline float exp2_approximate(float x) { return std::exp2(x); }
inline float reciprocal(float x) { return 1.0f / x; }
inline float maximum_or_nan(float a, float b) { return a != a ? a : b != b ? b : a > b ? a : b; }
inline void forget(uint4&) {}
template <Cache How>
uint4 load16(const void* p, bool exists, uint4 otherwise) {
  return exists ? *static_cast<const uint4*>(p) : otherwise;
}
template <typename T>
void __stcs(T* p, T v) {
  *p = v;
}
template <typename T>
void __stwb(T* p, T v) {
  __stcs(p, v);
}

// -- the CUDA runtime

using cudaError_t = int;
using cudaStream_t = struct CUstream_st*;
struct cudaFuncAttributes {};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaLaunchAttributeCooperative = 2,
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6,
  cudaDevAttrMultiProcessorCount = 16,
};
struct cudaLaunchAttribute {
  int id;
  struct {
    dim3 clusterDim;
    int cooperative, programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

// Lines of what was done, for the test; the first ones.
extern "C" inline __attribute__((used)) char* noted() {
  static char text[4096];
  return text;
}
template <typename... A>
void note(const char* format, A... values) {
  const size_t length = std::strlen(noted());
  if (length < 3584) std::snprintf(noted() + length, 512, format, values...);
}

inline int cudaGetLastError() { return cudaSuccess; }
inline int cudaFuncGetAttributes(cudaFuncAttributes*, const void*) { return cudaSuccess; }
inline int cudaFuncSetAttribute(const void*, cudaFuncAttribute, int bytes) {
  note("allow %d\n", bytes);
  return cudaSuccess;
}
inline int cudaGetDevice(int* device) { return *device = 0; }
inline int cudaDeviceGetAttribute(int* value, int, int) {
  *value = 7;
  return cudaSuccess;
}
inline int cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t) {
  std::memset(at, value, bytes);
  note("zero %zu\n", bytes);
  return cudaSuccess;
}
template <typename... Parameters, typename... Given>
int cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Given&&... given) {
  const dim3 grid = gridDim = config->gridDim, block = blockDim = config->blockDim;
  note("grid %u %u %u block %u %u %u shared %zu", grid.x, grid.y, grid.z, block.x, block.y, block.z,
       config->dynamicSmemBytes);
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& one = config->attrs[i];
    if (one.id == cudaLaunchAttributeCooperative) note(" cooperative");
    if (one.id == cudaLaunchAttributeClusterDimension) note(" cluster %u", one.val.clusterDim.x);
  }
  note("\n");
  const unsigned blocks = grid.x * grid.y * grid.z, threads = block.x * block.y * block.z;
  if (blocks == 0 || threads == 0 || threads > 1024) return cudaErrorInvalidConfiguration;
  for (unsigned i = 0; i < blocks * threads; ++i) {
    const unsigned b = i / threads, t = i % threads;
    blockIdx = dim3(b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y);
    threadIdx = dim3(t % block.x, t / block.x % block.y, t / block.x / block.y);
    kernel(given...);
  }
  return cudaSuccess;
}
