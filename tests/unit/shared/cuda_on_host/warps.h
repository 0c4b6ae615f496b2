// Runs CUDA kernels of warps on the host, cluster after cluster: threads take turns wherever they wait for each other.
// It stands in for the templates common/boxes.cuh.j2, common/bulk.cuh.j2, common/weight_only/launched.cuh.j2,
// gemm/cuda/matrix.cuh.j2 and gemm/cuda/device.cuh.j2. Shared memory that a launch gives holds NaN before a block, and is
// each block's own; what a kernel declares is that of all blocks. Copies come at once.
#pragma once
#include "cuda.h"
#include "cuda_runtime.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <functional>
#include <map>
#include <type_traits>
#include <vector>

constexpr int cudaErrorNotSupported = 801;

#define AOT_TUNE_BOXES_CUH
#define AOT_TUNE_BULK_CUH
#define AOT_TUNE_LAUNCHED_CUH
#define AOT_TUNE_MATRIX_CUH
#define AOT_TUNE_THIN_DEVICE_CUH

using std::max;
using std::min;
struct float4 {
  float x, y, z, w;
};

// -- threads ----------------------------------------------------------------------------------------------------------

struct Fiber {
  jmp_buf place;
  std::vector<char> stack;
  bool over;
};
inline std::vector<Fiber> fibers;  // of all blocks of a cluster
inline jmp_buf scheduler;
inline unsigned current, of_a_block;
inline unsigned rank_of_block() { return current / of_a_block; }
inline std::function<void()> thread_body;

inline void give_way() {
  if (_setjmp(fibers[current].place) == 0) _longjmp(scheduler, 1);
}
inline void run_fiber() {
  give_way();
  thread_body();
  fibers[current].over = true;
  give_way();
}

// Where so many threads meet.
struct Meeting {
  unsigned arrived = 0;
  long count = 0;
  template <class Last>
  void meet(unsigned all, Last last) {
    const long mine = count;
    if (++arrived == all) {
      last();
      arrived = 0, ++count;
    }
    while (count == mine) give_way();
  }
};
constexpr unsigned most_ranks = 8, most_warps = 64;
inline Meeting of_cluster, of_block[most_ranks], of_warps[most_warps], behind_warps[most_warps];
struct alignas(16) Lane {
  unsigned char bytes[64];
};
inline Lane given[most_warps][32], made[most_warps][32];

template <class In>
const In& of_lane(unsigned warp, unsigned lane) {
  return reinterpret_cast<const In&>(given[warp][lane]);
}
// What a warp computes together: each lane gets `of(warp, lane)` once all have given theirs.
template <class Out, class In, class Of>
Out together(const In& in, Of of) {
  static_assert(sizeof(In) <= sizeof(Lane) && sizeof(Out) <= sizeof(Lane));
  const unsigned warp = current / 32, lane = current % 32;
  std::memcpy(&given[warp][lane], &in, sizeof(in));
  of_warps[warp].meet(32, [&] {
    for (unsigned i = 0; i < 32; ++i) {
      const Out out = of(warp, i);
      std::memcpy(&made[warp][i], &out, sizeof(out));
    }
  });
  Out out;
  std::memcpy(&out, &made[warp][lane], sizeof(out));
  behind_warps[warp].meet(32, [] {});
  return out;
}
inline void wait_for_block() {
  of_block[rank_of_block()].meet(of_a_block, [] {});
}
inline void __syncwarp() {
  together<int>(0, [](unsigned, unsigned) { return 0; });
}
inline float __shfl_xor_sync(unsigned, float value, int mask) {
  return together<float>(value, [&](unsigned warp, unsigned lane) { return of_lane<float>(warp, lane ^ mask); });
}
inline int __any_sync(unsigned, int value) {
  return together<int>(value, [](unsigned warp, unsigned) {
    int any = 0;
    for (unsigned i = 0; i < 32; ++i) any |= of_lane<int>(warp, i);
    return any;
  });
}

