// The clock of the probes.
#ifndef BENCHMARKS_TIMING_H_
#define BENCHMARKS_TIMING_H_

#include <time.h>

#include <cstdint>

inline double now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

// Mean time of a call in ns; -1 if one fails.
template <typename Call>
double time_calls(int64_t count, Call call) {
  int32_t failed = 0;
  const double begin = now_ns();
  for (int64_t i = 0; i < count; ++i) failed |= call();
  const double spent = now_ns() - begin;
  return failed != 0 ? -1 : spent / static_cast<double>(count);
}

#endif  // BENCHMARKS_TIMING_H_
