namespace aot_tune_glue {

#include "dlpack_tensor.h"

constexpr int32_t unavailable = -100;  // AOT_TUNE_UNAVAILABLE: the next variant serves

[[maybe_unused]] inline int64_t next_power_of_2(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

// What is passed: each becomes the type that the function takes.
struct Pointer {
  const void* data;
  template <typename T>
  static constexpr bool fits = std::is_pointer_v<T>;
  template <typename T>
  T to(bool*) const {
    return (T)data;
  }
};
struct Integer {
  int64_t value;
  template <typename T>
  static constexpr bool fits = !std::is_pointer_v<T>;
  template <typename T>
  T to(bool* lost) const {
    if constexpr (std::is_enum_v<T>) {
      return static_cast<T>(to<std::underlying_type_t<T>>(lost));
    } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      const T one = static_cast<T>(value);
      if (static_cast<int64_t>(one) != value || (value < 0 && !std::is_signed_v<T>)) *lost = true;
      return one;
    } else if constexpr (std::is_arithmetic_v<T>) {
      return static_cast<T>(value);
    } else {
      return T(static_cast<float>(value));
    }
  }
};
struct Real {
  double value;
  template <typename T>
  static constexpr bool fits = !std::is_pointer_v<T> && !std::is_integral_v<T>;
  template <typename T>
  T to(bool*) const {
    if constexpr (std::is_arithmetic_v<T>) {
      return static_cast<T>(value);
    } else {
      return T(static_cast<float>(value));
    }
  }
};
template <typename V>
struct Value {
  V value;
  template <typename T>
  static constexpr bool fits = std::is_constructible_v<T, V>;
  template <typename T>
  T to(bool*) const {
    return static_cast<T>(value);
  }
};
template <typename V>
Value(V) -> Value<V>;

// The types of a function's parameters.
template <typename F>
struct Signature;
template <typename R, typename... P>
struct Signature<R (*)(P...)> {
  static constexpr size_t count = sizeof...(P);
  using Values = std::tuple<std::decay_t<P>...>;
  template <size_t I>
  using Type = std::tuple_element_t<I, Values>;
};
#ifdef __cpp_noexcept_function_type
template <typename R, typename... P>
struct Signature<R (*)(P...) noexcept> : Signature<R (*)(P...)> {};
#endif

template <typename F, size_t I, typename A>
constexpr bool takes = A::template fits<typename Signature<F>::template Type<I>>;

template <typename F, typename... A, size_t... I>
typename Signature<F>::Values converted(bool* lost, std::index_sequence<I...>, const A&... arguments) {
  return typename Signature<F>::Values{arguments.template to<typename Signature<F>::template Type<I>>(lost)...};
}

// A field of a struct that is passed.
template <typename T, typename A>
void assign(T& field, const A& argument, bool* lost) {
  field = argument.template to<std::remove_cv_t<T>>(lost);
}

// Calls a function of the host; what it returns, if anything, is a status.
template <typename F, typename... A>
int32_t call_function(F function, const A&... arguments) {
  bool lost = false;
  auto values = converted<F>(&lost, std::index_sequence_for<A...>{}, arguments...);
  if (lost) return unavailable;
#ifdef __cpp_exceptions
  try {
#endif
    if constexpr (std::is_void_v<decltype(std::apply(function, values))>) {
      std::apply(function, values);
      return 0;
    } else {
      return static_cast<int32_t>(std::apply(function, values));
    }
#ifdef __cpp_exceptions
  } catch (...) {
    return -1;
  }
#endif
}

}  // namespace aot_tune_glue

