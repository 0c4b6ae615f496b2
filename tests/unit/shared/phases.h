// Barriers in shared memory that await arrivals and bytes, for the tests that run CUDA kernels on the host.
#pragma once
#include <cstdint>
#include <cstring>

namespace host {

[[noreturn]] inline void fail(const char* what);

// The state of a barrier in its 8 bytes.
struct State {
  uint32_t parity : 1, arrived : 6, arrivals : 6, live : 19;
  int32_t missing;  // bytes; those that come before they are expected count below 0
};
static_assert(sizeof(State) == 8);
constexpr uint32_t alive = 0x2badcafe & 0x7ffff;

inline State state_of(const void* barrier) {
  State state;
  std::memcpy(&state, barrier, sizeof(state));
  if (state.live != alive) fail("a barrier that is not initialised");
  return state;
}
inline void begin_phases(void* barrier, unsigned arrivals) {
  const State state = {0, 0, arrivals, alive, 0};
  std::memcpy(barrier, &state, sizeof(state));
}
// Bytes are expected (above 0) or have come (below), and somebody arrives or not. Whether that ended a phase.
inline bool count_in(void* barrier, int bytes, bool arrives) {
  State state = state_of(barrier);
  if (arrives && state.arrived == state.arrivals) fail("more arrive in a phase than a barrier is for");
  state.missing += bytes;
  state.arrived += static_cast<unsigned>(arrives);
  const bool all = state.arrived == state.arrivals;
  if (all && state.missing < 0) fail("more bytes come than a barrier expects");
  if (all && state.missing == 0) state.parity ^= 1u, state.arrived = 0;
  std::memcpy(barrier, &state, sizeof(state));
  return all && state.missing == 0;
}

}  // namespace host
