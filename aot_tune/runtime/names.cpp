// How near two names are.
#include "names.h"

#include <cstring>

namespace aot_tune {
namespace {

constexpr int kMostListed = 12;

// How many letters must be changed, added or removed to get from one name to the other. For long names, many.
size_t distance(const Part& one, const char* other) noexcept {
  constexpr size_t kMost = 64;
  const size_t length = std::strlen(other);
  if (one.length >= kMost || length >= kMost) return kMost;
  size_t row[kMost + 1];
  for (size_t k = 0; k <= length; ++k) row[k] = k;
  for (size_t i = 1; i <= one.length; ++i) {
    size_t before = row[0];
    row[0] = i;
    for (size_t k = 1; k <= length; ++k) {
      const size_t changed = before + (one.text[i - 1] != other[k - 1]);
      before = row[k];
      const size_t shorter = row[k] < row[k - 1] ? row[k] : row[k - 1];
      row[k] = changed < shorter + 1 ? changed : shorter + 1;
    }
  }
  return row[length];
}

}  // namespace

bool Part::is(const char* name) const noexcept {
  return std::strlen(name) == length && std::memcmp(text, name, length) == 0;
}

void NearNames::add(const char* name) noexcept {
  if (++count_ <= kMostListed) list_.add("%s%s", count_ > 1 ? ", " : "", name);
  const size_t far = distance(given_, name);
  if (far > least_ || (far == least_ && nearest_ != nullptr)) return;
  least_ = far;
  nearest_ = name;
}

void NearNames::tell(Text* why) const noexcept {
  if (nearest_ != nullptr) {
    why->add("; did you mean '%s'?", nearest_);
  } else if (count_ == 0) {
    why->add("; there is none");
  } else {
    why->add("; there %s %s%s", count_ == 1 ? "is" : "are", listed_, count_ > kMostListed ? ", ..." : "");
  }
}

}  // namespace aot_tune
