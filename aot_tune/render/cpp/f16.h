// A float of 10 of fraction in 16 bits of memory: what is computed with it is float.
struct aot_tune_f16 {
  static constexpr int fraction = 10;
  uint16_t bits;

  aot_tune_f16() = default;
  explicit aot_tune_f16(float value) { *this = value; }
  aot_tune_f16& operator=(float value) {
#if defined(__F16C__) && defined(__FLT16_MAX__)
    const auto same = static_cast<_Float16>(value);
    std::memcpy(&bits, &same, sizeof(bits));
    return *this;
#endif
    bits = static_cast<uint16_t>(narrow<uint32_t>(value));
    return *this;
  }
  operator float() const {
#if defined(__F16C__) && defined(__FLT16_MAX__)
    _Float16 same;
    std::memcpy(&same, &bits, sizeof(bits));
    return static_cast<float>(same);
#endif
    return widen<float>(static_cast<uint32_t>(bits));
  }
  // Of one or of a vector: F is float and U uint32_t, or vectors of as many; the bits are the lower half of a U.
  template <class F, class U>
  static inline __attribute__((always_inline)) F widen(U low) {
    const U magnitude = low & 0x7fffu;
    const U normal = (magnitude << 13) + 0x38000000u;  // exponents begin at -14, not at -126
    const U odd = normal + 0x38000000u;                // infinities and NaN
    // What is below 2^-14 is a whole number of 2^-24: made without subnormal floats, which may count as 0.
    const F count = aot_tune_bits_as<F>(static_cast<U>(magnitude | 0x4b000000u)) - 8388608.0f;
    const U small = aot_tune_bits_as<U>(static_cast<F>(count * 5.9604644775390625e-08f));
    const U large = count < 31744.0f ? normal : odd;
    const U found = count < 1024.0f ? small : large;
    return aot_tune_bits_as<F>(static_cast<U>(found | ((low & 0x8000u) << 16)));
  }
  // To the nearest, ties to even. NaN stays NaN.
  template <class U, class F>
  static inline __attribute__((always_inline)) U narrow(F value) {
    const U u = aot_tune_bits_as<U>(value), magnitude = u & 0x7fffffffu, none = {};
    const U normal = (magnitude + (0xfffu + ((magnitude >> 13) & 1u)) - 0x38000000u) >> 13;
    // Below 2^-14 whole numbers of 2^-24 are left, to which the sum with 0.5 rounds.
    const F size = aot_tune_bits_as<F>(magnitude), sum = size + 0.5f;
    const U small = aot_tune_bits_as<U>(sum) - 0x3f000000u;
    const U finite = size < 6.103515625e-05f ? small : normal;
    const U large = value != value ? none + 0x7e00u : none + 0x7c00u;
    return (size < 65536.0f ? finite : large) | ((u >> 16) & 0x8000u);
  }
};
