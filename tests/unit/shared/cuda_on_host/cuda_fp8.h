// Floats of 8 bits, as CUDA's: rounded to nearest, ties to even; what is too large becomes the largest.
#pragma once
#include "cuda_runtime.h"

enum { __NV_SATFINITE = 1, __NV_E4M3 = 0 };

struct __nv_fp8_e4m3 {
  uint8_t bits;

  explicit __nv_fp8_e4m3(float x) {
    const float size = std::fabs(x);
    int exponent = 0;
    std::frexp(size, &exponent);
    exponent = size == 0.0f || exponent < -5 ? -5 : exponent;  // from there on steps are equal
    const float steps = std::nearbyint(std::ldexp(size, 4 - exponent));
    const float magnitude = size < 464.0f ? (exponent + 5) * 8 + steps : 126.0f;
    bits = static_cast<uint8_t>((x != x ? 127 : static_cast<int>(magnitude)) | (std::signbit(x) ? 128 : 0));
  }
  explicit operator float() const {
    const int exponent = bits >> 3 & 15, fraction = bits & 7;
    const float size = std::ldexp(exponent ? 8.0f + fraction : fraction, (exponent ? exponent : 1) - 10);
    return std::copysign((bits & 127) == 127 ? NAN : size, bits & 128 ? -1.0f : 1.0f);
  }
};

inline uint16_t __nv_cvt_float2_to_fp8x2(float2 pair, int, int) {
  return static_cast<uint16_t>(__nv_fp8_e4m3(pair.x).bits | __nv_fp8_e4m3(pair.y).bits << 8);
}
