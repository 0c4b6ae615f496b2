// Arithmetic on values from the caller: extents, strides. A result that does not fit 64 bits, or a division
// by zero, sets `undefined`. The returned value is then meaningless.
#ifndef AOT_TUNE_RUNTIME_ARITHMETIC_H_
#define AOT_TUNE_RUNTIME_ARITHMETIC_H_

#include <cstdint>

namespace aot_tune {

inline int64_t plus(int64_t a, int64_t b, bool* undefined) noexcept {
  int64_t result;
  *undefined |= __builtin_add_overflow(a, b, &result);
  return result;
}

inline int64_t minus(int64_t a, int64_t b, bool* undefined) noexcept {
  int64_t result;
  *undefined |= __builtin_sub_overflow(a, b, &result);
  return result;
}

inline int64_t times(int64_t a, int64_t b, bool* undefined) noexcept {
  int64_t result;
  *undefined |= __builtin_mul_overflow(a, b, &result);
  return result;
}

inline int64_t quotient(int64_t a, int64_t b, bool* undefined) noexcept {
  if (b == 0 || (b == -1 && a == INT64_MIN)) {
    *undefined = true;
    return 0;
  }
  return a / b;
}

inline int64_t remainder(int64_t a, int64_t b, bool* undefined) noexcept {
  *undefined |= b == 0;
  return b == 0 || b == -1 ? 0 : a % b;
}

// The least power of two that is not below a value. It is 1 for 0 and below, and 2^62 above 2^62. It is never
// 0, so guards can divide by it.
inline int64_t next_power_of_2(int64_t value) noexcept {
  if (value <= 1) return 1;
  const int bits = 64 - __builtin_clzll(static_cast<uint64_t>(value) - 1);
  return int64_t{1} << (bits < 63 ? bits : 62);
}

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_ARITHMETIC_H_
