// Softmax for any shape, strides and alignment.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};
struct DLDataType {
  uint8_t code;
  uint8_t bits;
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

namespace {

// The arguments of a call, as they are passed to kernels; an absent tensor is null.
struct Arguments {
  int64_t dim_R;
  int64_t dim_D;
  const __nv_bfloat16* x;
  int64_t stride_x[2];
  __nv_bfloat16* out;
  int64_t stride_out[2];
};

__host__ __device__ inline float to_float(float x) { return x; }
__host__ __device__ inline float to_float(__half x) { return __half2float(x); }
__host__ __device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T>
__host__ __device__ inline T from_float(float x);
template <>
__host__ __device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__host__ __device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__host__ __device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
}  // namespace

#ifndef AOT_TUNE_MATH_CUH
#define AOT_TUNE_MATH_CUH
#ifndef AOT_TUNE_INSTRUCTIONS_CUH
#define AOT_TUNE_INSTRUCTIONS_CUH
// Instructions that C++ has no words for, sm_80 and later. Tests replace this file to run kernels without a GPU.

namespace {

// 2^x within 2 units in the last place; denormals count as 0.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / x within 1 unit in the last place; 0 for results below the normal range.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// The greater of two, NaN where one is NaN.
__device__ __forceinline__ float maximum_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// What the caches should do with a line.
enum class Cache {
  keep,   // as usual: it will be used again
  once,   // not kept in L1
  first,  // not kept in L1, and the first to leave L2
};

// The 16 bytes at `p`, which is aligned to them, or `otherwise` where they do not exist. It may be moved ahead of
// stores: nobody writes there while the kernel runs.
template <Cache How>
__device__ __forceinline__ uint4 load16(const void* p, bool exists, uint4 otherwise) {
  uint4 v = otherwise;
  if constexpr (How == Cache::first) {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "{\n"
        ".reg .pred exists;\n"
        "setp.ne.b32 exists, %6, 0;\n"
        "@exists ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 { %0, %1, %2, %3 }, [%4], %5;\n"
        "}"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(p), "l"(policy), "r"(static_cast<int>(exists)));
  } else if constexpr (How == Cache::once) {
    asm volatile(
        "{\n"
        ".reg .pred exists;\n"
        "setp.ne.b32 exists, %5, 0;\n"
        "@exists ld.global.nc.L1::no_allocate.v4.u32 { %0, %1, %2, %3 }, [%4];\n"
        "}"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(p), "r"(static_cast<int>(exists)));
  } else {
    asm volatile(
        "{\n"
        ".reg .pred exists;\n"
        "setp.ne.b32 exists, %5, 0;\n"
        "@exists ld.global.nc.v4.u32 { %0, %1, %2, %3 }, [%4];\n"
        "}"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(p), "r"(static_cast<int>(exists)));
  }
  return v;
}

// Makes the compiler forget what it has made of a value: to make it again is cheaper than the registers to keep it.
__device__ __forceinline__ void forget(uint4& v) {
  asm volatile("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w));
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// Clusters of blocks: they read each other's shared memory between an arrival of all and the next.

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// A float of another block's shared memory, at the place where this block has `mine`.
__device__ __forceinline__ float cluster_load(const float* mine, unsigned rank) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(mine));
  unsigned remote;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote) : "memory");
  return value;
}
#endif

}  // namespace
#endif  // AOT_TUNE_INSTRUCTIONS_CUH
// Activations on float, branch-free. NaN stays NaN, limits at +-inf are the mathematical ones. What is `approximate`
// is for values of 16 bits.

