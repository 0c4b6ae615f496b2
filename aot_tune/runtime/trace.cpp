// Counts calls by kind, and writes the counts to the file now and then. Without the variable, nothing of this
// runs. Each count is written only once, so all counts of a file add up.
#include "trace.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <cinttypes>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

namespace aot_tune {

namespace {

constexpr const char* kVariable = "AOT_TUNE_TRACE";
constexpr uint32_t kMostKinds = 4096;
constexpr uint32_t kSlots = 2 * kMostKinds;
constexpr int64_t kInterval = 10 * kSecond;  // between two writes
constexpr int64_t kRetry = kSecond / 10;     // when another process writes
constexpr int kLastPatience = 5000;          // ms, when the library is unloaded

struct Kind {
  const FactsInfo* info;
  uint64_t calls;
  uint64_t captured;
  // Its words follow it.
  int64_t* words() noexcept { return reinterpret_cast<int64_t*>(this + 1); }
};

// What was counted since the last write.
struct Counts {
  pid_t process;            // the process that counted
  int64_t begun;            // in seconds since 1970
  int64_t due;              // when to write next, by the monotonic clock
  off_t end;                // the file's size after the last write
  uint64_t others;          // calls of kinds for which there was no room
  uint32_t size;            // how many kinds there are
  Kind* kinds[kMostKinds];  // in the order of their first calls
  uint16_t slots[kSlots];   // a kind's index plus one, at its hash or after it
};

Counts counts;  // guarded by `mutex`
std::mutex mutex;

// ---- The file's name

// The variable's path, based on the folder of the process when it was read.
const char* given_path() noexcept {
  static char* const path = []() -> char* {
    const char* given = secure_getenv(kVariable);
    if (given == nullptr || *given == '\0') return nullptr;
    // one of the threads may be counting a call when a process forks
    pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });
    return absolute_path(given);
  }();
  return path;
}

// Each %p is replaced by the number of the process.
void write_path(char* path, size_t size) noexcept {
  Text text(path, size);
  for (const char* rest = given_path(); *rest != '\0';) {
    if (rest[0] == '%' && rest[1] == 'p') {
      text.add("%d", static_cast<int>(counts.process));
      rest += 2;
    } else {
      const size_t length = 1 + std::strcspn(rest + 1, "%");
      text.add("%.*s", static_cast<int>(length), rest);
      rest += length;
    }
  }
}

// ---- Counts

void write_counts(FILE* out) noexcept {
  for (uint32_t i = 0; i < counts.size; ++i) {
    Kind& kind = *counts.kinds[i];
    write_problem(out, *kind.info, kind.words());
    std::fprintf(out, ", \"calls\": %" PRIu64 ", \"captured\": %" PRIu64 "}\n", kind.calls, kind.captured);
  }
  if (counts.others > 0) std::fprintf(out, "{\"others\": %" PRIu64 "}\n", counts.others);
}

void clear() noexcept {
  for (uint32_t i = 0; i < counts.size; ++i) std::free(counts.kinds[i]);
  std::memset(counts.slots, 0, sizeof counts.slots);
  counts.size = 0;
  counts.others = 0;
}

// Writes what was counted, and starts new counts. A failure ends the trace.
void write_out(int patience_ms) noexcept {
  char path[PATH_MAX + 2];  // a path that is cut off is too long for any file
  write_path(path, sizeof path);
  char reason[160] = "";
  Text why(reason, sizeof reason);
  Appended done = Appended::kFailed;
  {
    const Written header([](FILE* out) noexcept { write_header(out, counts.process, counts.begun); });
    const Written lines(write_counts);
    if (header.complete && lines.complete) {
      done = append_lines(path, header.lines(), lines.lines(), patience_ms, &counts.end, &why);
    } else {
      why.add("there is no memory for its lines");
    }
  }
  counts.due = monotonic() + (done == Appended::kBusy ? kRetry : kInterval);
  if (done == Appended::kBusy) return;
  clear();
  if (done == Appended::kDone) return;
  tracing.turn_off();
  std::fprintf(stderr, "aot_tune: %s=%s: %s; calls are not traced\n", kVariable, path, reason);
}

// Begins the counts of a process: the first ones, or those of a child of fork. The parent writes its own.
void begin() noexcept {
  clear();
  counts.process = getpid();
  counts.begun = time(nullptr);
  counts.end = -1;
  write_out(0);  // this writes the header, so the first call shows whether the file can be written
}

// The slot of a kind. It is 0 before the first call of that kind.
uint16_t* find(const FactsInfo& info, const int64_t* words, size_t size) noexcept {
  for (uint64_t slot = hash_of(info, words, size) % kSlots;; slot = (slot + 1) % kSlots) {
    uint16_t* const found = counts.slots + slot;
    if (*found == 0) return found;
    Kind* const kind = counts.kinds[*found - 1];
    if (kind->info == &info && std::memcmp(kind->words(), words, size * sizeof *words) == 0) return found;
  }
}

// A kind without calls, or NULL if there is no room for it.
Kind* make_kind(const FactsInfo& info, const int64_t* words, size_t size) noexcept {
  const size_t bytes = size * sizeof *words;
  void* const memory = counts.size < kMostKinds ? std::malloc(sizeof(Kind) + bytes) : nullptr;
  if (memory == nullptr) return nullptr;
  Kind* const made = new (memory) Kind{&info, 0, 0};
  std::memcpy(made->words(), words, bytes);
  return counts.kinds[counts.size++] = made;
}

void add(const FactsInfo& info, const int64_t* words, size_t size, bool captured) noexcept {
  uint16_t* const slot = find(info, words, size);
  Kind* const kind = *slot != 0 ? counts.kinds[*slot - 1] : make_kind(info, words, size);
  if (kind == nullptr) {
    ++counts.others;
    return;
  }
  if (*slot == 0) *slot = static_cast<uint16_t>(counts.size);
  ++kind->calls;
  kind->captured += captured;
}

// ---- The process

__attribute__((destructor)) void write_last() noexcept {
  const std::lock_guard<std::mutex> locked(mutex);
  if (counts.process == getpid() && (counts.size > 0 || counts.others > 0)) write_out(kLastPatience);
}

}  // namespace

Switch tracing([]() noexcept { return given_path() != nullptr; });

void count_call(const FactsInfo& info, const DLTensor* const* given, const View* views, bool empty,
                bool captured, int64_t* words) noexcept {
  describe_tensors(info, given, views, empty, words);
  const std::lock_guard<std::mutex> locked(mutex);
  if (!is_traced()) return;  // another thread's write failed
  if (counts.process != getpid()) begin();
  if (!is_traced()) return;
  add(info, words, call_words(info), captured);
  if (monotonic() >= counts.due) write_out(0);
}

}  // namespace aot_tune
