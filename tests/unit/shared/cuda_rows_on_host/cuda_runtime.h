// Runs the row kernels on the host: a fibre per CUDA thread, a thread per block of a cluster. It shows wrong
// indices, missing barriers and unaligned pieces where no GPU is. It stands in for
// templates/common/instructions.cuh.j2, too.
#pragma once
#include <sched.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "../fibre.h"

#define AOT_TUNE_INSTRUCTIONS_CUH
#define __host__
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static thread_local
#define __cvta_generic_to_shared(p) (p)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct float2 {
  float x, y;
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
inline __half greater(__half a, __half b) {
  return __float2half_rn(std::fmax(__half2float(a), __half2float(b)));
}
inline __half2 __hmax2(__half2 a, __half2 b) {
  return {greater(a.x, b.x), greater(a.y, b.y)};
}
inline __nv_bfloat162 __hmax2(__nv_bfloat162 a, __nv_bfloat162 b) {
  return {__float2bfloat16_rn(std::fmax(__bfloat162float(a.x), __bfloat162float(b.x))),
          __float2bfloat16_rn(std::fmax(__bfloat162float(a.y), __bfloat162float(b.y)))};
}
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selectors) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  uint32_t found = 0;
  for (unsigned i = 0; i < 4; ++i)
    found |= static_cast<uint32_t>(bytes >> 8 * (selectors >> 4 * i & 7) & 0xff) << 8 * i;
  return found;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

// Names that are fields of a launch's config, too.
#define blockDim host_block
#define gridDim host_grid
inline dim3 blockDim, gridDim;

namespace host {

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "cuda_rows_on_host: %s\n", what);
  std::abort();
}

// The launch that runs.
inline unsigned cluster_size;
inline std::atomic<long> cluster_arrivals;
inline std::vector<const char*>
    anchors;  // one place of thread-local memory, by rank: offsets from it are the same
inline thread_local char anchor;

struct Fibre {
  Context context;
  dim3 thread;
  bool done = false;
  long cluster_turns = 0;
};
struct Barrier {
  unsigned arrived = 0, turn = 0;
};
struct Block {
  std::vector<Fibre> fibres;
  Fibre* now = nullptr;
  Context scheduler;
  dim3 index;
  unsigned rank = 0;
  Barrier barrier;
  Barrier warp_barriers[32];
  float words[1024];
  std::function<void()> body;
};
inline thread_local Block* block;
inline void begin_block();

inline void yield() { block->now->context.leave_for(block->scheduler); }
inline void wait(Barrier& barrier, unsigned count) {
  const unsigned turn = barrier.turn;
  if (++barrier.arrived == count) barrier.arrived = 0, ++barrier.turn;
  while (barrier.turn == turn) yield();
}
inline unsigned thread_index() { return block->now->thread.y * blockDim.x + block->now->thread.x; }
inline void enter() {
  block->body();
  block->now->done = true;
  for (;;) yield();
}

inline void run_block(dim3 index, unsigned rank, const std::function<void()>& body) {
  constexpr size_t stack_bytes = 64 * 1024;
  Block all;
  block = &all;
  begin_block();
  all.index = index, all.rank = rank, all.body = body;
  all.fibres.resize(blockDim.x * blockDim.y);
  for (size_t i = 0; i < all.fibres.size(); ++i) {
    Fibre& fibre = all.fibres[i];
    fibre.thread = dim3(static_cast<unsigned>(i) % blockDim.x, static_cast<unsigned>(i) / blockDim.x, 0);
    fibre.context.begin_at(enter, stack_bytes);
  }
  for (bool left = true; left;) {
    left = false;
    for (auto& fibre : all.fibres) {
      if (fibre.done) continue;
      all.now = &fibre;
      all.scheduler.leave_for(fibre.context);
      left |= !fibre.done;
    }
  }
  block = nullptr;
}

