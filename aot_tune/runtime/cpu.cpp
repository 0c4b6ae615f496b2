// The CPU: which x86-64 level it supports, workspace memory of the calling thread, and what a fork needs.
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "runtime.h"

// Of OpenMP, the first of 5.0; NULL where no kernel uses OpenMP.
extern "C" int omp_pause_resource_all(int kind) __attribute__((weak));
extern "C" int omp_get_max_threads() __attribute__((weak));

namespace aot_tune {
namespace {

constexpr const char* kVariable = "AOT_TUNE_CPU_LEVEL";

// A child of fork has none of the threads that its parent's thread kept for OpenMP, but the list of them: it
// would wait for them for ever. So they end before a fork, and parent and child start new ones when they next
// need some.
void end_threads() noexcept {
  constexpr int kSoft = 1;  // omp_pause_soft
  if (omp_pause_resource_all != nullptr) omp_pause_resource_all(kSoft);
}

// At the first call, not when the library is loaded.
void prepare_for_forks() noexcept {
  static const int status = pthread_atfork(end_threads, nullptr, nullptr);
  (void)status;
}

// 1 for plain x86-64 up to 4 for x86-64-v4: all features of the level, enabled by the operating system too.
int32_t supported_level() noexcept {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!(__builtin_cpu_supports("cmpxchg16b") && __builtin_cpu_supports("lahf_lm") &&
        __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("sse3") &&
        __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.1") &&
        __builtin_cpu_supports("sse4.2"))) {
    return 1;
  }
  if (!(__builtin_cpu_supports("avx") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
        __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("lzcnt") && __builtin_cpu_supports("movbe"))) {
    return 2;
  }
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))) {
    return 3;
  }
  return 4;
#else
  return 1;
#endif
}

// The supported level, lowered by the environment variable; 0 when its value is bad.
int32_t usable_level() noexcept {
  const int32_t supported = supported_level();
  const char* text = std::getenv(kVariable);
  if (text == nullptr || *text == '\0') return supported;
  for (const char* prefix : {"cpu-", "x86-64-", "v"}) {
    if (std::strncmp(text, prefix, std::strlen(prefix)) == 0) text += std::strlen(prefix);
  }
  if (text[0] < '1' || text[0] > '4' || text[1] != '\0') return 0;
  const int32_t wanted = text[0] - '0';
  return wanted < supported ? wanted : supported;
}

int32_t cpu_level(int32_t) noexcept {
  static std::atomic<int32_t> known{-1};  // every thread computes the same value, so no lock is needed
  int32_t level = known.load(std::memory_order_relaxed);
  if (level < 0) {
    prepare_for_forks();
    level = usable_level();
    known.store(level, std::memory_order_relaxed);
  }
  if (level > 0) return level;
  const char* text = std::getenv(kVariable);
  return -fail(AOT_TUNE_ERROR_ENVIRONMENT, "%s is '%.40s', wanted 1, 2, 3 or 4 (x86-64-v1 to x86-64-v4)",
               kVariable, text != nullptr ? text : "");
}

// Grows, and is freed when its thread ends. Destructors of others may call after that: they get it anew.
struct Buffer {
  void* memory;
  size_t size;
};

thread_local Buffer buffer{nullptr, 0};

struct Owner {
  bool used = false;
  ~Owner() {
    std::free(buffer.memory);
    buffer = {nullptr, 0};
  }
};

thread_local Owner owner;

int32_t cpu_workspace(int32_t, void*, size_t size, Workspace* taken) noexcept {
  Buffer& mine = buffer;
  if (mine.size < size) {
    owner.used = true;  // so that its destructor runs
    const size_t rounded = (size + 4095) / 4096 * 4096;
    std::free(mine.memory);
    mine.memory = rounded < size ? nullptr : std::aligned_alloc(64, rounded);
    mine.size = mine.memory != nullptr ? rounded : 0;
    if (mine.memory == nullptr)
      return fail(AOT_TUNE_ERROR_MEMORY, "no memory for a workspace of %zu bytes", size);
  }
  taken->memory = mine.memory;
  return AOT_TUNE_OK;
}

int32_t cpu_processors(int32_t) noexcept {
  return omp_get_max_threads != nullptr ? omp_get_max_threads() : 0;
}

}  // namespace

extern const Backend backend_cpu;
const Backend backend_cpu = {"cpu",   kDLCPU,  cpu_level, cpu_workspace, nullptr,
                             nullptr, nullptr, nullptr,   nullptr,       cpu_processors};

}  // namespace aot_tune
