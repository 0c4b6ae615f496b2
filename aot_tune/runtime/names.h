// Names in variables and files that users write, and what users may have meant.
#ifndef AOT_TUNE_RUNTIME_NAMES_H_
#define AOT_TUNE_RUNTIME_NAMES_H_

#include "runtime.h"

namespace aot_tune {

// What names are made of.
constexpr const char* kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";

// A part of a longer text.
struct Part {
  const char* text;
  size_t length;
  bool is(const char* name) const noexcept;
  // Whether it is the name of a variant, or of its kernel.
  bool names(const VariantInfo& variant) const noexcept { return is(variant.name) || is(variant.kernel); }
};

// The names that could have been meant.
class NearNames {
 public:
  explicit NearNames(const Part& given) noexcept : given_(given), least_(given.length / 3) {}
  void add(const char* name) noexcept;
  // Appends "; did you mean 'x'?", or the known names if none is near.
  void tell(Text* why) const noexcept;

 private:
  Part given_;
  size_t least_;  // by how many letters the nearest differs
  const char* nearest_ = nullptr;
  int count_ = 0;
  char listed_[300];
  Text list_{listed_, sizeof listed_};
};

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_NAMES_H_
