// Barriers in shared memory, and messages within a cluster, on the host. It stands in for
// templates/common/bulk.cuh.j2.
#pragma once
#include <ctime>
#include <mutex>

#include "../phases.h"

#define AOT_TUNE_BULK_CUH

namespace host {

inline std::mutex barriers;                      // messages come from other threads
inline std::atomic<std::clock_t> last_event{0};  // a barrier heard of something; in the process's own time

inline void change(uint64_t* barrier, int bytes, bool arrives) {
  const std::lock_guard<std::mutex> lock(barriers);
  last_event = std::clock();
  count_in(barrier, bytes, arrives);
}

inline void begin_block() { last_event = std::clock(); }

template <typename T>
T* in_block(const T* mine, unsigned rank) {
  if (rank == block->rank) return const_cast<T*>(mine);
  if (rank >= cluster_size) fail("a block that the cluster does not have");
  const auto offset = reinterpret_cast<const char*>(mine) - &anchor;
  return reinterpret_cast<T*>(const_cast<char*>(anchors[rank]) + offset);
}

}  // namespace host

using Barrier = uint64_t;
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
    host::yield();
    sched_yield();
  }
}
inline void cluster_send(const float2* mine, float2 value, const Barrier* barrier, unsigned rank) {
  {
    const std::lock_guard<std::mutex> lock(host::barriers);
    std::memcpy(host::in_block(mine, rank), &value, sizeof(value));
  }
  host::change(host::in_block(barrier, rank), -static_cast<int>(sizeof(value)), false);
}
