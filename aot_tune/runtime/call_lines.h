// Calls as lines of a file, in the form of a workload's, for AOT_TUNE_TRACE and AOT_TUNE_ONLINE.
#ifndef AOT_TUNE_RUNTIME_CALL_LINES_H_
#define AOT_TUNE_RUNTIME_CALL_LINES_H_

#include <sys/types.h>

#include <cstdio>
#include <cstdlib>

#include "facts.h"

namespace aot_tune {

constexpr int64_t kSecond = 1000000000;
int64_t monotonic() noexcept;  // in ns

// Words that tell one kind of call: facts except those of tensors, then each tensor's properties, and a
// stride for each axis.
constexpr size_t call_words(const FactsInfo& info) {
  auto words = static_cast<size_t>(info.own());
  for (int i = 0; i < info.op->tensor_count; ++i) words += 1 + static_cast<size_t>(info.op->tensors[i].rank);
  return words;
}

// Fills in the words of tensors, after the facts of a call. For an `empty` call, only the set of its tensors
// counts.
void describe_tensors(const FactsInfo& info, const DLTensor* const* given, const View* views, bool empty,
                      int64_t* words) noexcept;
// Lets alignments of 16 bytes and more be one.
void make_coarse(const FactsInfo& info, int64_t* words) noexcept;
uint64_t hash_of(const FactsInfo& info, const int64_t* words, size_t size) noexcept;

// The line of which process of the library wrote those that follow.
void write_header(FILE* out, pid_t process, int64_t begun) noexcept;
// The beginning of a call's line. The braces stay open.
void write_problem(FILE* out, const FactsInfo& info, const int64_t* words) noexcept;

struct Lines {
  const char* text;
  size_t size;
};

enum class Appended { kDone, kBusy, kFailed };

// Text that grows. If memory runs out, it is not `complete`.
struct Written {
  char* text = nullptr;
  size_t size = 0;
  bool complete = false;
  template <typename Write>
  explicit Written(Write write) noexcept {
    FILE* const out = open_memstream(&text, &size);
    if (out == nullptr) return;
    write(out);
    const bool good = std::ferror(out) == 0;
    complete = std::fclose(out) == 0 && good;
  }
  Written(const Written&) = delete;
  Written& operator=(const Written&) = delete;
  ~Written() { std::free(text); }
  Lines lines() const noexcept { return {text, size}; }
};

// Appends whole lines to a file while no other process does. It makes the file if necessary. Returns `kBusy`
// if another process has it for longer than `patience_ms`. The header comes first, unless the file still ends
// at `*end`, where this process left it. On failure the file stays as it was, and `why` says why.
Appended append_lines(const char* path, const Lines& header, const Lines& lines, int patience_ms, off_t* end,
                      Text* why) noexcept;

bool is_header(const char* line, size_t size) noexcept;
// Everything in a file of at most `most` bytes, in memory of its own. NULL if it cannot be read. Then `why`
// says why.
char* read_file(const char* path, size_t most, size_t* size, Text* why) noexcept;

// A path, based on the present folder of the process.
char* absolute_path(const char* given) noexcept;

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_CALL_LINES_H_
