// Names in the variables and files that users write, and what they may have meant.
#ifndef AOT_TUNE_RUNTIME_NAMES_H_
#define AOT_TUNE_RUNTIME_NAMES_H_

#include "runtime.h"

namespace aot_tune {

// A part of a longer text.
struct Part {
  const char* text;
  size_t length;
  bool is(const char* name) const noexcept;
};

// The names that could have stood where something else does.
class NearNames {
 public:
  explicit NearNames(const Part& given) noexcept : given_(given), least_(given.length / 3) {}
  void add(const char* name) noexcept;
  // Appends "; did you mean 'x'?", or what there is where nothing is near.
  void tell(Text* why) const noexcept;

 private:
  Part given_;
  size_t least_;  // letters by which the nearest differs
  const char* nearest_ = nullptr;
  int count_ = 0;
  char listed_[300];
  Text list_{listed_, sizeof listed_};
};

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_NAMES_H_
