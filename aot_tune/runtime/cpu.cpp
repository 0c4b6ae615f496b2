// The CPU: which x86-64 level it supports, and workspace memory of the calling thread.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "runtime.h"

namespace aot_tune {
namespace {

constexpr const char* kVariable = "AOT_TUNE_CPU_LEVEL";

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
    level = usable_level();
    known.store(level, std::memory_order_relaxed);
  }
  if (level > 0) return level;
  const char* text = std::getenv(kVariable);
  return -fail(AOT_TUNE_ERROR_ENVIRONMENT, "%s is '%.40s', wanted 1, 2, 3 or 4 (x86-64-v1 to x86-64-v4)",
               kVariable, text != nullptr ? text : "");
}

// Grows, and is freed when its thread ends.
struct Buffer {
  void* memory = nullptr;
  size_t size = 0;
  ~Buffer() { std::free(memory); }
};

thread_local Buffer buffer;

int32_t cpu_workspace(int32_t, void*, size_t size, void** memory) noexcept {
  Buffer& mine = buffer;
  if (mine.size < size) {
    const size_t rounded = (size + 4095) / 4096 * 4096;
    std::free(mine.memory);
    mine.memory = rounded < size ? nullptr : std::aligned_alloc(64, rounded);
    mine.size = mine.memory != nullptr ? rounded : 0;
    if (mine.memory == nullptr)
      return fail(AOT_TUNE_ERROR_MEMORY, "no memory for a workspace of %zu bytes", size);
  }
  *memory = mine.memory;
  return AOT_TUNE_OK;
}

}  // namespace

extern const Backend backend_cpu;
const Backend backend_cpu = {"cpu", kDLCPU, cpu_level, cpu_workspace, nullptr, nullptr, nullptr};

}  // namespace aot_tune
