// What templates/gemm/matrix.cuh.j2, gemm/cuda/device.cuh.j2 and common/math.cuh.j2 define, and of
// common/instructions.cuh.j2 the loads, for the host. Operands of matrix instructions lie in the lanes as the
// PTX manual says ("Matrix fragments for mma.m16n8k16", ".m16n8k8").
#pragma once
#define AOT_TUNE_MATRIX_CUH
#define AOT_TUNE_MATH_CUH
#define AOT_TUNE_INSTRUCTIONS_CUH
#define AOT_TUNE_THIN_DEVICE_CUH
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_runtime.h"

using std::llabs;
inline float relu(float x) { return x < 0 ? 0 : x; }
inline float gelu(float x) { return x * 0.5f * (1 + std::erf(x * 0.70710678f)); }
inline float gelu_tanh(float x) { return gelu(x); }
inline float gelu_approximate(float x) { return gelu(x); }
inline float gelu_tanh_approximate(float x) { return gelu_tanh(x); }
inline float silu(float x) { return x / (1 + std::exp(-x)); }
inline float silu_approximate(float x) { return silu(x); }

template <typename T>
void __stcs(T* p, T v) {
  *p = v;
}
enum class Cache { keep, once, first };
template <Cache>
uint4 load16(const void* p, bool exists, uint4 otherwise) {
  if (!exists) return otherwise;
  if (reinterpret_cast<uintptr_t>(p) % 16 != 0) host::fail("an unaligned load");
  host::check_has_waited();
  host::check_readable(p, 16);
  return *static_cast<const uint4*>(p);
}
inline uint32_t shared_address(const void* p) {
  const auto offset = static_cast<uint32_t>(static_cast<const unsigned char*>(p) - host::shared_memory());
  return static_cast<uint32_t>(host::now().rank) << 24 | offset;
}
inline void copy_async(uint32_t to, const void* from, int valid) {
  if (valid < 0 || valid > 16 || (valid > 0 && reinterpret_cast<uintptr_t>(from) % 16 != 0))
    host::fail("a bad copy");
  if (static_cast<int>(to >> 24) != host::now().rank) host::fail("a copy into another block");
  host::check_has_waited();
  if (valid > 0) host::check_readable(from, static_cast<size_t>(valid));
  host::now().open.push_back({host::shared_at(to, 16), from, valid});
  if (host::haste) {
    std::memset(host::shared_at(to, 16), 0, 16);
    if (valid != 0) std::memcpy(host::shared_at(to, 16), from, static_cast<size_t>(valid));
  }
}
inline void stream_async(uint32_t to, const void* from, int valid) { copy_async(to, from, valid); }
inline void copy_async_word(uint32_t to, const void* from, int valid) {
  if (valid != 0 && valid != 4) host::fail("a bad copy");
  host::now().open.push_back({host::shared_at(to, 4), from, valid - 12});  // 4 bytes: see wait_copies
  if (host::haste) std::memcpy(host::shared_at(to, 4), valid != 0 ? from : "\0\0\0", 4);
}
inline void commit_copies() {
  host::now().groups.push_back(std::move(host::now().open));
  host::now().open.clear();
}
template <int N>
void wait_copies() {
  auto& groups = host::now().groups;
  while (groups.size() > N) {
    for (const auto& copy : groups.front()) {
      if (host::haste) break;  // it has happened
      const bool word = copy.valid < 0;
      const int valid = word ? copy.valid + 12 : copy.valid;
      std::memset(copy.to, 0, word ? 4 : 16);
      if (valid != 0) std::memcpy(copy.to, copy.from, static_cast<size_t>(valid));
    }
    groups.erase(groups.begin());
  }
}
template <typename T>
int valid_bytes(int64_t k, int64_t end) {
  constexpr int lanes = 16 / static_cast<int>(sizeof(T));
  const int64_t left = end - k;
  return left >= lanes ? 16 : left > 0 ? static_cast<int>(left) * static_cast<int>(sizeof(T)) : 0;
}
inline uint4 load_shared(uint32_t at) {
  uint4 v;
  std::memcpy(&v, host::shared_at(at, 16), 16);
  return v;
}

inline void load_blocks(uint32_t at, uint32_t (&r)[4]) {
  host::Warp& warp = host::warp();
  const int lane = host::lane();
  host::shared_at(at, 16);
  warp.words[lane][0] = at;
  host::wait_warp();
  for (int i = 0; i < 4; ++i) {
    r[i] = host::word_at(warp.words[8 * i + lane / 4][0] + static_cast<uint32_t>(lane % 4 * 4));
  }
  host::wait_warp();
}
inline void load_blocks_transposed(uint32_t at, uint32_t (&r)[4]) {
  host::Warp& warp = host::warp();
  const int lane = host::lane();
  host::shared_at(at, 16);
  warp.words[lane][0] = at;
  host::wait_warp();
  for (int i = 0; i < 4; ++i) {
    uint32_t two = 0;
    for (int half = 0; half < 2; ++half) {
      const uint32_t word =
          host::word_at(warp.words[8 * i + lane % 4 * 2 + half][0] + static_cast<uint32_t>(lane / 8 * 4));
      two |= (lane / 4 % 2 == 1 ? word >> 16 : word & 0xffff) << 16 * half;
    }
    r[i] = two;
  }
  host::wait_warp();
}

