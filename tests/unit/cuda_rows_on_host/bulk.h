// Barriers in shared memory, copies that come when they like, and messages within a cluster, on the host. It
// stands in for templates/common/bulk.cuh.j2. A copy's bytes appear at its beginning or any time before the
// wait for them ends, so that reading too early and filling too early both show.
#pragma once
#include <ctime>
#include <mutex>
#include <random>
#include <unordered_map>

#include "../phases.h"

#define AOT_TUNE_BULK_CUH

namespace host {

constexpr size_t most_shared = 227 * 1024, shared_guard = 1024;
constexpr unsigned char nothing = 0xa7;  // what memory holds that nobody has written

struct Copy {
  void* to;
  const void* from;
  unsigned bytes;
  uint64_t* barrier;
};
alignas(128) inline thread_local unsigned char launched[most_shared + shared_guard];
inline thread_local std::vector<Copy> copies;
inline thread_local std::minstd_rand dice;

inline std::mutex barriers;                      // messages come from other threads
inline std::atomic<std::clock_t> last_event{0};  // a barrier heard of something; in the process's own time

inline void change(uint64_t* barrier, int bytes, bool arrives) {
  const std::lock_guard<std::mutex> lock(barriers);
  last_event = std::clock();
  count_in(barrier, bytes, arrives);
}

inline void finish(const Copy& copy) {
  std::memcpy(copy.to, copy.from, copy.bytes);
  change(copy.barrier, -static_cast<int>(copy.bytes), false);
}
// Any one of the copies on their way comes.
inline void finish_one() {
  if (copies.empty()) return;
  const size_t which = dice() % copies.size();
  const Copy copy = copies[which];
  copies[which] = copies.back(), copies.pop_back();
  finish(copy);
}

inline void open_shared() {
  std::memset(launched, nothing, sizeof(launched));
  last_event = std::clock();
}
inline void close_shared(size_t bytes) {
  if (!copies.empty()) fail("a block ends before its copies");
  for (size_t i = bytes; i < sizeof(launched); ++i)
    if (launched[i] != nothing) fail("more shared memory is used than was launched with");
}

// Dynamic shared memory that functions were allowed.
inline std::unordered_map<const void*, int> allowed;
inline bool may_launch(const void* function, size_t shared_bytes) {
  const auto found = allowed.find(function);
  return shared_bytes <= (found == allowed.end() ? size_t{48 * 1024} : static_cast<size_t>(found->second));
}

template <typename T>
T* in_block(const T* mine, unsigned rank) {
  if (rank == block->rank) return const_cast<T*>(mine);
  if (rank >= cluster_size) fail("a block that the cluster does not have");
  const auto offset = reinterpret_cast<const char*>(mine) - &anchor;
  return reinterpret_cast<T*>(const_cast<char*>(anchors[rank]) + offset);
}

}  // namespace host

inline void __syncwarp() { host::wait(host::block->warp_barriers[host::thread_index() / 32], 32); }

using Barrier = uint64_t;
inline void* launched_memory() { return host::launched; }
inline void barrier_init(Barrier* barrier, unsigned arrivals = 1) {
  if (reinterpret_cast<uintptr_t>(barrier) % 8 != 0) host::fail("an unaligned barrier");
  host::begin_phases(barrier, arrivals);
}
inline void barriers_ready() {}
inline void barrier_arrive(Barrier* barrier) { host::change(barrier, 0, true); }
inline void barrier_expect(Barrier* barrier, unsigned bytes) {
  host::change(barrier, static_cast<int>(bytes), true);
}
template <bool ClusterWide = false>
void barrier_wait(Barrier* barrier, unsigned parity) {
  for (long turn = 1;; ++turn) {
    {
      const std::lock_guard<std::mutex> lock(host::barriers);
      if (host::state_of(barrier).parity != parity) return;
    }
    if (turn % 1024 == 0 && std::clock() - host::last_event > CLOCKS_PER_SEC)
      host::fail("a wait that never ends");
    host::finish_one();
    host::yield();
    sched_yield();
  }
}
inline void bulk_load(void* to, const void* from, unsigned bytes, Barrier* barrier) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0 ||
      bytes % 16 != 0)
    host::fail("an unaligned copy");
  if (bytes == 0) host::fail("an empty copy");
  const host::Copy copy = {to, from, bytes, barrier};
  if (host::dice() / 16 % 2 == 0)
    host::finish(copy);
  else
    host::copies.push_back(copy);
}
inline void cluster_send(const float2* mine, float2 value, const Barrier* barrier, unsigned rank) {
  {
    const std::lock_guard<std::mutex> lock(host::barriers);
    std::memcpy(host::in_block(mine, rank), &value, sizeof(value));
  }
  host::change(host::in_block(barrier, rank), -static_cast<int>(sizeof(value)), false);
}

// -- the CUDA runtime
// ------------------------------------------------------------------------------------------------

enum {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,
  cudaSharedmemCarveoutMaxShared = 100,
};
inline int cudaFuncSetAttribute(const void* function, int attribute, int value) {
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value > static_cast<int>(host::most_shared)) return 1;
    host::allowed[function] = value;
  }
  return 0;
}
template <typename LaunchConfig>
int cudaOccupancyMaxActiveClusters(int* count, const void* function, const LaunchConfig* config) {
  *count = 2;
  return host::may_launch(function, config->dynamicSmemBytes) ? 0 : 1;
}
