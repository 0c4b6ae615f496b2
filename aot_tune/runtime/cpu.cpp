// The CPU: the level at which it is used, workspace memory of the calling thread, and handling of forks.
#include <pthread.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "cpu_level.h"
#include "cpu_threads.h"
#include "runtime.h"

// Of OpenMP, since 5.0. NULL if no kernel uses OpenMP.
extern "C" int omp_pause_resource_all(int kind) __attribute__((weak));

namespace aot_tune {
namespace {

constexpr const char* kVariable = "AOT_TUNE_CPU_LEVEL";

// A child of fork has none of its parent's OpenMP threads, but it has their list. It would wait for them for
// ever. So the threads end before a fork. Parent and child start new ones when they need some.
void end_threads() noexcept {
  constexpr int kSoft = 1;  // omp_pause_soft
  if (omp_pause_resource_all != nullptr) omp_pause_resource_all(kSoft);
}

// This happens at the first call, not when the library is loaded.
void prepare_for_forks() noexcept {
  static const int status = pthread_atfork(end_threads, nullptr, nullptr);
  (void)status;
}

// The supported level, lowered by the environment variable. 0 if its value is bad.
int32_t usable_level() noexcept {
  const char* text = std::getenv(kVariable);
  const int32_t wanted = text == nullptr || *text == '\0' ? kTilesLevel : level_named(text);
  if (wanted == 0) return 0;
  const int32_t supported = supported_level(uses_tiles && wanted == kTilesLevel);
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
  return -fail(AOT_TUNE_ERROR_ENVIRONMENT, "%s is '%.40s', wanted 1 to 6 (v1, v2, v3, v4, v4-bf16, v4-amx)",
               kVariable, text != nullptr ? text : "");
}

// The buffer grows, and is freed when its thread ends. Destructors of others may call later: they get a new
// one.
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

int32_t cpu_processors(int32_t) noexcept { return usual_threads(); }

void cpu_model([[maybe_unused]] int32_t device_id, [[maybe_unused]] char* name,
               [[maybe_unused]] size_t size) noexcept {
#ifdef __x86_64__
  unsigned words[12] = {};
  for (unsigned i = 0; i < 3; ++i)
    __get_cpuid(0x80000002 + i, words + 4 * i, words + 4 * i + 1, words + 4 * i + 2, words + 4 * i + 3);
  if (size >= sizeof words) std::memcpy(name, words, sizeof words);  // it ends with a zero
#endif
}

}  // namespace

extern const Backend backend_cpu;
const Backend backend_cpu = {"cpu",   kDLCPU,  cpu_level,      cpu_workspace, nullptr, nullptr, nullptr,
                             nullptr, nullptr, cpu_processors, nullptr,       nullptr, nullptr, cpu_model};

}  // namespace aot_tune