inline unsigned char* shared_memory(unsigned rank = rank_of_block()) {
  alignas(1024) static unsigned char memory[most_ranks][227 * 1024];
  return memory[rank];
}
inline float* launched_floats() { return reinterpret_cast<float*>(shared_memory()); }
// `cluster` blocks along x run together.
template <typename... Parameters, typename... Given>
int launch_clusters(unsigned cluster, const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Given&&... arguments) {
  const dim3 grid = gridDim = config->gridDim;
  blockDim = config->blockDim;
  of_a_block = blockDim.x * blockDim.y;
  if (config->dynamicSmemBytes > 227 * 1024 || cluster > most_ranks || grid.x % cluster != 0) return cudaErrorInvalidValue;
  if (of_a_block * cluster > most_warps * 32) return cudaErrorInvalidValue;
  for (unsigned b = 0; b < grid.x * grid.y; b += cluster) {
    for (unsigned rank = 0; rank < cluster; ++rank) std::memset(shared_memory(rank), 0xff, 227 * 1024);
    thread_body = [&] { kernel(arguments...); };
    fibers.resize(of_a_block * cluster);
    for (current = 0; current < fibers.size(); ++current) {
      ucontext_t begin;
      getcontext(&begin);
      fibers[current].stack.resize(1 << 17);
      fibers[current].over = false;
      begin.uc_stack.ss_sp = fibers[current].stack.data();
      begin.uc_stack.ss_size = fibers[current].stack.size();
      makecontext(&begin, run_fiber, 0);
      if (_setjmp(scheduler) == 0) setcontext(&begin);  // from then on, without calls of the system
    }
    bool left = true;
    for (long turn = 0; left; ++turn) {
      if (turn == 1 << 22) std::abort();  // threads wait for what never comes
      left = false;
      for (current = 0; current < fibers.size(); ++current) {
        if (fibers[current].over) continue;
        const unsigned thread = current % of_a_block, block = b + rank_of_block();
        threadIdx = dim3(thread % blockDim.x, thread / blockDim.x);
        blockIdx = dim3(block % grid.x, block / grid.x);
        if (_setjmp(scheduler) == 0) _longjmp(fibers[current].place, 1);
        left = true;
      }
    }
  }
  return cudaSuccess;
}
template <typename... Parameters, typename... Given>
int launch_warps(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Given&&... arguments) {
  return launch_clusters(1, config, kernel, arguments...);
}
#define __syncthreads wait_for_block
#define cudaLaunchKernelEx launch_warps

// -- common/bulk.cuh.j2: a barrier lies in shared memory, and what it counts beside --------------------------------------

using Barrier = uint64_t;
struct Counts {
  unsigned all, left;
  long bytes, phases;
  void look() {
    if (left == 0 && bytes == 0) left = all, ++phases;
  }
};
inline std::map<const Barrier*, Counts> counts;
inline void barriers_ready() {}
inline void barrier_init(Barrier* barrier, unsigned arrivals = 1) { counts[barrier] = {arrivals, arrivals, 0, 0}; }
inline void barrier_arrive(Barrier* barrier) {
  if (counts.at(barrier).left-- == 0) std::abort();
  counts.at(barrier).look();
}
inline void barrier_expect(Barrier* barrier, unsigned bytes) {
  counts.at(barrier).bytes += bytes;
  barrier_arrive(barrier);
}
inline void barrier_wait(Barrier* barrier, unsigned parity) {
  while ((counts.at(barrier).phases & 1) == parity) give_way();
}

// -- common/boxes.cuh.j2: of elements of 16 bits --------------------------------------------------------------------------

struct BoxMap {
  const char* data;
  uint64_t extents[4], strides[3];
  uint32_t box[4];
};
inline unsigned char* memory_for_boxes() { return shared_memory(); }
inline void prefetch_map(const CUtensorMap*) {}
inline void publish_stores() {}
inline auto map_encoder() {
  return [](CUtensorMap* map, CUtensorMapDataType, unsigned, void* data, const uint64_t* extents, const uint64_t* strides,
            const uint32_t* box, const uint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
            CUtensorMapFloatOOBfill) {
    BoxMap made = {static_cast<const char*>(data), {}, {}, {}};
    std::copy_n(extents, 4, made.extents);
    std::copy_n(strides, 3, made.strides);
    std::copy_n(box, 4, made.box);
    const bool fits = std::all_of(strides, strides + 3, [](uint64_t s) { return s > 0 && s % 16 == 0; });
    if (!fits || reinterpret_cast<uintptr_t>(data) % 16 != 0 || box[0] != 64) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(map, &made, sizeof(made));
    return CUDA_SUCCESS;
  };
}
inline void stream_box(unsigned to, const CUtensorMap* map, int i, int j, int k, int l, Barrier* barrier) {
  const BoxMap& from = reinterpret_cast<const BoxMap&>(*map);
  if (to % 1024 != 0) std::abort();
  for (uint64_t row = 0; row < from.box[1]; ++row) {
    for (uint64_t column = 0; column < 64; ++column) {
      const uint64_t at[4] = {i + column, j + row, static_cast<uint64_t>(k), static_cast<uint64_t>(l)};
      uint16_t element = 0;
      if (std::equal(at, at + 4, from.extents, std::less<>()))
        std::memcpy(&element, from.data + at[0] * 2 + at[1] * from.strides[0] + at[2] * from.strides[1] + at[3] * from.strides[2], 2);
      std::memcpy(shared_memory() + to + row * 128 + ((column / 8 ^ row % 8) << 4) + column % 8 * 2, &element, 2);
    }
  }
  counts.at(barrier).bytes -= from.box[1] * 128;
  counts.at(barrier).look();
}