namespace {

constexpr float lowest_float = -3.40282347e38f;

// e^x in two instructions: its relative error grows with |x|, 1.2e-7 at 1, 1e-6 at 20.
__device__ __forceinline__ float exp_approximate(float x) {
  return exp2_approximate(x * 1.44269504f);
}
__device__ __forceinline__ float relu(float x) {
  return maximum_or_nan(x, 0.0f);
}

// The numerators below: -inf would meet an infinite denominator or a zero factor; its limit is -0.
__device__ __forceinline__ float above_minus_inf(float x) {
  return fmaxf(x, lowest_float);
}

__device__ __forceinline__ float gelu(float x) {
  return above_minus_inf(x) * (0.5f + 0.5f * erff(x * 0.707106781f));
}

// Within 0.05 units in the last place of 16-bit floats: max(x, 0) - a P(X < -a), where a = |x|, of a normal X. The
// logarithm of the probability is nearly a parabola: the polynomial is within 5e-6 of its binary one up to 6, and falls
// from there on. From 32 on the product is 0, and 32 is not infinite.
__device__ __forceinline__ float gelu_approximate(float x) {
  const float a = fminf(fabsf(x), 32.0f);
  float log2 = -1.83484042e-06f;
  log2 = fmaf(log2, a, 6.15988465e-05f);
  log2 = fmaf(log2, a, -0.000930528913f);
  log2 = fmaf(log2, a, 0.00850790553f);
  log2 = fmaf(log2, a, -0.0539600961f);
  log2 = fmaf(log2, a, -0.458464384f);
  log2 = fmaf(log2, a, -1.15125108f);
  log2 = fmaf(log2, a, -0.999995291f);
  return fmaf(-a, exp2_approximate(log2), relu(x));
}

// 0.5 x (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
__device__ __forceinline__ float gelu_tanh(float x) {
  const float minus_2u = x * (x * x * -0.0713548162726f - 1.59576912161f);
  return above_minus_inf(x) * reciprocal(1.0f + expf(minus_2u));
}

// The same with the powers of 2 that the instruction makes.
__device__ __forceinline__ float gelu_tanh_approximate(float x) {
  const float minus_2u = x * (x * x * -0.102943240f - 2.30220819f);
  return above_minus_inf(x) * reciprocal(1.0f + exp2_approximate(minus_2u));
}

__device__ __forceinline__ float silu(float x) {
  return above_minus_inf(x) * reciprocal(1.0f + expf(-x));
}
__device__ __forceinline__ float silu_approximate(float x) {
  return above_minus_inf(x) * reciprocal(1.0f + exp_approximate(-x));
}

}  // namespace
#endif  // AOT_TUNE_MATH_CUH

#ifndef AOT_TUNE_REDUCE_CUH
#define AOT_TUNE_REDUCE_CUH
#ifndef AOT_TUNE_INSTRUCTIONS_CUH
#define AOT_TUNE_INSTRUCTIONS_CUH
// Instructions that C++ has no words for, sm_80 and later. Tests replace this file to run kernels without a GPU.

namespace {

// 2^x within 2 units in the last place; denormals count as 0.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / x within 1 unit in the last place; 0 for results below the normal range.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// The greater of two, NaN where one is NaN.
__device__ __forceinline__ float maximum_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// What the caches should do with a line.
enum class Cache {
  keep,   // as usual: it will be used again
  once,   // not kept in L1
  first,  // not kept in L1, and the first to leave L2
};

// The 16 bytes at `p`, which is aligned to them, or `otherwise` where they do not exist. It may be moved ahead of
// stores: nobody writes there while the kernel runs.
template <Cache How>
__device__ __forceinline__ uint4 load16(const void* p, bool exists, uint4 otherwise) {
  uint4 v = otherwise;
  if constexpr (How == Cache::first) {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "{\n"
        ".reg .pred exists;\n"
        "setp.ne.b32 exists, %6, 0;\n"
        "@exists ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 { %0, %1, %2, %3 }, [%4], %5;\n"
        "}"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(p), "l"(policy), "r"(static_cast<int>(exists)));
  } else if constexpr (How == Cache::once) {
    asm volatile(
        "{\n"
        ".reg .pred exists;\n"
        "setp.ne.b32 exists, %5, 0;\n"
        "@exists ld.global.nc.L1::no_allocate.v4.u32 { %0, %1, %2, %3 }, [%4];\n"
        "}"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(p), "r"(static_cast<int>(exists)));
  } else {
    asm volatile(
        "{\n"
        ".reg .pred exists;\n"
        "setp.ne.b32 exists, %5, 0;\n"
        "@exists ld.global.nc.v4.u32 { %0, %1, %2, %3 }, [%4];\n"
        "}"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(p), "r"(static_cast<int>(exists)));
  }
  return v;
}

// Makes the compiler forget what it has made of a value: to make it again is cheaper than the registers to keep it.
__device__ __forceinline__ void forget(uint4& v) {
  asm volatile("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w));
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// Clusters of blocks: they read each other's shared memory between an arrival of all and the next.

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// A float of another block's shared memory, at the place where this block has `mine`.
__device__ __forceinline__ float cluster_load(const float* mine, unsigned rank) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(mine));
  unsigned remote;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote) : "memory");
  return value;
}
#endif

}  // namespace
#endif  // AOT_TUNE_INSTRUCTIONS_CUH
// Sums and maxima over a warp, over the threads of a row; every thread gets the result.
//
// A row's threads are those of one threadIdx.y: blockDim.x of them, whole warps. `Scratch` is shared memory for what
// warps tell each other; a block has two and takes them in turn, so that one barrier per reduction is enough.