inline float dot_word(uint32_t x, uint32_t y, __nv_bfloat16) {
  return __uint_as_float(x << 16) * __uint_as_float(y << 16) +
         __uint_as_float(x & 0xffff0000u) * __uint_as_float(y & 0xffff0000u);
}
inline float dot_word(uint32_t x, uint32_t y, __half) {
  __half xs[2], ys[2];
  std::memcpy(xs, &x, 4), std::memcpy(ys, &y, 4);
  return __half2float(xs[0]) * __half2float(ys[0]) + __half2float(xs[1]) * __half2float(ys[1]);
}
inline float dot_word(uint32_t x, uint32_t y, float) {
  return __uint_as_float(x & 0xffffe000u) * __uint_as_float(y & 0xffffe000u);
}
template <typename T>
void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, T kind) {
  host::Warp& warp = host::warp();
  const int lane = host::lane();
  std::memcpy(warp.words[lane], a, 16);
  warp.words[lane][4] = b0, warp.words[lane][5] = b1;
  host::wait_warp();
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
    for (int w = 0; w < 8; ++w) {  // words along K
      const uint32_t x = warp.words[row % 8 * 4 + w % 4][row / 8 + w / 4 * 2];
      c[e] += dot_word(x, warp.words[column * 4 + w % 4][4 + w / 4], kind);
    }
  }
  host::wait_warp();
}
template <typename T>
void round_words(uint32_t (&)[4]) {}

// A launch without clusters has no use for their instructions, and not all of them work there.
inline void check_has_cluster() {
  if (host::cluster->blocks.size() < 2) host::fail("an instruction of clusters in a launch without");
}
// What others send before a block has begun, or after it has ended, is lost.
inline void check_runs(int rank) {
  check_has_cluster();
  const auto& to = host::cluster->blocks.at(static_cast<size_t>(rank));
  if (!to.begun || to.running == 0) host::fail("a message to a block that does not run");
}
inline void arrive_at_cluster() {
  check_has_cluster();
  if (host::now().announced) host::fail("a thread arrived at the cluster twice");
  auto& barrier = host::cluster->barrier;
  host::now().announced = true;
  host::now().cluster_generation = barrier.generation;
  ++host::cluster->events;
  if (++barrier.arrived == static_cast<int>(host::cluster->fibres.size()))
    barrier.arrived = 0, ++barrier.generation;
}
inline void wait_for_cluster() {
  if (!host::now().announced) host::fail("a thread waits for the cluster that has not arrived");
  while (host::cluster->barrier.generation == host::now().cluster_generation) host::yield();
  host::now().announced = false;
}
template <int CLUSTER, typename... Values>
void store_in_block(uint32_t at, int rank, Values... values) {
  if (CLUSTER == 1 && rank != 0) host::fail("a store into another block without a cluster");
  if (CLUSTER > 1) check_runs(rank);
  const float all[] = {values...};
  const uint32_t there = CLUSTER == 1 ? at : (at & 0xffffffu) | static_cast<uint32_t>(rank) << 24;
  std::memcpy(host::shared_at(there, sizeof(all)), all, sizeof(all));
}
inline void wait_for_earlier_kernels() { host::now().waited = true; }
inline void let_later_kernels_start() {}

template <typename... Parameters>
int32_t launch_kernel(void (*kernel)(Parameters...), dim3 grid, int threads, int shared_bytes, int cluster,
                      bool early, void*, const Parameters&... arguments) {
  if (threads > 1024 || shared_bytes > 227 * 1024 || grid.y > 65535 ||
      grid.x % static_cast<unsigned>(cluster) != 0)
    return cudaErrorInvalidValue;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; x += static_cast<unsigned>(cluster))
        host::run_cluster({x, y, z}, cluster, grid, threads, static_cast<size_t>(shared_bytes), early,
                          [&] { kernel(arguments...); });
  return 0;
}
template <typename... Parameters>
int32_t preload_kernel(void (*)(Parameters...), int) {
  return 0;
}

inline void copy_whole(uint32_t to, const void* from) { copy_async(to, from, 16); }
inline void stream_whole(uint32_t to, const void* from) { copy_async(to, from, 16); }
inline void announce_to_cluster() { arrive_at_cluster(); }
inline void prefetch_bytes(const void* from, uint32_t bytes) {
  if (bytes == 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    host::fail("a bad prefetch");
  host::check_readable(from, bytes);
}
inline void prefetch_line(const void* of) { host::check_readable(of, 1); }
inline void wait_copies_but(int groups) {
  if (groups < 0 || groups > 7) host::fail("a wait that does not exist");
  switch (groups) {
    case 0:
      return wait_copies<0>();
    case 1:
      return wait_copies<1>();
    case 2:
      return wait_copies<2>();
    case 3:
      return wait_copies<3>();
    case 4:
      return wait_copies<4>();
    case 5:
      return wait_copies<5>();
    case 6:
      return wait_copies<6>();
    default:
      return wait_copies<7>();
  }
}
inline int32_t count_multiprocessors(int* count) {
  const char* const given = std::getenv("MULTIPROCESSORS");
  *count = given != nullptr ? std::atoi(given) : 132;
  return 0;
}
template <typename... Parameters>
int32_t prefer_shared_memory(void (*)(Parameters...)) {
  return 0;
}
