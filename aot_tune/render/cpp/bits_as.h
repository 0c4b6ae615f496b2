template <class To, class From>
inline __attribute__((always_inline)) To aot_tune_bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "aot_tune_bits_as keeps the size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