namespace {

constexpr unsigned all_lanes = 0xffffffffu;

struct Add {
  static __device__ __forceinline__ float identity() { return 0.0f; }
  static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};
// NaN does not become the maximum.
struct Maximum {
  static __device__ __forceinline__ float identity() { return -3.40282347e38f; }
  static __device__ __forceinline__ float of(float a, float b) { return fmaxf(a, b); }
};

template <class Operation>
__device__ __forceinline__ float warp_reduce(float v) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    v = Operation::of(v, __shfl_xor_sync(all_lanes, v, distance));
  return v;
}
__device__ __forceinline__ float warp_sum(float v) {
  return warp_reduce<Add>(v);
}
__device__ __forceinline__ float warp_max(float v) {
  return warp_reduce<Maximum>(v);
}

template <class Value>
struct Scratch {
  Value of_warp[32];
};

__device__ __forceinline__ int lane_index() {
  return static_cast<int>(threadIdx.x % 32);
}

// Passes a warp's value to the row's other warps: lane i of each gets that of warp i, or `none` where there is none.
template <class Value>
__device__ __forceinline__ Value exchange(const Value& mine, const Value& none, Scratch<Value>& scratch) {
  const int warps = static_cast<int>(blockDim.x / 32), first = static_cast<int>(threadIdx.y) * warps;
  if (lane_index() == 0) scratch.of_warp[first + threadIdx.x / 32] = mine;
  __syncthreads();
  return lane_index() < warps ? scratch.of_warp[first + lane_index()] : none;
}

template <class Operation>
__device__ __forceinline__ float row_reduce(float v, Scratch<float>& scratch) {
  v = warp_reduce<Operation>(v);
  if (blockDim.x == 32) return v;
  return warp_reduce<Operation>(exchange(v, Operation::identity(), scratch));
}

// The sum of e^(x - max) beside its max, as softmax needs them. Exponential is a function object on float.
struct MaxSum {
  float max = -3.40282347e38f;
  float sum = 0.0f;
};

// Merges what the lanes of a warp hold. Where all are -inf the sum stays 0.
template <class Exponential>
__device__ __forceinline__ MaxSum warp_merge(const MaxSum& mine, Exponential exponential) {
  const float max = warp_max(mine.max);
  return {max, warp_sum(mine.sum * exponential(mine.max - max))};
}

// Merges the row's threads, all of whose lanes hold what their warp has.
template <class Exponential>
__device__ __forceinline__ MaxSum row_merge(const MaxSum& warp, Scratch<MaxSum>& scratch, Exponential exponential) {
  if (blockDim.x == 32) return warp;
  return warp_merge(exchange(warp, MaxSum{}, scratch), exponential);
}

// How many, their mean, and the sum of squares of their distances from it.
struct Moments {
  float count = 0.0f;
  float mean = 0.0f;
  float squares = 0.0f;
};

// Merges what lanes hold, without cancellation (Chan, Golub and LeVeque's formula for more than two sets).
__device__ __forceinline__ Moments warp_merge(const Moments& mine) {
  const float count = warp_sum(mine.count);
  const float mean = warp_sum(mine.count * mine.mean) / fmaxf(count, 1.0f);
  const float off = mine.mean - mean;
  return {count, mean, warp_sum(mine.squares + mine.count * off * off)};
}

__device__ __forceinline__ Moments row_merge(const Moments& warp, Scratch<Moments>& scratch) {
  if (blockDim.x == 32) return warp;
  return warp_merge(exchange(warp, Moments{}, scratch));
}

}  // namespace
#endif  // AOT_TUNE_REDUCE_CUH
#ifndef AOT_TUNE_LAUNCH_CUH
#define AOT_TUNE_LAUNCH_CUH
// Launches, and how rows are laid on blocks.

namespace {

// Launches a kernel; `cluster` blocks form a cluster. Returns a cudaError_t, which is not kept as the last error.
template <typename... Parameters>
inline int32_t launch_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, unsigned cluster, void* stream,
                             const Parameters&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {cluster, 1, 1};
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

// Loads a kernel on the current device.
template <typename... Parameters>
inline int32_t load_kernel(void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
}

// Multiprocessors of the current device.
inline int32_t count_multiprocessors(int64_t* count) {
  int device = 0, found = 0;
  int32_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device);
  *count = found;
  return error;
}

