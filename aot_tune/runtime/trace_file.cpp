// Lines are appended under a lock of the file. The file is only open for that time, because a process may
// close all its files, and another process may remove the file.
#include "trace_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace aot_tune {
namespace {

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

}  // namespace aot_tune
