// How calls are written as lines, and how whole lines are appended to a file that several processes have.
#include "call_lines.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstring>

namespace aot_tune {

namespace {

constexpr int kForm = 1;  // the form of the lines

// In a tensor's first word, beside its alignment. 0 is an absent tensor.
constexpr int64_t kStrided = 256;

// ---- The file

// The beginning of each trace, and so of each header.
constexpr char kTraceBegin[] = "{\"trace\": {";

// Lines are appended under a lock of the file. The file is only open for that time, because a process may
// close all its files, and another process may remove the file.

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

}  // namespace

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

namespace {

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

}  // namespace

void write_problem(FILE* out, const FactsInfo& info, const int64_t* words) noexcept {
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
}

void write_header(FILE* out, pid_t process, int64_t begun) noexcept {
  std::fprintf(out, "%s\"format\": %d, %s, \"pid\": %d, \"begun\": %" PRId64 "}}\n", kTraceBegin, kForm,
               library_info.traced, static_cast<int>(process), begun);
}

void describe_tensors(const FactsInfo& info, const DLTensor* const* given, const View* views, bool empty,
                      int64_t* words) noexcept {
  words += info.own();
  for (int32_t i = 0; i < info.op->tensor_count; ++i)
    words = describe(info.op->tensors[i], given[i] != nullptr, views[i], empty, words);
}

void make_coarse(const FactsInfo& info, int64_t* words) noexcept {
  words += info.own();
  for (int32_t i = 0; i < info.op->tensor_count; words += 1 + info.op->tensors[i++].rank) {
    if ((*words & ~kStrided) >= 16) *words = 64 | (*words & kStrided);
  }
}

uint64_t hash_of(const FactsInfo& info, const int64_t* words, size_t size) noexcept {
  uint64_t hash = reinterpret_cast<uintptr_t>(&info);
  for (size_t i = 0; i < size; ++i) {
    hash = (hash ^ static_cast<uint64_t>(words[i])) * UINT64_C(0x9e3779b97f4a7c15);
    hash ^= hash >> 32;
  }
  return hash;
}

int64_t monotonic() noexcept {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * kSecond + time.tv_nsec;
}

bool is_header(const char* line, size_t size) noexcept {
  return size >= sizeof kTraceBegin - 1 && std::memcmp(line, kTraceBegin, sizeof kTraceBegin - 1) == 0;
}

char* read_file(const char* path, size_t most, size_t* size, Text* why) noexcept {
  // without blocking, because the call would wait for a pipe that nobody writes to
  const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) return fail_with(why, "it cannot be opened"), nullptr;
  auto* const text = static_cast<char*>(std::malloc(most + 1));
  ssize_t count = text != nullptr ? 1 : -1;
  for (*size = 0; count > 0 && *size <= most; *size += count > 0 ? static_cast<size_t>(count) : 0) {
    do {
      count = read(file, text + *size, most + 1 - *size);
    } while (count < 0 && errno == EINTR);
  }
  if (count < 0) fail_with(why, "it cannot be read");
  close(file);
  if (count >= 0 && *size > most) why->add("it has more than %zu bytes", most);
  if (count < 0 || *size > most) {
    std::free(text);
    return nullptr;
  }
  void* const fitting = std::realloc(text, *size + 1);
  return fitting != nullptr ? static_cast<char*>(fitting) : text;
}

char* absolute_path(const char* given) noexcept {
  char* made = nullptr;
  char* const folder = *given != '/' ? getcwd(nullptr, 0) : nullptr;
  const int length = folder != nullptr ? asprintf(&made, "%s/%s", folder, given) : -1;
  std::free(folder);
  return length >= 0 ? made : strdup(given);
}

}  // namespace aot_tune
