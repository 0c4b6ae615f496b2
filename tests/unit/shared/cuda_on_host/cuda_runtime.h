// Runs CUDA kernels on the host: a fibre for each thread of a block, one block after the other. It shows wrong indices,
// missing barriers and unaligned pieces where no GPU is, and notes what is launched. It stands in for the CUDA runtime
// and for templates/common/instructions.cuh.j2.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

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

// -- threads of a block

namespace host {

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "cuda_on_host: %s\n", what);
  std::abort();
}

/// A place to go on from: a thread, or whoever runs threads. It is left by setjmp, since each swapcontext is a call of
/// the kernel.
class Place {
 public:
  void begin_at(void (*entry)()) {
    constexpr size_t stack_bytes = 64 * 1024;
    if (stack_ == nullptr) stack_.reset(new char[stack_bytes]);
    getcontext(&start_);
    start_.uc_stack.ss_sp = stack_.get();
    start_.uc_stack.ss_size = stack_bytes;
    start_.uc_link = nullptr;
    makecontext(&start_, entry, 0);
    begun_ = false;
  }
  __attribute__((noinline)) void leave_for(Place& other) {
    if (__builtin_setjmp(left_at_) == 0) other.enter();
  }

 private:
  [[noreturn]] __attribute__((noinline)) void enter() {
    if (begun_) __builtin_longjmp(left_at_, 1);
    begun_ = true;
    setcontext(&start_);
    __builtin_unreachable();
  }

  ucontext_t start_;
  std::unique_ptr<char[]> stack_;
  void* left_at_[5];
  bool begun_ = true;
};

struct Thread {
  Place place;
  dim3 index;
  bool done = false;
};
struct Barrier {
  unsigned arrived = 0, turn = 0;
};
inline std::vector<Thread> threads;  // their stacks are used again
inline Thread* now;
inline Place scheduler;
inline Barrier barrier, warp_barriers[32];
inline float words[1024];
inline std::function<void()> body;
inline long arrivals;  // at barriers

inline void yield() {
  now->place.leave_for(scheduler);
  threadIdx = now->index;
}
inline void wait(Barrier& at, unsigned count) {
  const unsigned turn = at.turn;
  ++arrivals;
  if (++at.arrived == count) at.arrived = 0, ++at.turn;
  while (at.turn == turn) yield();
}
inline unsigned number() { return static_cast<unsigned>(now - threads.data()); }
inline void enter() {
  threadIdx = now->index;
  body();
  now->done = true;
  for (;;) yield();
}
inline void run_block() {
  const unsigned count = blockDim.x * blockDim.y * blockDim.z;
  if (threads.size() < count) threads.resize(count);
  for (unsigned i = 0; i < count; ++i) {
    threads[i].index = dim3(i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y);
    threads[i].done = false;
    threads[i].place.begin_at(enter);
  }
  for (bool left = true; left;) {
    left = false;
    const long before = arrivals;
    bool ended = false;
    for (unsigned i = 0; i < count; ++i) {
      if (threads[i].done) continue;
      now = &threads[i];
      scheduler.leave_for(now->place);
      (now->done ? ended : left) = true;
    }
    if (left && !ended && arrivals == before && barrier.arrived != 0) fail("a barrier is never reached by all");
  }
}

}  // namespace host

inline void __syncthreads() { host::wait(host::barrier, blockDim.x * blockDim.y * blockDim.z); }
inline void __nanosleep(unsigned) {}
inline float __shfl_xor_sync(unsigned, float v, int mask) {
  const unsigned me = host::number();
  host::words[me] = v;
  host::wait(host::warp_barriers[me / 32], 32);
  const float other = host::words[me ^ static_cast<unsigned>(mask)];
  host::wait(host::warp_barriers[me / 32], 32);
  return other;
}

// -- common/instructions.cuh.j2

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
  host::body = [&] { kernel(given...); };
  for (unsigned i = 0; i < blocks; ++i) {
    blockIdx = dim3(i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y);
    host::run_block();
  }
  return cudaSuccess;
}
