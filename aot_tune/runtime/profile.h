// AOT_TUNE_PROFILE: what each call is and how long it takes, as ranges of a profiler or as lines of a file.
#ifndef AOT_TUNE_RUNTIME_PROFILE_H_
#define AOT_TUNE_RUNTIME_PROFILE_H_

#include "facts.h"

namespace aot_tune {

extern Switch profiling;  // it is off once the file cannot be written any more
inline bool is_profiled() noexcept { return profiling.is_on(); }

// A call, from its begin to its end.
class ProfiledCall {
 public:
  ProfiledCall(const FactsInfo& info, const int64_t* facts, const VariantInfo& variant,
               const DLTensor* const* passed, const View* views) noexcept;
  ProfiledCall(const ProfiledCall&) = delete;
  ProfiledCall& operator=(const ProfiledCall&) = delete;
  ~ProfiledCall();

 private:
  const FactsInfo& info_;
  const VariantInfo& variant_;
  char call_[400];
  uint64_t bytes_ = 0;
  int64_t at_ = 0;  // in ns since 1970
  int64_t begun_ = 0;
};

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_PROFILE_H_
