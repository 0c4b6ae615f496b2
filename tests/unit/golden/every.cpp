#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};
struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
namespace {

template <class To, class From>
inline __attribute__((always_inline)) To aot_tune_bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "aot_tune_bits_as keeps the size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// A float of 7 of fraction in 16 bits of memory: what is computed with it is float.
struct aot_tune_bf16 {
  static constexpr int fraction = 7;
  uint16_t bits;

  aot_tune_bf16() = default;
  explicit aot_tune_bf16(float value) { *this = value; }
  aot_tune_bf16& operator=(float value) {
    bits = static_cast<uint16_t>(narrow<uint32_t>(value));
    return *this;
  }
  operator float() const {
    return widen<float>(static_cast<uint32_t>(bits));
  }
  // Of one or of a vector: F is float and U uint32_t, or vectors of as many; the bits are the lower half of a U.
  template <class F, class U>
  static inline __attribute__((always_inline)) F widen(U low) {
    return aot_tune_bits_as<F>(static_cast<U>(low << 16));
  }
  // To the nearest, ties to even. NaN stays NaN.
  template <class U, class F>
  static inline __attribute__((always_inline)) U narrow(F value) {
    const U u = aot_tune_bits_as<U>(value);
    const U quiet = (u >> 16) | 0x40u, rounded = (u + (0x7fffu + ((u >> 16) & 1u))) >> 16;
    return value != value ? quiet : rounded;
  }
};

}  // namespace

extern "C" __attribute__((visibility("default"))) int32_t SYMBOL_workspace(
    [[maybe_unused]] const DLTensor* x,
    [[maybe_unused]] const DLTensor* bias,
    [[maybe_unused]] const DLTensor* copied,
    [[maybe_unused]] const DLTensor* out,
    [[maybe_unused]] float factor,
    [[maybe_unused]] uint8_t steps,
    [[maybe_unused]] int32_t mode,
    [[maybe_unused]] size_t* workspace_size) {
  *workspace_size = 0;
  return 0;
}


extern "C" __attribute__((visibility("default"))) int32_t SYMBOL_launch(
    [[maybe_unused]] const DLTensor* x,
    [[maybe_unused]] const DLTensor* bias,
    [[maybe_unused]] const DLTensor* copied,
    [[maybe_unused]] const DLTensor* out,
    [[maybe_unused]] float factor,
    [[maybe_unused]] uint8_t steps,
    [[maybe_unused]] int32_t mode,
    [[maybe_unused]] void* workspace,
    [[maybe_unused]] size_t workspace_size,
    [[maybe_unused]] void* stream) {

  for (int64_t i = 0; i < x->shape[0]; ++i)
    for (int64_t j = 0; j < x->shape[1]; ++j) {
      *(static_cast<aot_tune_bf16*>(copied->data) + (i) * copied->strides[0] + (j) * copied->strides[1]) = static_cast<aot_tune_bf16>(static_cast<float>(*(static_cast<const aot_tune_bf16*>(x->data) + (i) * x->strides[0] + (j))));
      { float aot_v = static_cast<float>(*(static_cast<const aot_tune_bf16*>(x->data) + (i) * x->strides[0] + (j))); { const float aot_e_0 = aot_v; const bool aot_e_2 = aot_e_0 < 0.0f; const float aot_e_3 = aot_e_2 ? 0.0f : aot_e_0; const float aot_e_4 = static_cast<float>(factor); const float aot_e_5 = aot_e_3 * aot_e_4; const int64_t aot_e_6 = j; const float aot_e_7 = ((bias != nullptr)) ? static_cast<float>(*(static_cast<const float*>(bias->data) + (aot_e_6) * bias->strides[0])) : 0.0f; const float aot_e_8 = aot_e_5 + aot_e_7; aot_v = aot_e_8; } *(static_cast<aot_tune_bf16*>(out->data) + (i) * out->strides[0] + (j) * out->strides[1]) = static_cast<aot_tune_bf16>(aot_v); }
    }
  return 0;
}
