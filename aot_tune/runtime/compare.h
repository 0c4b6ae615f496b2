// AOT_TUNE_CHECK: results of a variant are compared with those of the generic variant, which computes the
// same call in memory of its own.
#ifndef AOT_TUNE_RUNTIME_COMPARE_H_
#define AOT_TUNE_RUNTIME_COMPARE_H_

#include "facts.h"

namespace aot_tune {

// By how much each of two right results may be off, by tensor. Of floats it is `factor` times the rounding of
// the largest value of its row. Integers may be off by `step`, in a `share` of the elements.
struct Tolerance {
  double factor;
  double step;
  double share;
};

struct Tolerances {
  const Tolerance* of;
  double rounding;  // of intermediate results, or 0 if that is the coarsest of all tensors
  bool declared;    // by the operator; else these are defaults
};

// What is known of a variant.
struct Checks {
  std::atomic<uint64_t> calls{0};
  std::atomic<bool> passed{false};
  std::atomic<bool> differs{false};
  std::atomic<bool> told{false};  // that it differs from another variant than the generic one
};

extern Switch checking;  // it is off if the variable is bad
inline bool is_checked() noexcept { return checking.is_on(); }
bool checks_once() noexcept;            // whether only first calls are checked
bool is_due(Checks& variant) noexcept;  // counts a call
constexpr const char* kDefaults =
    " declares no tolerance; AOT_TUNE_CHECK compares its floats by the default one, and its integers exactly";
constexpr const char* kUncompared =
    ": AOT_TUNE_CHECK could not compare a call, because there was no memory for a second result, or the "
    "generic variant failed on it; free memory, or make smaller calls. The call itself was served";
// Reports what is the case for an operator, unless it was told.
void tell_once(const FactsInfo& info, const char* what, std::atomic<bool>* told) noexcept;

// The results of another variant for a call, in memory that is like that of the call's outputs.
class OtherResults {
 public:
  OtherResults(const FactsInfo& info, const Backend& backend, const DLDevice& device, void* stream) noexcept
      : info_(info), backend_(backend), device_(device), stream_(stream) {}
  OtherResults(const OtherResults&) = delete;
  OtherResults& operator=(const OtherResults&) = delete;
  ~OtherResults();

  // Lets `views` be those of a call that writes elsewhere. False if there is no memory for that.
  bool begin(const DLTensor* const* given, View* views) noexcept;
  // How the call's outputs are beside these results, or the other way round. `what` says where they differ.
  enum Found { kAlike, kDifferent, kUnknown, kFailed };
  Found compare(const DLTensor* const* given, const View* views, const Tolerances& allowed, bool trusted,
                Text& what) noexcept;
  // Puts these results into the call's outputs.
  bool restore(const DLTensor* const* given, const View* views) noexcept;

 private:
  struct Copy;
  bool is_compared(const DLTensor* const* given, const View& view, int tensor) const noexcept;
  bool copy(void* to, const void* from, size_t size) const noexcept;

  const FactsInfo& info_;
  const Backend& backend_;
  const DLDevice device_;
  void* const stream_;
  Workspace taken_;         // of a GPU
  void* memory_ = nullptr;  // of the host
  uintptr_t places_[kMaxTensors] = {};
};

// AOT_TUNE_ERROR_VALUE if an input has a number that it must not have, see OperatorInfo::below. Waits for the
// stream.
int32_t check_numbers(const OperatorInfo& op, const Backend& backend, void* stream,
                      const DLTensor* const* given, const View* views, const int64_t* dims) noexcept;

// Reports a variant that differs from the one that is trusted, where, and what follows.
void tell_difference(const FactsInfo& info, const int64_t* facts, const VariantInfo& variant,
                     const VariantInfo& trusted, const char* what, const char* then) noexcept;

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_COMPARE_H_
