// What the CPU and the operating system support.
#ifndef AOT_TUNE_RUNTIME_CPU_LEVEL_H_
#define AOT_TUNE_RUNTIME_CPU_LEVEL_H_

#include <cstdint>

namespace aot_tune {

// Whether a variant of the library needs the tiles of AMX. If one does, this is generated.
extern const bool uses_tiles;

constexpr int32_t kBf16Level = 5;   // x86-64-v4 with AVX512-BF16
constexpr int32_t kTilesLevel = 6;  // and AMX

// 1 for plain x86-64 up to 4 for x86-64-v4, and the two levels above. All features of the level must be
// enabled by the operating system too. With `tiles`, a process on a CPU with AMX asks the system for it.
// Without, it does not ask.
int32_t supported_level(bool tiles) noexcept;

// The level that a text names: a number, or a target's name from its first, second or third word on. 0 if
// there is none.
int32_t level_named(const char* text) noexcept;

// The name of a level, such as "v4".
const char* name_of_level(int32_t level) noexcept;

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_CPU_LEVEL_H_
