// Runs CUDA kernels on the host, one fibre per thread, to check their index arithmetic and barriers where no
// GPU is. Only what the gemm templates use. Copies that are asynchronous on the GPU happen here as late as
// their waits allow, and warps run side by side; with HASTE in the environment copies happen at once, a warp
// runs ahead of the others as far as barriers let it, and so do the first blocks of a cluster.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "../fibre.h"

#define __host__
#define __device__
#define __forceinline__ inline
#define __global__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
constexpr int cudaErrorInvalidValue = 1;
struct float2 {
  float x, y;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

namespace host {

struct Barrier {
  int arrived = 0, generation = 0;
};
struct Warp {
  Barrier barrier;
  uint32_t words[32][8];
};
struct Block {
  std::vector<unsigned char> memory;
  Barrier barrier;
  std::vector<Warp> warps;
  int running = 0;  // threads
  bool begun = false;
};
struct Copy {
  unsigned char* to;
  const void* from;
  int valid;
};
struct Fibre {
  Context context;
  dim3 thread, block;
  int rank = 0, cluster_generation = 0;
  bool done = false, waited = false;  // for the kernels before this one
  bool announced = false;             // to the cluster, without waiting for it yet
  std::vector<Copy> open;
  std::vector<std::vector<Copy>> groups;
};
struct Cluster {
  std::vector<Block> blocks;
  std::vector<Fibre> fibres;
  Barrier barrier;
  Context scheduler;
  Fibre* now = nullptr;
  dim3 grid, size;
  std::function<void()> body;
  bool early = false;  // it may have started before the kernels before it had ended
  long events = 0;  // without any in a turn of all threads there will be none
};
inline Cluster* cluster = nullptr;
constexpr size_t shared_guard = 1024;  // bytes behind shared memory that nobody may write

struct Range {
  const unsigned char *first, *end;
};
inline const bool haste = std::getenv("HASTE") != nullptr;
inline std::vector<Range> inputs;  // what may be read; anything where nothing is listed

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "cuda_on_host: %s\n", what);
  std::exit(3);
}
inline Fibre& now() { return *cluster->now; }
inline Block& block() { return cluster->blocks[static_cast<size_t>(now().rank)]; }
inline int lane() { return static_cast<int>(now().thread.x % 32); }
inline Warp& warp() { return block().warps[now().thread.x / 32]; }
inline void yield() { now().context.leave_for(cluster->scheduler); }
inline void wait(Barrier& barrier, int count) {
  const int mine = barrier.generation;
  ++cluster->events;
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.generation;
  }
  while (barrier.generation == mine) yield();
}
inline void wait_warp() { wait(warp().barrier, 32); }
inline void check_readable(const void* from, size_t bytes) {
  const auto* const first = static_cast<const unsigned char*>(from);
  bool inside = inputs.empty();
  for (const Range& range : inputs) inside |= first >= range.first && first + bytes <= range.end;
  if (!inside) fail("a read beside the inputs");
}
inline void check_has_waited() {
  if (cluster->early && !now().waited) fail("a kernel did not wait for those before it");
}

// 32-bit addresses of shared memory: the block's rank in its cluster, then the offset.
inline unsigned char* shared_range(uint32_t at, size_t bytes, size_t alignment) {
  auto& memory = cluster->blocks.at(at >> 24).memory;
  const size_t offset = at & 0xffffffu;
  if (offset + bytes > memory.size() - shared_guard || offset % alignment != 0)
    fail("shared memory: out of bounds or unaligned");
  return memory.data() + offset;
}
inline unsigned char* shared_at(uint32_t at, size_t bytes) { return shared_range(at, bytes, bytes); }
inline uint32_t word_at(uint32_t at) {
  uint32_t word;
  std::memcpy(&word, shared_at(at, 4), 4);
  return word;
}
inline unsigned char* shared_memory() { return block().memory.data(); }

// The last thread of a block has ended, and with it its shared memory.
inline void check_is_idle(Block& ended) {
  for (size_t i = ended.memory.size() - shared_guard; i < ended.memory.size(); ++i)
    if (ended.memory[i] != 0xff) fail("more shared memory is used than was launched with");
}
inline void enter() {
  block().begun = true;
  cluster->body();
  check_has_waited();
  now().done = true;
  ++cluster->events;
  if (--block().running == 0) check_is_idle(block());
  for (;;) yield();
}

// Runs each thread of a warp until it waits, with haste until all of them wait for others.
inline void run_warp(Cluster& all, size_t first) {
  long events;
  do {
    events = all.events;
    for (size_t lane = first; lane < first + 32; ++lane) {
      if (all.fibres[lane].done) continue;
      all.now = &all.fibres[lane];
      all.scheduler.leave_for(all.now->context);
    }
  } while (haste && all.events != events);
}
// Runs the first blocks until all of their threads wait for something else. Whether there are any left.
inline bool run_turn(Cluster& all, int started) {
  const size_t threads = all.size.x;
  long events;
  do {
    events = all.events;
    for (size_t i = 0; i < static_cast<size_t>(started) * threads; i += 32) run_warp(all, i);
  } while (all.events != events);
  return std::any_of(all.fibres.begin(), all.fibres.end(), [](const Fibre& fibre) { return !fibre.done; });
}

inline void run_cluster(dim3 first, int blocks, dim3 grid, int threads, size_t shared_bytes, bool early,
                        std::function<void()> body) {
  Cluster all;
  all.early = early;
  cluster = &all;
  all.grid = grid, all.size = dim3(static_cast<unsigned>(threads)), all.body = std::move(body);
  all.blocks.resize(static_cast<size_t>(blocks));
  all.fibres.resize(static_cast<size_t>(blocks * threads));
  for (auto& one : all.blocks) {
    one.memory.assign(shared_bytes + shared_guard, 0xff);  // NaN in every format
    one.running = threads;
    one.warps.resize(static_cast<size_t>(threads / 32));
  }
  for (size_t i = 0; i < all.fibres.size(); ++i) {
    Fibre& fibre = all.fibres[i];
    fibre.rank = static_cast<int>(i) / threads;
    fibre.thread = dim3(static_cast<unsigned>(static_cast<int>(i) % threads), 0, 0);
    fibre.block = dim3(first.x + static_cast<unsigned>(fibre.rank), first.y, first.z);
    fibre.context.begin_at(enter, 128 * 1024);
  }
  int started = haste ? 1 : blocks;
  while (run_turn(all, started)) {
    if (started < blocks)
      ++started;
    else
      fail("a barrier is never reached by all");
  }
  for (auto& fibre : all.fibres) {
    if (!fibre.open.empty()) fail("copies were begun and never committed");
    for (auto& group : fibre.groups)
      if (!group.empty()) fail("a kernel ended before its copies");
  }
  cluster = nullptr;
}

}  // namespace host

#define threadIdx (host::now().thread)
#define blockIdx (host::now().block)
#define gridDim (host::cluster->grid)
#define blockDim (host::cluster->size)

inline void __syncthreads() { host::wait(host::block().barrier, static_cast<int>(blockDim.x)); }
inline void __syncwarp() { host::wait_warp(); }
inline float __shfl_xor_sync(uint32_t, float v, int mask) {
  host::Warp& warp = host::warp();
  std::memcpy(&warp.words[host::lane()][0], &v, 4);
  host::wait_warp();
  float other;
  std::memcpy(&other, &warp.words[host::lane() ^ mask][0], 4);
  host::wait_warp();
  return other;
}
inline float __uint_as_float(uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline uint32_t __float_as_uint(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
}
