// A float of 2 of fraction in 8 bits of memory: what is computed with it is float.
struct aot_tune_f8e5m2 {
  static constexpr int eight_bit_fraction = 2;
  uint8_t bits;

  aot_tune_f8e5m2() = default;
  explicit aot_tune_f8e5m2(float value) { *this = value; }
  aot_tune_f8e5m2& operator=(float value) {
    bits = static_cast<uint8_t>(narrow<uint32_t>(value));
    return *this;
  }
  operator float() const {
    return widen<float>(static_cast<uint32_t>(bits));
  }
  // Of one or of a vector: F is float and U uint32_t, or vectors of as many; the bits are the lowest byte of a U.
  template <class F, class U>
  static inline __attribute__((always_inline)) F widen(U low) {
    const U magnitude = low & 0x7fu;
    const U normal = (magnitude << 21) + 0x38000000u;  // exponents begin at -14, not at -126
    // What is below is a whole number of 2^-16: made without subnormal floats, which may count as 0.
    const F count = aot_tune_bits_as<F>(static_cast<U>(magnitude | 0x4b000000u)) - 8388608.0f;
    const U small = aot_tune_bits_as<U>(static_cast<F>(count * 1.52587890625e-05f));
    const U large = count < 124.0f ? normal : normal + 0x38000000u;
    const U found = count < 4.0f ? small : large;
    return aot_tune_bits_as<F>(static_cast<U>(found | ((low & 0x80u) << 24)));
  }
  // To the nearest, ties to even. NaN stays NaN. What is too large becomes the largest value, infinities too.
  template <class U, class F>
  static inline __attribute__((always_inline)) U narrow(F value) {
    const U u = aot_tune_bits_as<U>(value), magnitude = u & 0x7fffffffu, none = {};
    const U normal = (magnitude + (0xfffffu + ((magnitude >> 21) & 1u)) - 0x38000000u) >> 21;
    // Below 2^-14 whole numbers of 2^-16 are left, to which the sum rounds.
    const F size = aot_tune_bits_as<F>(magnitude), sum = size + 128.0f;
    const U small = aot_tune_bits_as<U>(sum) - 0x43000000u;
    const U finite = size < 6.103515625e-05f ? small : normal;
    const U large = value != value ? none + 0x7fu : none + 0x7bu;
    return (size < 61440.0f ? finite : large) | ((u >> 24) & 0x80u);
  }
};
