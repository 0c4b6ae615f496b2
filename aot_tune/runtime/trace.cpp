// Counts calls by kind, and writes the counts to the file now and then. Without the variable, nothing of this
// runs. Each count is written only once, so all counts of a file add up.
#include "trace.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace aot_tune {

Switch tracing;

namespace {

constexpr const char* kVariable = "AOT_TUNE_TRACE";
constexpr int kForm = 1;  // the form of the lines
constexpr uint32_t kMostKinds = 4096;
constexpr uint32_t kSlots = 2 * kMostKinds;
constexpr int64_t kSecond = 1000000000;
constexpr int64_t kInterval = 10 * kSecond;  // between two writes
constexpr int64_t kRetry = kSecond / 10;     // when another process writes
constexpr int kLastPatience = 5000;          // ms, when the library is unloaded

// In a tensor's first word, beside its alignment. 0 is an absent tensor.
constexpr int64_t kStrided = 256;

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
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

struct Locked {
  Locked() noexcept { pthread_mutex_lock(&mutex); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  ~Locked() { pthread_mutex_unlock(&mutex); }
};

int64_t monotonic() noexcept {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * kSecond + time.tv_nsec;
}

// ---- The file's name

// The variable's path, based on the folder of the process when it was read.
const char* given_path() noexcept {
  static char* const path = [] {
    const char* given = secure_getenv(kVariable);
    if (given == nullptr || *given == '\0') return static_cast<char*>(nullptr);
    char* made = nullptr;
    char* const folder = *given != '/' ? getcwd(nullptr, 0) : nullptr;
    const int length = folder != nullptr ? asprintf(&made, "%s/%s", folder, given) : -1;
    std::free(folder);
    return length >= 0 ? made : strdup(given);
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

// ---- The file

// Lines are appended under a lock of the file. The file is only open for that time, because a process may
// close all its files, and another process may remove the file.

// The beginning of each trace, and so of each header.
constexpr char kTraceBegin[] = "{\"trace\": {";

struct Lines {
  const char* text;
  size_t size;
};

enum class Appended { kDone, kBusy, kFailed };

struct File {
  int number;
  explicit File(const char* path) noexcept
      // without blocking, because the call would wait for a pipe that nobody reads
      : number(open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (number >= 0) close(number);
  }
};

bool fail_with(Text* why, const char* what) noexcept {
  why->add("%s: %s", what, std::strerror(errno));
  return false;
}

Appended lock(int file, int patience_ms, Text* why) noexcept {
  constexpr int kStep = 10;
  while (flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      fail_with(why, "it cannot be locked");
      return Appended::kFailed;
    }
    if (patience_ms <= 0) return Appended::kBusy;
    patience_ms -= kStep;
    const timespec pause = {0, kStep * 1000000};
    nanosleep(&pause, nullptr);
  }
  return Appended::kDone;
}

// The size of the part that ends with a whole line.
bool find_end(int file, off_t size, off_t* end) noexcept {
  char part[4096];
  while (size > 0) {
    const off_t start = size > static_cast<off_t>(sizeof part) ? size - static_cast<off_t>(sizeof part) : 0;
    const ssize_t count = pread(file, part, static_cast<size_t>(size - start), start);
    if (count != size - start) return false;
    if (const void* last = memrchr(part, '\n', static_cast<size_t>(count))) {
      *end = start + (static_cast<const char*>(last) - part) + 1;
      return true;
    }
    size = start;
  }
  *end = 0;
  return true;
}

// The size of a trace. If a killed process left an unfinished last line, it is cut off. A file that is no
// trace is not touched, because the variable may name the wrong one.
bool read_size(int file, off_t* size, Text* why) noexcept {
  const off_t whole = lseek(file, 0, SEEK_END);  // fstat would ask for a recent glibc
  if (whole < 0) return fail_with(why, "it is no regular file");
  char begin[sizeof kTraceBegin - 1];
  const off_t most = sizeof begin;
  const auto wanted = static_cast<size_t>(whole < most ? whole : most);
  const ssize_t count = pread(file, begin, wanted, 0);
  if (count < 0 || static_cast<size_t>(count) != wanted) return fail_with(why, "it cannot be read");
  if (std::memcmp(begin, kTraceBegin, wanted) != 0) {
    why->add("it is there already, and is no trace");
    return false;
  }
  if (!find_end(file, whole, size)) return fail_with(why, "it cannot be read");
  if (*size == whole || ftruncate(file, *size) == 0) return true;
  return fail_with(why, "it cannot be written");
}

bool write_all(int file, const Lines& lines) noexcept {
  for (size_t done = 0; done < lines.size;) {
    const ssize_t count = write(file, lines.text + done, lines.size - done);
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) done += static_cast<size_t>(count);
  }
  return true;
}

// Whether a file may be so large. Writing more would end the process by a signal.
bool is_allowed(off_t size) noexcept {
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return true;
  errno = EFBIG;
  return static_cast<rlim_t>(size) <= limit.rlim_cur;
}

// Appends whole lines to a file while no other process does. It makes the file if necessary. Returns `kBusy`
// if another process has it for longer than `patience_ms`. The header comes first, unless the file still ends
// at `*end`, where this process left it. On failure the file stays as it was, and `why` says why.
Appended append_lines(const char* path, const Lines& header, const Lines& lines, int patience_ms, off_t* end,
                      Text* why) noexcept {
  const File file(path);
  if (file.number < 0) {
    fail_with(why, "it cannot be opened");
    return Appended::kFailed;
  }
  const Appended locked = lock(file.number, patience_ms, why);
  if (locked != Appended::kDone) return locked;
  off_t size = 0;
  if (!read_size(file.number, &size, why)) return Appended::kFailed;
  const Lines none = {"", 0};
  const Lines& first = size != *end ? header : none;
  const off_t grown = size + static_cast<off_t>(first.size + lines.size);
  if (!is_allowed(grown) || !write_all(file.number, first) || !write_all(file.number, lines)) {
    fail_with(why, "it cannot be written");
    if (lseek(file.number, 0, SEEK_END) != size && ftruncate(file.number, size) != 0)
      why->add(", nor be left as it was");
    return Appended::kFailed;
  }
  *end = grown;
  return Appended::kDone;
}

// ---- Lines

// A name and its value in an object. The first name opens the object.
void write_name(FILE* out, const char* object, const char* name, int* written) noexcept {
  if (*written == 0 && *object != '\0') std::fprintf(out, ", \"%s\": {", object);
  std::fprintf(out, "%s\"%s\": ", *written > 0 ? ", " : "", name);
  ++*written;
}

void end_object(FILE* out, int written) noexcept {
  if (written > 0) std::fputc('}', out);
}

// Choices other than the first ones, which are the defaults.
template <typename Row>
void write_choices(FILE* out, const char* object, const Row* rows, int32_t count,
                   const int64_t* values) noexcept {
  int written = 0;
  for_each_by_name(rows, count, [&](int32_t i) {
    if (values[i] == 0) return;
    write_name(out, object, rows[i].name, &written);
    std::fprintf(out, "\"%s\"", rows[i].choices[values[i]]);
  });
  end_object(out, written);
}

// Calls `write` for each tensor that is passed, in the order of their names.
template <typename Write>
void for_each_tensor(const FactsInfo& info, const int64_t* words, Write write) noexcept {
  for_each_by_name(info.op->tensors, info.op->tensor_count, [&](int32_t i) {
    const int64_t* mine = words;
    for (int32_t k = 0; k < i; ++k) mine += 1 + info.op->tensors[k].rank;
    if (*mine != 0) write(info.op->tensors[i], mine);
  });
}

void write_tensors(FILE* out, const FactsInfo& info, const int64_t* words) noexcept {
  int present = 0, strided = 0, aligned = 0;
  for_each_tensor(info, words, [&](const TensorInfo& tensor, const int64_t*) {
    if (!tensor.optional) return;
    std::fprintf(out, "%s\"%s\"", present++ == 0 ? ", \"present\": [" : ", ", tensor.name);
  });
  if (present > 0) std::fputc(']', out);
  for_each_tensor(info, words, [&](const TensorInfo& tensor, const int64_t* mine) {
    if ((*mine & kStrided) == 0) return;
    write_name(out, "strides", tensor.name, &strided);
    for (int axis = 0; axis < tensor.rank; ++axis) {
      std::fprintf(out, "%s%" PRId64, axis == 0 ? "[" : ", ", mine[1 + axis]);
    }
    std::fputc(']', out);
  });
  end_object(out, strided);
  for_each_tensor(info, words, [&](const TensorInfo& tensor, const int64_t* mine) {
    const int64_t alignment = *mine & ~kStrided;
    if (alignment == 64) return;  // the default
    write_name(out, "alignment", tensor.name, &aligned);
    std::fprintf(out, "%" PRId64, alignment);
  });
  end_object(out, aligned);
}

void write_kind(FILE* out, Kind& kind) noexcept {
  const FactsInfo& info = *kind.info;
  const int64_t* words = kind.words();
  std::fprintf(out, "{\"operator\": \"%s\", \"dims\": {", info.op->name);
  for (int32_t i = 0, written = 0; i < info.op->dim_count; ++i) {
    write_name(out, "", info.op->dims[i], &written);
    std::fprintf(out, "%" PRId64, words[i]);
  }
  std::fputc('}', out);
  const OperatorInfo& op = *info.op;
  write_choices(out, "dtypes", op.variables, op.variable_count, words + op.dim_count);
  write_choices(out, "attributes", op.attributes, op.attribute_count,
                words + op.dim_count + op.variable_count);
  write_tensors(out, info, words + info.own());
  std::fprintf(out, ", \"calls\": %" PRIu64 ", \"captured\": %" PRIu64 "}\n", kind.calls, kind.captured);
}

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

void write_header(FILE* out) noexcept {
  std::fprintf(out, "%s\"format\": %d, %s, \"pid\": %d, \"begun\": %" PRId64 "}}\n", kTraceBegin, kForm,
               library_info.traced, static_cast<int>(counts.process), counts.begun);
}

void write_counts(FILE* out) noexcept {
  for (uint32_t i = 0; i < counts.size; ++i) write_kind(out, *counts.kinds[i]);
  if (counts.others > 0) std::fprintf(out, "{\"others\": %" PRIu64 "}\n", counts.others);
}

// ---- Counts

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
    const Written header(write_header), lines(write_counts);
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
  tracing.set(false);
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
  uint64_t hash = reinterpret_cast<uintptr_t>(&info);
  for (size_t i = 0; i < size; ++i) {
    hash = (hash ^ static_cast<uint64_t>(words[i])) * UINT64_C(0x9e3779b97f4a7c15);
    hash ^= hash >> 32;
  }
  for (uint64_t slot = hash % kSlots;; slot = (slot + 1) % kSlots) {
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

bool is_row_major(const View& view) noexcept {
  uint64_t step = 1;
  for (int i = view.tensor.ndim - 1; i >= 0; --i) {
    if (static_cast<uint64_t>(view.strides[i]) != step) return false;
    step *= static_cast<uint64_t>(view.tensor.shape[i]);
  }
  return true;
}

// A tensor without elements is like any other, because its address does not matter.
int64_t* describe(const TensorInfo& tensor, bool given, const View& view, bool empty,
                  int64_t* words) noexcept {
  std::memset(words, 0, (1 + static_cast<size_t>(tensor.rank)) * sizeof *words);
  if (given && (empty || view.empty)) {
    words[0] = 64;
  } else if (given) {
    words[0] = alignment_of(view.tensor.data);
    if (!is_row_major(view)) {
      words[0] |= kStrided;
      for (int i = 0; i < tensor.rank; ++i) words[1 + i] = view.strides[i];
    }
  }
  return words + 1 + tensor.rank;
}

// ---- The process

// One of the threads may be counting a call when a process forks.
void before_fork() noexcept { pthread_mutex_lock(&mutex); }
void after_fork() noexcept { pthread_mutex_unlock(&mutex); }

__attribute__((destructor)) void write_last() noexcept {
  if (!tracing.is_on([]() noexcept { return false; })) return;  // it may never have been read
  const Locked locked;
  if (counts.process == getpid() && (counts.size > 0 || counts.others > 0)) write_out(kLastPatience);
}

}  // namespace

bool read_trace() noexcept {
  static const bool traced = [] {
    const bool given = given_path() != nullptr;
    if (given) pthread_atfork(before_fork, after_fork, after_fork);
    return tracing.set(given);
  }();
  return traced;
}

void count_call(const FactsInfo& info, const DLTensor* const* given, const View* views, bool empty,
                bool captured, int64_t* words) noexcept {
  int64_t* next = words + info.own();
  for (int32_t i = 0; i < info.op->tensor_count; ++i) {
    next = describe(info.op->tensors[i], given[i] != nullptr, views[i], empty, next);
  }
  const Locked locked;
  if (!is_traced()) return;  // another thread's write failed
  if (counts.process != getpid()) begin();
  if (!is_traced()) return;
  add(info, words, static_cast<size_t>(next - words), captured);
  if (monotonic() >= counts.due) write_out(0);
}

}  // namespace aot_tune
