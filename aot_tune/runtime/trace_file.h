// The file of a trace, to which several processes may write.
#ifndef AOT_TUNE_RUNTIME_TRACE_FILE_H_
#define AOT_TUNE_RUNTIME_TRACE_FILE_H_

#include <sys/types.h>

#include "runtime.h"

namespace aot_tune {

// How each trace begins, and so each header.
constexpr char kTraceBegin[] = "{\"trace\": {";

struct Lines {
  const char* text;
  size_t size;
};

enum class Appended { kDone, kBusy, kFailed };

// Appends whole lines to a file, which is made if need be, while no other process does; `kBusy` when another
// one has it for longer than `patience_ms`. The header stands before them unless the file still ends at
// `*end`, where this process left it. What fails leaves the file as it was, and tells `why`.
Appended append_lines(const char* path, const Lines& header, const Lines& lines, int patience_ms, off_t* end,
                      Text* why) noexcept;

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_TRACE_FILE_H_