// -- gemm/cuda/matrix.cuh.j2 and device.cuh.j2 ----------------------------------------------------------------------------

inline void wait_for_earlier_kernels() {}
inline void let_later_kernels_start() {}
inline void prefetch_line(const void*) {}
inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(p) - shared_memory());
}
// A cluster's barrier in two halves: its threads wait in the second one, as no test looks at what they do in between.
inline void announce_to_cluster() {}
inline void arrive_at_cluster() {}
inline void wait_for_cluster() {
  of_cluster.meet(fibers.size(), [] {});
}
template <int CLUSTER>
void store_in_block(uint32_t at, int rank, float x) {
  std::memcpy(shared_memory(rank) + at, &x, sizeof(x));
}
struct Words {
  uint32_t at[4];
};
template <bool Transposed>
void load_words(uint32_t at, uint32_t (&words)[4]) {
  const Words found = together<Words>(at, [](unsigned warp, unsigned lane) {
    Words out;
    for (unsigned block = 0; block < 4; ++block) {
      uint16_t two[2];
      for (unsigned e = 0; e < 2; ++e) {
        const unsigned a = lane / 4, b = lane % 4 * 2 + e, row = Transposed ? b : a, column = Transposed ? a : b;
        std::memcpy(&two[e], shared_memory() + of_lane<uint32_t>(warp, block * 8 + row) + column * 2, 2);
      }
      std::memcpy(&out.at[block], two, 4);
    }
    return out;
  });
  std::copy_n(found.at, 4, words);
}
inline void load_blocks(uint32_t at, uint32_t (&words)[4]) { load_words<false>(at, words); }
inline void load_blocks_transposed(uint32_t at, uint32_t (&words)[4]) { load_words<true>(at, words); }
template <typename T>
float half_of(uint32_t word, unsigned index) {
  const T value = bits_as<T>(static_cast<uint16_t>(word >> 16 * index));
  if constexpr (std::is_same_v<T, __half>)
    return __half2float(value);
  else
    return __bfloat162float(value);
}
struct Factors {
  uint32_t a[4], b[2];
  float c[4];
};
struct Four {
  float at[4];
};
template <typename T>
void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, T) {
  const Factors mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}, {c[0], c[1], c[2], c[3]}};
  const Four sums = together<Four>(mine, [](unsigned warp, unsigned lane) {
    Four out;
    for (unsigned e = 0; e < 4; ++e) {
      const unsigned row = lane / 4, column = lane % 4 * 2 + e % 2;
      out.at[e] = of_lane<Factors>(warp, lane).c[e];
      for (unsigned k = 0; k < 16; ++k) {
        const unsigned quarter = k % 8 / 2, upper = k / 8;
        out.at[e] += half_of<T>(of_lane<Factors>(warp, row * 4 + quarter).a[e / 2 + 2 * upper], k % 2) *
                     half_of<T>(of_lane<Factors>(warp, column * 4 + quarter).b[upper], k % 2);
      }
    }
    return out;
  });
  std::copy_n(sums.at, 4, c);
}

template <typename... Parameters>
int launch_kernel(void (*kernel)(Parameters...), dim3 grid, int threads, int shared_bytes, int cluster, bool, void*,
                  const Parameters&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  return launch_clusters(static_cast<unsigned>(cluster), &config, kernel, arguments...);
}
template <typename... Parameters>
int preload_kernel(void (*)(Parameters...), int) {
  return cudaSuccess;
}
template <typename... Parameters>
int prefer_shared_memory(void (*)(Parameters...)) {
  return cudaSuccess;
}
inline int count_multiprocessors(int* count) { return cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, 0); }
