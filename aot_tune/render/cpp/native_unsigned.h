namespace aot_tune_glue {

// An integer of 64 bits without a sign.
struct Unsigned {
  uint64_t value;
  template <typename T>
  static constexpr bool fits = !std::is_pointer_v<T>;
  template <typename T>
  T to(bool* lost) const {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      const T one = static_cast<T>(value);
      if (static_cast<uint64_t>(one) != value || (std::is_signed_v<T> && value > uint64_t{INT64_MAX})) *lost = true;
      return one;
    } else {
      return static_cast<T>(value);
    }
  }
};

}  // namespace aot_tune_glue

