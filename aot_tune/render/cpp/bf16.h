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
