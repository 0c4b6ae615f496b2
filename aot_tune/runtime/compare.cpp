// How results are compared, and what is told of a difference. Without the variable, nothing of this runs.
#include "compare.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "warn.h"

namespace aot_tune {

namespace {

constexpr const char* kVariable = "AOT_TUNE_CHECK";
constexpr const char* kFirst = "first";
constexpr uint64_t kMost = 1000000000;
constexpr int64_t kLongRow = 16;  // shorter rows may be small by chance
constexpr double kSums = 16384;   // sums in another order are off by as many roundings of f32 at most
constexpr size_t kAligned = 256;

// What the variable says: every so manieth call of a variant, or 0 for the first ones.
struct Given {
  const char* const text = copied(std::getenv(kVariable));
  uint64_t every = 0;
  bool bad = false;
  Given() noexcept {
    if (*text == '\0' || std::strcmp(text, kFirst) == 0) return;
    const char* digit = text;
    for (; *digit >= '0' && *digit <= '9' && every <= kMost; ++digit)
      every = 10 * every + static_cast<uint64_t>(*digit - '0');
    bad = every == 0 || every > kMost || *digit != '\0';
  }
};

const Given& given() noexcept {
  static const Given known;
  return known;
}

bool is_floating(const DLDataType& type) noexcept {
  return type.code == kDLFloat || type.code == kDLBfloat || type.code == kDLFloat8_e4m3fn ||
         type.code == kDLFloat8_e5m2;
}

// The distance from 1 to the next number.
double epsilon_of(const DLDataType& type) noexcept {
  const int fraction = type.code == kDLFloat8_e4m3fn ? 3
                       : type.code == kDLFloat8_e5m2 ? 2
                       : type.code == kDLBfloat      ? 7
                       : type.bits == 16             ? 10
                       : type.bits == 32             ? 23
                                                     : 52;
  return std::ldexp(1.0, -fraction);
}

// A float of 8 or 16 bits, whose fraction is so long.
double small_float(uint32_t bits, int exponent_bits, int fraction_bits, bool has_infinity) noexcept {
  const uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const uint32_t exponent = bits >> fraction_bits & ((1u << exponent_bits) - 1),
                 top = (1u << exponent_bits) - 1;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (bits >> (exponent_bits + fraction_bits) & 1u) != 0 ? -1 : 1;
  if (exponent == top && has_infinity) return fraction == 0 ? sign * __builtin_inf() : __builtin_nan("");
  if (exponent == top && fraction + 1 == 1u << fraction_bits && !has_infinity) return __builtin_nan("");
  const int power = exponent == 0 ? 1 - bias : static_cast<int>(exponent) - bias;
  const uint32_t whole = fraction + (exponent == 0 ? 0 : 1u << fraction_bits);
  return sign * std::ldexp(static_cast<double>(whole), power - fraction_bits);
}

template <typename T>
T read_as(const void* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

double value_at(const void* at, const DLDataType& type) noexcept {
  const bool is_signed = type.code == kDLInt;
  switch (type.bits) {
    case 8: {
      const auto byte = read_as<uint8_t>(at);
      if (type.code == kDLFloat8_e4m3fn) return small_float(byte, 4, 3, false);
      if (type.code == kDLFloat8_e5m2) return small_float(byte, 5, 2, true);
      return is_signed ? read_as<int8_t>(at) : byte;
    }
    case 16: {
      const auto half = read_as<uint16_t>(at);
      if (type.code == kDLBfloat) return small_float(half, 8, 7, true);
      if (type.code == kDLFloat) return small_float(half, 5, 10, true);
      return is_signed ? read_as<int16_t>(at) : half;
    }
    case 32:
      if (type.code == kDLFloat) return static_cast<double>(read_as<float>(at));
      return is_signed ? read_as<int32_t>(at) : static_cast<double>(read_as<uint32_t>(at));
    default:
      if (type.code == kDLFloat) return read_as<double>(at);
      return is_signed ? static_cast<double>(read_as<int64_t>(at))
                       : static_cast<double>(read_as<uint64_t>(at));
  }
}

// The elements of a tensor, in row-major order. `visit` gets each one's index and offset in bytes, until it
// returns false.
template <typename Visit>
void for_each_element(const View& view, Visit visit) noexcept {
  int64_t index[kMaxRank] = {};
  const int rank = view.tensor.ndim;
  const int64_t bytes = view.tensor.dtype.bits / 8;
  for (;;) {
    int64_t offset = 0;
    for (int axis = 0; axis < rank; ++axis) offset += index[axis] * view.tensor.strides[axis];
    if (!visit(index, offset * bytes)) return;
    int axis = rank - 1;
    for (; axis >= 0 && ++index[axis] == view.tensor.shape[axis]; --axis) index[axis] = 0;
    if (axis < 0) return;
  }
}

// Two results of one output: the call's, and another one.
struct Pair {
  const char* mine;
  const char* other;
};

struct Compared {
  const View& view;
  const Pair& results;
  const Tolerance& allowed;
  double rounding;
  bool floating;
  double largest = 0;  // of the other results, of a row or of all
  int64_t elements = 0, off = 0;
  double worst = 0;
  double mine = 0, other = 0, bound = 0;  // of the worst element
  int64_t where[kMaxRank] = {};

  double bound_now() const noexcept {
    if (!floating) return 2 * allowed.step;
    const double sums = kSums * std::ldexp(1.0, view.tensor.dtype.bits == 64 ? -52 : -23);
    const double factor = allowed.factor > 0 ? allowed.factor : view.tensor.dtype.bits == 8 ? 2 : 4;
    const double by_factor = 2 * factor * rounding;
    return (by_factor > sums ? by_factor : sums) * largest;
  }

  void add_largest(int64_t offset) noexcept {
    const double value = std::fabs(value_at(results.other + offset, view.tensor.dtype));
    if (value > largest && value <= 1.7976931348623157e308) largest = value;
  }

  void add(const int64_t* index, int64_t offset) noexcept {
    ++elements;
    const size_t bytes = view.tensor.dtype.bits / 8u;
    if (std::memcmp(results.mine + offset, results.other + offset, bytes) == 0) return;
    const double one = value_at(results.mine + offset, view.tensor.dtype);
    const double two = value_at(results.other + offset, view.tensor.dtype);
    const bool near = !floating && one == two;  // whole numbers of 64 bits may look equal
    if (one == two && (floating || bytes < 8)) return;
    if (__builtin_isnan(one) && __builtin_isnan(two)) return;
    const double limit = bound_now(), far = near ? 1 : std::fabs(one - two);
    const double ratio = far <= limit ? 0 : far / (limit + 5e-324);  // not of NaN
    if (!floating || !(far <= limit)) ++off;
    if (far <= limit || (worst > 0 && !(ratio > worst))) return;
    worst = ratio > 0 ? ratio : __builtin_inf();
    mine = one;
    other = two;
    bound = limit;
    for (int axis = 0; axis < view.tensor.ndim; ++axis) where[axis] = index[axis];
  }

  void run() noexcept {
    const int rank = view.tensor.ndim;
    const bool by_rows = floating && rank > 0 && view.tensor.shape[rank - 1] >= kLongRow;
    const int64_t length = by_rows ? view.tensor.shape[rank - 1] : 1;
    const int64_t step = by_rows ? view.tensor.strides[rank - 1] * (view.tensor.dtype.bits / 8) : 0;
    if (floating && !by_rows) {
      for_each_element(view, [this](const int64_t*, int64_t offset) {
        add_largest(offset);
        return true;
      });
    }
    for_each_element(view, [&](const int64_t* index, int64_t offset) {
      if (by_rows && index[rank - 1] == 0) {
        largest = 0;
        for (int64_t i = 0; i < length; ++i) add_largest(offset + i * step);
      }
      add(index, offset);
      return true;
    });
  }

  bool differs() const noexcept {
    const double share = allowed.share < 0.5 ? 2 * allowed.share : 1;
    return worst > 0 || (!floating && static_cast<double>(off - 1) >= share * static_cast<double>(elements));
  }
};

}  // namespace

bool bad_check() noexcept { return given().bad; }

int32_t check_check(const OperatorInfo& op) noexcept {
  if (!bad_check()) return AOT_TUNE_OK;
  return fail(
      AOT_TUNE_ERROR_ENVIRONMENT,
      "%s: %s is '%.40s', wanted '%s' for the first call of each variant, or N for every N-th, or nothing",
      op.name, kVariable, given().text, kFirst);
}

Switch checking([]() noexcept { return *given().text != '\0' && !given().bad; });

bool checks_once() noexcept { return given().every == 0; }

bool is_due(Checks& variant) noexcept {
  const uint64_t before = variant.calls.fetch_add(1, std::memory_order_relaxed);
  return checks_once() ? before == 0 : before % given().every == 0;
}

void tell_once(const FactsInfo& info, const char* what, std::atomic<bool>* told) noexcept {
  if (!told->exchange(true))
    std::fprintf(stderr, "aot_tune: %s.%s%s\n", library_info.name, info.op->name, what);
}

OtherResults::~OtherResults() { std::free(memory_); }

bool OtherResults::is_compared(const DLTensor* const* passed, const View& view, int tensor) const noexcept {
  return passed[tensor] != nullptr && info_.op->tensors[tensor].written() && !view.empty;
}

bool OtherResults::copy(void* to, const void* from, size_t size) const noexcept {
  if (backend_.copy != nullptr) return backend_.copy(to, from, size, stream_) == 0;
  std::memcpy(to, from, size);
  return true;
}

bool OtherResults::begin(const DLTensor* const* passed, View* views) noexcept {
  const OperatorInfo& op = *info_.op;
  size_t size = kAligned;
  for (int i = 0; i < op.tensor_count; ++i) {
    if (is_compared(passed, views[i], i)) size += views[i].high - views[i].low + 2 * kAligned;
  }
  static char key;  // memory of its own, not that of the stream
  if (backend_.copy != nullptr) {
    if (backend_.workspace(device_.device_id, &key, size, &taken_) != AOT_TUNE_OK) return false;
  } else if ((memory_ = std::malloc(size)) == nullptr) {
    return false;
  }
  auto next = reinterpret_cast<uintptr_t>(memory_ != nullptr ? memory_ : taken_.memory);
  for (int i = 0; i < op.tensor_count; ++i) {
    if (!is_compared(passed, views[i], i)) continue;
    View& view = views[i];
    places_[i] = (next + kAligned - 1) / kAligned * kAligned + view.low % kAligned;  // aligned as the call's
    next = places_[i] + (view.high - view.low);
    if (op.tensors[i].inout && !copy(reinterpret_cast<void*>(places_[i]),
                                     reinterpret_cast<const void*>(view.low), view.high - view.low))
      return false;
    const uintptr_t moved = places_[i] - view.low;
    view.tensor.data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(view.tensor.data) + moved);
    view.low += moved;
    view.high += moved;
  }
  return true;
}

// Both results of an output, in the host's memory.
struct OtherResults::Copy {
  char* memory = nullptr;
  Pair pair = {nullptr, nullptr};
  Copy(const OtherResults& of, const View& view, int tensor) noexcept {
    const size_t size = view.high - view.low;
    const auto first = reinterpret_cast<uintptr_t>(view.tensor.data) - view.low;
    const char* mine = reinterpret_cast<const char*>(view.low);
    const char* other = reinterpret_cast<const char*>(of.places_[tensor]);
    if (of.backend_.copy != nullptr) {
      memory = static_cast<char*>(std::malloc(2 * size));
      if (memory == nullptr || !of.copy(memory, mine, size) || !of.copy(memory + size, other, size)) return;
      mine = memory;
      other = memory + size;
    }
    pair = {mine + first, other + first};
  }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  ~Copy() { std::free(memory); }
};

OtherResults::Found OtherResults::compare(const DLTensor* const* passed, const View* views,
                                          const Tolerances& allowed, bool trusted, Text& what) noexcept {
  const OperatorInfo& op = *info_.op;
  double coarsest = 0;  // of all tensors but those of 8 bits
  for (int i = 0; i < op.tensor_count; ++i) {
    if (passed[i] == nullptr) continue;
    const DLDataType& type = views[i].tensor.dtype;
    const double epsilon = is_floating(type) && type.bits > 8 ? epsilon_of(type) : 0;
    coarsest = epsilon > coarsest ? epsilon : coarsest;
  }
  for (int i = 0; i < op.tensor_count; ++i) {
    if (!is_compared(passed, views[i], i)) continue;
    const Copy copies(*this, views[i], i);
    if (copies.pair.mine == nullptr) return kUnknown;
    const Pair mine = copies.pair, swapped = {mine.other, mine.mine};
    const DLDataType& type = views[i].tensor.dtype;
    const double inner = allowed.rounding > 0 ? allowed.rounding : coarsest, outer = epsilon_of(type);
    Compared compared{views[i], trusted ? mine : swapped, allowed.of[i], inner > outer ? inner : outer,
                      is_floating(type)};
    compared.run();
    if (!compared.differs()) continue;
    what.add("%s[", op.tensors[i].name);
    for (int axis = 0; axis < views[i].tensor.ndim; ++axis)
      what.add("%s%lld", axis > 0 ? ", " : "", static_cast<long long>(compared.where[axis]));
    what.add("] is %.9g, wanted %.9g, give or take %.3g; %lld of %lld elements differ too much",
             compared.mine, compared.other, compared.bound, static_cast<long long>(compared.off),
             static_cast<long long>(compared.elements));
    return kDifferent;
  }
  return kAlike;
}

// Element by element, because other tensors may lie between the elements.
bool OtherResults::restore(const DLTensor* const* passed, const View* views) noexcept {
  bool done = true;
  for (int i = 0; i < info_.op->tensor_count; ++i) {
    if (!is_compared(passed, views[i], i)) continue;
    const View& view = views[i];
    const Copy copies(*this, view, i);
    if (copies.pair.mine == nullptr) return false;
    char* const mine = const_cast<char*>(copies.pair.mine);
    for_each_element(view, [&](const int64_t*, int64_t offset) {
      std::memcpy(mine + offset, copies.pair.other + offset, view.tensor.dtype.bits / 8u);
      return true;
    });
    if (copies.memory != nullptr)
      done &= copy(reinterpret_cast<void*>(view.low), copies.memory, view.high - view.low);
  }
  return done;
}

int32_t check_numbers(const OperatorInfo& op, const Backend& backend, void* stream,
                      const DLTensor* const* passed, const View* views, const int64_t* dims) noexcept {
  int32_t status = AOT_TUNE_OK;
  for (int i = 0; op.below != nullptr && i < op.tensor_count && status == AOT_TUNE_OK; ++i) {
    const int64_t below = op.below(i, dims);
    if (below == kNoExtent || passed[i] == nullptr || views[i].empty) continue;
    const View& view = views[i];
    const size_t size = view.high - view.low;
    const auto first = reinterpret_cast<uintptr_t>(view.tensor.data) - view.low;
    const char* numbers = reinterpret_cast<const char*>(view.low);
    char* const memory = backend.copy != nullptr ? static_cast<char*>(std::malloc(size)) : nullptr;
    if (backend.copy != nullptr) {
      if (memory == nullptr || backend.copy(memory, numbers, size, stream) != 0)
        status = fail(AOT_TUNE_ERROR_MEMORY,
                      "%s: %s (%zu bytes) could not be copied to the host for %s; free memory, or unset it",
                      op.name, op.tensors[i].name, size, kVariable);
      numbers = memory;
    }
    for_each_element(view, [&](const int64_t* index, int64_t offset) {
      if (status != AOT_TUNE_OK) return false;
      const double number = value_at(numbers + first + offset, view.tensor.dtype);
      if (number >= 0 && number < static_cast<double>(below)) return true;
      char where[100];
      Text text(where, sizeof where);
      for (int axis = 0; axis < view.tensor.ndim; ++axis)
        text.add("%s%lld", axis > 0 ? ", " : "", static_cast<long long>(index[axis]));
      status = fail(AOT_TUNE_ERROR_VALUE, "%s: %s[%s] is %.0f, wanted 0 to %lld (%s)", op.name,
                    op.tensors[i].name, where, number, static_cast<long long>(below - 1), kVariable);
      return false;
    });
    std::free(memory);
  }
  return status;
}

void tell_difference(const FactsInfo& info, const int64_t* facts, const VariantInfo& variant,
                     const VariantInfo& trusted, const char* what, const char* then) noexcept {
  char call[400];
  Text call_text(call, sizeof call);
  add_call(call_text, info, facts);
  std::fprintf(stderr, "aot_tune: %s.%s:%s: variant %s differs from %s%s: %s. %s\n", library_info.name,
               info.op->name, call, variant.name, trusted.generic ? "the generic variant " : "variant ",
               trusted.name, what, then);
}

}  // namespace aot_tune
