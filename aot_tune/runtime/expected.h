// Expected times of variants. They are integers, so that every machine and select/time_model.py get the same.
#ifndef AOT_TUNE_RUNTIME_EXPECTED_H_
#define AOT_TUNE_RUNTIME_EXPECTED_H_

#include <cstdint>
#include <cstring>

namespace aot_tune {

// The next integer that is not below a value, as a double. Values are far below 2^63.
inline double up(double value) noexcept {
  const double whole = static_cast<double>(static_cast<int64_t>(value));
  return whole < value ? whole + 1.0 : whole;
}

// Terms of a call are in 1/256. This is log2 of a value of at least 1, from the bits of a double, as in
// select/terms.py.
inline int64_t log_term(double value) noexcept {
  if (!(value >= 1.0)) value = 1.0;
  int64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits >>= 44;
  const int64_t fraction = bits & 255;
  return bits - (INT64_C(1023) << 8) + ((fraction * (256 - fraction) * 88) >> 16);
}

inline int64_t number_term(double value) noexcept { return static_cast<int64_t>(value * 256 + 0.5); }

inline int64_t product_term(int64_t left, int64_t right) noexcept { return (left * right) >> 11; }

// Three questions: whether a term reaches a cut. The answers are the bits of a leaf's number. This tree and
// those after it subtract at most `most`.
struct TimeTree {
  int32_t most;
  uint8_t terms[3];
  int32_t cuts[3];
  int32_t leaves[8];
};

// The expected log2 ns, in 1/4096, of a variant on a call with these terms. If trees can no longer bring it
// down to `limit`, its lower bound is returned: most variants are far from the best.
template <int kTerms, int kTrees>
int64_t expected_time(const int64_t (&terms)[kTerms], const int64_t (&weights)[kTerms], int64_t base,
                      const TimeTree (&trees)[kTrees], int64_t limit) noexcept {
  int64_t total = base;
  for (int i = 0; i < kTerms; ++i) total += weights[i] * terms[i];
  total >>= 16;
  for (const TimeTree& tree : trees) {
    if (total - tree.most > limit) return total - tree.most;
    const int leaf = (terms[tree.terms[0]] >= tree.cuts[0]) << 2 |
                     (terms[tree.terms[1]] >= tree.cuts[1]) << 1 | (terms[tree.terms[2]] >= tree.cuts[2]);
    total += tree.leaves[leaf];
  }
  return total;
}

// A variant that a call may get, and the time that ranks it.
struct Likely {
  int64_t time;
  int32_t variant;
};

// Takes the first one with the least time. -1 if none is left.
inline int32_t take_likeliest(Likely* found, int count) noexcept {
  int best = -1;
  for (int i = 0; i < count; ++i) {
    if (found[i].variant >= 0 && (best < 0 || found[i].time < found[best].time)) best = i;
  }
  if (best < 0) return -1;
  const int32_t variant = found[best].variant;
  found[best].variant = -1;
  return variant;
}

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_EXPECTED_H_
