// Parallel regions of kernels. The library is linked with --wrap for these functions of GNU's OpenMP.
//
// One that one thread runs begins none: GNU's makes a system call at the end of each region, also if it has a
// team of one. Then a small call takes 0.2 us longer, and what the caller does next is slower, too.
//
// In the others, a thread may have to wait for a core that another program uses, and the caller waits for it.
// If that costs more than the team has saved lately, calls get one thread for a while.
#include <algorithm>
#include <cstdint>

#include "cpu_threads.h"

namespace {

using Region = void (*)(void*);

// A wait is one for a core if it is this long, and so many times as long as the caller's own part.
constexpr int64_t kLong = 300'000;
constexpr int64_t kTimes = 4;
// What a team has saved is forgotten beyond this.
constexpr int64_t kMost = 30'000'000;

// The caller's part of a region, in ticks.
struct Part {
  Region region;
  void* data;
  int64_t end;
  int64_t waited;  // for others, within it
};

thread_local Part* part = nullptr;
thread_local int64_t saved = 0;

}  // namespace

extern "C" {

// Weak: NULL if no kernel uses OpenMP.
void __real_GOMP_parallel(Region region, void* data, unsigned threads, unsigned flags) __attribute__((weak));
void __real_GOMP_barrier() __attribute__((weak));
void __real_GOMP_loop_end() __attribute__((weak));
int omp_get_max_threads() __attribute__((weak));
int omp_in_parallel() __attribute__((weak));

static void run_part(void* data) {
  Part* const own = static_cast<Part*>(data);
  if (part != own) return own->region(own->data);  // another thread of the team
  own->region(own->data);
  own->end = aot_tune::ticks();
}

// `threads` is 0 if the region does not say how many.
__attribute__((visibility("hidden"))) void __wrap_GOMP_parallel(Region region, void* data, unsigned threads,
                                                                unsigned flags) {
  const int64_t team = threads != 0 ? static_cast<int64_t>(threads) : omp_get_max_threads();
  // In a parallel region of the caller, a thread would take the number that it has there for its number in
  // the team.
  const bool nested = omp_in_parallel() != 0;
  if (team == 1 && !nested) return region(data);
  if (nested) return __real_GOMP_parallel(region, data, threads, flags);
  const int64_t begin = aot_tune::ticks();
  Part own{region, data, begin, 0};
  part = &own;
  __real_GOMP_parallel(run_part, &own, threads, flags);
  part = nullptr;
  const int64_t waited = own.waited + aot_tune::ticks() - own.end, work = own.end - begin - own.waited;
  const bool crowded = waited > kLong && waited > kTimes * work;
  saved = std::min(saved + (team - 1) * work - (crowded ? waited : 0), kMost);
  if (__builtin_expect(saved >= 0, 1)) return;
  saved = 0;
  aot_tune::rest_threads();
}

__attribute__((visibility("hidden"))) void __wrap_GOMP_barrier() {
  const int64_t begin = part != nullptr ? aot_tune::ticks() : 0;
  __real_GOMP_barrier();
  if (part != nullptr) part->waited += aot_tune::ticks() - begin;
}

__attribute__((visibility("hidden"))) void __wrap_GOMP_loop_end() {
  const int64_t begin = part != nullptr ? aot_tune::ticks() : 0;
  __real_GOMP_loop_end();
  if (part != nullptr) part->waited += aot_tune::ticks() - begin;
}

}  // extern "C"
