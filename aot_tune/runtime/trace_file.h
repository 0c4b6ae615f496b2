// The file of a trace. Several processes may write to it.
#ifndef AOT_TUNE_RUNTIME_TRACE_FILE_H_
#define AOT_TUNE_RUNTIME_TRACE_FILE_H_

#include <sys/types.h>

#include "runtime.h"

namespace aot_tune {

// The beginning of each trace, and so of each header.
constexpr char kTraceBegin[] = "{\"trace\": {";

struct Lines {
  const char* text;
  size_t size;
};

enum class Appended { kDone, kBusy, kFailed };

// Appends whole lines to a file while no other process does. It makes the file if necessary. Returns `kBusy`
// if another process has it for longer than `patience_ms`. The header comes first, unless the file still ends
// at `*end`, where this process left it. On failure the file stays as it was, and `why` says why.
Appended append_lines(const char* path, const Lines& header, const Lines& lines, int patience_ms, off_t* end,
                      Text* why) noexcept;

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_TRACE_FILE_H_
