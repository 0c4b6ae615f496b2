// How many OpenMP threads a call on the CPU gets: what was set, or else the calling thread's number, or else
// the number of cores.
#include "cpu_threads.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "runtime.h"

// NULL if no kernel uses OpenMP.
extern "C" int omp_get_max_threads() __attribute__((weak));
extern "C" int omp_get_num_procs() __attribute__((weak));
extern "C" void omp_set_num_threads(int threads) __attribute__((weak));

namespace aot_tune {

std::atomic<int32_t> thread_setting{-1};

namespace {

constexpr size_t kPath = 4096;

bool has_openmp() noexcept {
  return omp_get_max_threads != nullptr && omp_get_num_procs != nullptr && omp_set_num_threads != nullptr;
}

// The beginning of a file as text. False if it cannot be read.
bool read_text(const char* path, char* text, size_t size) noexcept {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  size_t length = 0;
  while (length + 1 < size) {
    const ssize_t got = read(file, text + length, size - 1 - length);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    length += static_cast<size_t>(got);
  }
  close(file);
  text[length] = '\0';
  return length > 0;
}

void lower(int32_t* least, long long quota, long long period) noexcept {
  if (quota <= 0 || period <= 0) return;
  const long long cores = quota / period > 1 ? quota / period : 1;
  if (*least == 0 || cores < *least) *least = static_cast<int32_t>(cores < INT32_MAX ? cores : INT32_MAX);
}

// The quota of one group, in a folder. "max" and -1 mean that there is none.
void read_quota(const char* folder, int32_t* least) noexcept {
  char path[kPath + 32];
  char text[128];
  long long quota = 0;
  long long period = 0;
  std::snprintf(path, sizeof path, "%s/cpu.max", folder);
  if (read_text(path, text, sizeof text)) {
    if (std::sscanf(text, "%lld %lld", &quota, &period) == 2) lower(least, quota, period);
    return;
  }
  std::snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
  if (!read_text(path, text, sizeof text) || std::sscanf(text, "%lld", &quota) != 1) return;
  std::snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
  if (!read_text(path, text, sizeof text) || std::sscanf(text, "%lld", &period) != 1) period = 100000;
  lower(least, quota, period);
}

// The quotas of a group and of all groups above it, up to `top`, where the hierarchy is mounted.
void read_quotas(const char* top, const char* group, int32_t* least) noexcept {
  char folder[kPath];
  const int length = std::snprintf(folder, sizeof folder, "%s%s", top, group);
  if (length < 0 || static_cast<size_t>(length) >= sizeof folder) return;
  const size_t above = std::strlen(top);
  for (size_t end = static_cast<size_t>(length);; --end) {
    if (folder[end] != '/' && folder[end] != '\0') continue;
    folder[end] = '\0';
    read_quota(folder, least);
    if (end <= above) return;
  }
}

// Reads a row of /proc/self/cgroup, "number:controllers:/group". In version 1, the hierarchy may be mounted
// under the name of each controller, or of all of them together.
void read_row(const char* root, char* row, int32_t* least) noexcept {
  char* const controllers = std::strchr(row, ':');
  char* const group = controllers != nullptr ? std::strchr(controllers + 1, ':') : nullptr;
  if (group == nullptr) return;
  *group = '\0';
  char top[kPath];
  if (controllers[1] == '\0') {
    std::snprintf(top, sizeof top, "%s/sys/fs/cgroup", root);
    read_quotas(top, group + 1, least);
    return;
  }
  std::snprintf(top, sizeof top, "%s/sys/fs/cgroup/%s", root, controllers + 1);
  read_quotas(top, group + 1, least);
  char* rest = nullptr;
  for (char* name = strtok_r(controllers + 1, ",", &rest); name != nullptr;
       name = strtok_r(nullptr, ",", &rest)) {
    if (std::strcmp(name, "cpu") != 0) continue;
    std::snprintf(top, sizeof top, "%s/sys/fs/cgroup/cpu", root);
    read_quotas(top, group + 1, least);
  }
}

// The setting if nothing was set. With OMP_NUM_THREADS, it is that number, whatever the quota.
int32_t found_setting() noexcept {
  if (!has_openmp()) return 0;
  const char* stated = std::getenv("OMP_NUM_THREADS");
  if (stated != nullptr && *stated != '\0') return 0;
  const int32_t cores = quota_cores("");
  return cores > 0 && cores < omp_get_num_procs() ? -1 - cores : 0;
}

}  // namespace

int32_t quota_cores(const char* root) noexcept {
  char path[kPath];
  char text[kPath];
  int32_t least = 0;
  std::snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  if (!read_text(path, text, sizeof text)) return 0;
  char* rest = nullptr;
  for (char* row = strtok_r(text, "\n", &rest); row != nullptr; row = strtok_r(nullptr, "\n", &rest))
    read_row(root, row, &least);
  return least;
}

namespace {

// Of rests, in ticks: some 20 ms at least, and a second at most.
constexpr int64_t kShort = INT64_C(50'000'000);
constexpr int64_t kLongest = INT64_C(2'000'000'000);

std::atomic<int64_t> rest{kShort};
std::atomic<int64_t> rest_end{0};
std::atomic<int32_t> before_rest{0};

// The setting during a rest, which may be over.
int32_t resting() noexcept {
  if (ticks() < rest_end.load(std::memory_order_relaxed)) return kResting;
  int32_t setting = kResting;
  const int32_t usual = before_rest.load(std::memory_order_relaxed);
  return thread_setting.compare_exchange_strong(setting, usual) ? usual : setting;
}

}  // namespace

void rest_threads() noexcept {
  int32_t setting = thread_setting.load(std::memory_order_relaxed);
  const char* stated = std::getenv("OMP_NUM_THREADS");
  if (setting > 0 || setting == kResting || (stated != nullptr && *stated != '\0')) return;
  const int64_t now = ticks(), last = rest.load(std::memory_order_relaxed);
  const bool soon = now - rest_end.load(std::memory_order_relaxed) < last;
  const int64_t next = !soon ? kShort : 2 * last < kLongest ? 2 * last : kLongest;
  rest.store(next, std::memory_order_relaxed);
  rest_end.store(now + next, std::memory_order_relaxed);
  before_rest.store(setting, std::memory_order_relaxed);
  thread_setting.compare_exchange_strong(setting, kResting);
}

int32_t begin_threads(int32_t setting) noexcept {
  if (!has_openmp()) return 0;
  if (setting == kResting) setting = resting();
  if (setting == -1) {
    const int32_t found = found_setting();
    if (thread_setting.compare_exchange_strong(setting, found)) setting = found;  // else it was set meanwhile
  }
  if (setting == 0) return 0;
  const int32_t before = omp_get_max_threads();
  int32_t wanted = setting;
  if (setting < 0) {  // somebody gave the thread a number that is not that of all cores
    static const int32_t all = omp_get_num_procs();
    wanted = before != all ? before : setting == kResting ? 1 : -1 - setting;
  }
  if (wanted == before) return 0;
  omp_set_num_threads(wanted);
  return before;
}

int32_t begin_one() noexcept {
  const int32_t before = has_openmp() ? omp_get_max_threads() : 1;
  if (before == 1) return 0;
  omp_set_num_threads(1);
  return before;
}

void end_threads(int32_t before) noexcept { omp_set_num_threads(before); }

int32_t set_num_threads(int32_t threads) noexcept {
  if (threads < 0) {
    return fail(AOT_TUNE_ERROR_ATTRIBUTE,
                "the number of threads is %d; wanted 1 or more, or 0 for OpenMP's own number",
                static_cast<int>(threads));
  }
  thread_setting.store(threads > 0 ? threads : found_setting(), std::memory_order_relaxed);
  return AOT_TUNE_OK;
}

int32_t get_num_threads() noexcept {
  const CallThreads threads;
  return has_openmp() ? omp_get_max_threads() : 1;
}

int32_t usual_threads() noexcept {
  const int32_t threads = has_openmp() ? omp_get_max_threads() : 0;
  if (threads != 1 || thread_setting.load(std::memory_order_relaxed) != kResting) return threads;
  const int32_t setting = before_rest.load(std::memory_order_relaxed);
  return setting < -1 ? -1 - setting : omp_get_num_procs();
}

}  // namespace aot_tune