[[maybe_unused]] constexpr int64_t most_blocks = 2147483647;

inline int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// A block of whole rows: as many threads in x as one row of `items` needs with `per_thread` each, in whole warps, and
// in y as many rows as `block_threads` have room for.
inline dim3 rows_block(int64_t items, int64_t per_thread, int64_t block_threads) {
  const int64_t threads = divide_up(divide_up(items, per_thread), 32) * 32;
  const int64_t rows = threads < block_threads ? block_threads / threads : 1;
  return {static_cast<unsigned>(threads), static_cast<unsigned>(rows), 1};
}

}  // namespace
#endif  // AOT_TUNE_LAUNCH_CUH
// Softmax for any shape and strides, a row to the threads of one threadIdx.y: maximum and sum in one walk, then write.
namespace {

constexpr int any_unroll = 4;

__global__ void __launch_bounds__(1024, 1) softmax_any(const __grid_constant__ Arguments args) {
  __shared__ Scratch<MaxSum> scratch[2];
  const auto exponential = [](float x) { return expf(x); };
  const int64_t rows = args.dim_R, n = args.dim_D;
  const int64_t from = args.stride_x[1], step = args.stride_out[1];
  const int64_t apart = blockDim.x;
  int turn = 0;
  for (int64_t first = int64_t{blockIdx.x} * blockDim.y; first < rows; first += int64_t{gridDim.x} * blockDim.y) {
    const int64_t r = first + threadIdx.y;
    const int64_t end = r < rows ? n : 0;
    const auto* in = args.x + (r) * args.stride_x[0];
    auto* to = args.out + (r) * args.stride_out[0];
    MaxSum mine;
    for (int64_t i = threadIdx.x; i < end; i += any_unroll * apart) {
      float v[any_unroll];
      #pragma unroll 4
      for (int u = 0; u < any_unroll; ++u)
        v[u] = i + u * apart < end ? to_float(in[(i + u * apart) * from]) : -INFINITY;
      float max = mine.max;
      #pragma unroll 4
      for (int u = 0; u < any_unroll; ++u) max = fmaxf(max, v[u]);
      mine.sum *= exponential(mine.max - max);
      #pragma unroll 4
      for (int u = 0; u < any_unroll; ++u) mine.sum += exponential(v[u] - max);
      mine.max = max;
    }
    const MaxSum row = row_merge(warp_merge(mine, exponential), scratch[turn ^= 1], exponential);
    const float scale = 1.0f / row.sum;
    #pragma unroll 4
    for (int64_t i = threadIdx.x; i < end; i += apart)
      to[i * step] = from_float<__nv_bfloat16>(exponential(to_float(in[i * from]) - row.max) * scale);
  }
}

inline int32_t launch_any(const Arguments& args, void* stream) {
  const int64_t rows = args.dim_R, n = args.dim_D;
  const dim3 block = rows_block(n < 4096 ? n : 4096, 4, 128);
  const int64_t blocks = divide_up(rows, block.y);
  return launch_kernel(softmax_any, dim3(static_cast<unsigned>(blocks < most_blocks ? blocks : most_blocks)), block, 1,
                       stream, args);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int32_t SYMBOL_workspace(
    [[maybe_unused]] const DLTensor* x,
    [[maybe_unused]] const DLTensor* out,
    [[maybe_unused]] size_t* workspace_size) {
  *workspace_size = 0;
  return 0;
}

extern "C" __attribute__((visibility("default"))) int32_t SYMBOL_preload(
    void) {
  return load_kernel(softmax_any);
}
extern "C" __attribute__((visibility("default"))) int32_t SYMBOL_launch(
    [[maybe_unused]] const DLTensor* x,
    [[maybe_unused]] const DLTensor* out,
    [[maybe_unused]] void* workspace,
    [[maybe_unused]] size_t workspace_size,
    [[maybe_unused]] void* stream) {
  const Arguments args = {x->shape[0], x->shape[1], static_cast<const __nv_bfloat16*>(x->data), {x->strides[0], x->strides[1]}, static_cast<__nv_bfloat16*>(out->data), {out->strides[0], out->strides[1]}};
  if (args.dim_R == 0 || args.dim_D == 0) return cudaSuccess;
  return launch_any(args, stream);
}
