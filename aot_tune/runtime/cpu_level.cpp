// Which of the levels that variants are compiled for are supported by the CPU.
#include "cpu_level.h"

#include <cstring>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace aot_tune {
namespace {

constexpr const char* kNames[kTilesLevel] = {"v1", "v2", "v3", "v4", "v4-bf16", "v4-amx"};

#if defined(__x86_64__)

struct Leaf {
  unsigned eax, ebx, ecx, edx;
};

// Not all compilers know the names of these features, so the CPU is asked.
Leaf features(unsigned leaf, unsigned subleaf = 0) noexcept {
  Leaf found{};
  if (!__get_cpuid_count(leaf, subleaf, &found.eax, &found.ebx, &found.ecx, &found.edx)) return Leaf{};
  return found;
}

constexpr unsigned kExtended = 0x80000001;

bool has_all(unsigned leaf, unsigned bits) noexcept { return (features(leaf).ecx & bits) == bits; }

bool has_bf16() noexcept {
  constexpr unsigned kBf16 = 1u << 5;
  return features(7).eax >= 1 && (features(7, 1).eax & kBf16) != 0;
}

// Whether the operating system saves the state of tiles. The CPU has XGETBV, because it has AVX.
bool keeps_tiles() noexcept {
  constexpr unsigned kTiles = 3u << 17;
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTiles) == kTiles;
}

// A process gets tiles when it asks for them. Before that, Linux keeps no room for them.
bool may_use_tiles() noexcept {
#if defined(__linux__)
  constexpr int kRequest = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;     // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}

bool has_tiles() noexcept {
  constexpr unsigned kAmx = 1u << 22 | 1u << 24 | 1u << 25;  // bf16, tile, int8
  return (features(7).edx & kAmx) == kAmx && keeps_tiles() && may_use_tiles();
}

#endif

}  // namespace

extern const bool uses_tiles __attribute__((weak)) = false;

int32_t supported_level([[maybe_unused]] bool tiles) noexcept {
#if defined(__x86_64__)
  __builtin_cpu_init();
  constexpr unsigned kCmpxchg16b = 1u << 13, kMovbe = 1u << 22, kF16c = 1u << 29;
  constexpr unsigned kLahf = 1u << 0, kLzcnt = 1u << 5;  // of the extended leaf
  if (!(has_all(1, kCmpxchg16b) && has_all(kExtended, kLahf) && __builtin_cpu_supports("popcnt") &&
        __builtin_cpu_supports("sse3") && __builtin_cpu_supports("ssse3") &&
        __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("sse4.2"))) {
    return 1;
  }
  if (!(__builtin_cpu_supports("avx") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
        __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma") && has_all(1, kMovbe | kF16c) &&
        has_all(kExtended, kLzcnt))) {
    return 2;
  }
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))) {
    return 3;
  }
  if (!has_bf16()) return 4;
  return tiles && has_tiles() ? kTilesLevel : kBf16Level;
#else
  return 1;
#endif
}

int32_t level_named(const char* text) noexcept {
  if (text[0] >= '1' && text[0] <= '0' + kTilesLevel && text[1] == '\0') return text[0] - '0';
  for (const char* prefix : {"cpu-", "x86-64-"}) {
    if (std::strncmp(text, prefix, std::strlen(prefix)) == 0) text += std::strlen(prefix);
  }
  for (int32_t level = 1; level <= kTilesLevel; ++level) {
    if (std::strcmp(text, kNames[level - 1]) == 0) return level;
  }
  return 0;
}

const char* name_of_level(int32_t level) noexcept {
  return level >= 1 && level <= kTilesLevel ? kNames[level - 1] : "?";
}

}  // namespace aot_tune