inline void run(const std::function<void()>& body) {
  for (unsigned first = 0; first < gridDim.x; first += cluster_size) {
    if (cluster_size == 1) {
      run_block(dim3(first, 0, 0), 0, body);
      continue;
    }
    cluster_arrivals = 0;
    anchors.assign(cluster_size, nullptr);
    std::atomic<unsigned> ready{0};
    std::vector<std::thread> blocks;
    for (unsigned rank = 0; rank < cluster_size; ++rank)
      blocks.emplace_back([&, rank] {
        anchors[rank] = &anchor;
        ++ready;
        while (ready < cluster_size) sched_yield();
        run_block(dim3(first + rank, 0, 0), rank, body);
      });
    for (auto& one : blocks) one.join();
  }
}

}  // namespace host

#define threadIdx (host::block->now->thread)
#define blockIdx (host::block->index)

inline void __syncthreads() { host::wait(host::block->barrier, blockDim.x * blockDim.y); }
inline void __nanosleep(unsigned) {}
inline float __shfl_xor_sync(unsigned, float v, int mask) {
  const unsigned me = host::thread_index();
  host::block->words[me] = v;
  host::wait(host::block->warp_barriers[me / 32], 32);
  const float other = host::block->words[me ^ static_cast<unsigned>(mask)];
  host::wait(host::block->warp_barriers[me / 32], 32);
  return other;
}

// -- common/instructions.cuh.j2
// --------------------------------------------------------------------------------------

enum class Cache { keep, once, first };

inline float exp2_approximate(float x) { return std::exp2(x); }
inline float reciprocal(float x) { return 1.0f / x; }
inline float maximum_or_nan(float a, float b) { return a != a ? a : b != b ? b : a > b ? a : b; }
inline void forget(uint4&) {}
template <Cache How>
uint4 load16(const void* p, bool exists, uint4 otherwise) {
  if (!exists) return otherwise;
  if (reinterpret_cast<uintptr_t>(p) % 16 != 0) host::fail("an unaligned load");
  return *static_cast<const uint4*>(p);
}
template <typename T>
void __stcs(T* p, T v) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T) != 0) host::fail("an unaligned store");
  *p = v;
}
template <typename T>
void __stwb(T* p, T v) {
  __stcs(p, v);
}
inline unsigned cluster_rank() { return host::block->rank; }
inline void cluster_arrive() {
  ++host::block->now->cluster_turns;
  ++host::cluster_arrivals;
}
inline void cluster_wait() {
  const long everyone = static_cast<long>(host::cluster_size * blockDim.x * blockDim.y);
  while (host::cluster_arrivals < host::block->now->cluster_turns * everyone) {
    host::yield();
    sched_yield();
  }
}
inline float cluster_load(const float* mine, unsigned rank) {
  float value;
  std::memcpy(&value, host::anchors[rank] + (reinterpret_cast<const char*>(mine) - &host::anchor),
              sizeof(value));
  return value;
}

#include "bulk.h"

// -- the CUDA runtime
// ------------------------------------------------------------------------------------------------

using cudaError_t = int;
using cudaStream_t = void*;
struct cudaFuncAttributes {};
enum {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6,
  cudaDevAttrMultiProcessorCount = 16,
};
struct cudaLaunchAttribute {
  int id;
  struct {
    dim3 clusterDim;
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
inline int cudaGetLastError() { return cudaSuccess; }
inline int cudaFuncGetAttributes(cudaFuncAttributes*, const void*) { return cudaSuccess; }
inline int cudaGetDevice(int* device) { return *device = 0; }
inline int cudaDeviceGetAttribute(int* value, int, int) {
  *value = 2;
  return cudaSuccess;
}
template <typename... Parameters>
int cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                       const Parameters&... given) {
  gridDim = config->gridDim, blockDim = config->blockDim;
  host::cluster_size = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
      host::cluster_size = config->attrs[i].val.clusterDim.x;
  const unsigned threads = blockDim.x * blockDim.y;
  if (threads == 0 || threads > 1024 || threads % 32 != 0 || gridDim.x == 0 ||
      gridDim.x % host::cluster_size != 0)
    return cudaErrorInvalidConfiguration;
  if (config->dynamicSmemBytes != 0) host::fail("shared memory of a launch, which no kernel here has");
  host::run([&] { kernel(given...); });
  return cudaSuccess;
}
