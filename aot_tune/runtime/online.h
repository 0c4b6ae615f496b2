// AOT_TUNE_ONLINE: on calls that nobody measured, other variants are tried now and then, within a share of
// the time. What is the fastest serves such calls, and is kept in a file.
#ifndef AOT_TUNE_RUNTIME_ONLINE_H_
#define AOT_TUNE_RUNTIME_ONLINE_H_

#include "call_lines.h"

namespace aot_tune {

struct Tried;  // what is known of a kind of calls

// What a call does for a candidate: it is served by it and timed, or by the usual variant with the candidate
// beside it.
struct Trial {
  enum What : uint8_t { kNone, kTime, kCompare } what = kNone;
  bool settled = false;  // what serves such calls stays
  int candidate = 0;
  int variant = -1;  // the candidate's
  int64_t begun = 0;
  void* mark = nullptr;  // on the stream, before the variant
};

// What a trial shows: a candidate that is as good as the usual variant, or that is out; that candidates
// cannot be compared here; or nothing.
enum class Outcome { kGood, kBad, kUnsure, kNotRun };

extern Switch trying;  // it is off if the variable is bad
inline bool is_online() noexcept { return trying.is_on(); }

// What is known of calls with such words, of which those of tensors are made coarser. NULL if there is no
// room.
Tried* find_tried(const FactsInfo& info, const Backend& backend, int32_t device_id, int64_t* words) noexcept;
int16_t chosen_of(const Tried* tried) noexcept;  // the variant that is the fastest, or -1 if nobody knows
bool lacks_candidates(const Tried* tried) noexcept;
// The first candidate is the usual variant. `bytes` are those of outputs.
void list_candidates(Tried* tried, const int16_t* variants, int32_t count, int64_t bytes) noexcept;

// Counts a call, and tells what it is to do. Unless that is kNone, `end_trial` must follow.
Trial next_trial(Tried* tried, bool captured) noexcept;
// Before and after the variants are launched.
void begin_trial(const Tried* tried, Trial* trial, void* stream) noexcept;
void end_trial(Tried* tried, const Trial& trial, Outcome outcome, void* stream) noexcept;

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_ONLINE_H_
