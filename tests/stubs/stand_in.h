// What all stand-ins have: a log of what they are asked, a line each, values that a test sets, and a thread's
// mode of stream captures.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace {

std::mutex lock;
std::string log_text;
std::map<std::string, int64_t> values;
[[maybe_unused]] thread_local int mode = 0;  // global, as a thread begins

// A line of the log, as printf makes it.
__attribute__((format(printf, 1, 2))) void note(const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  const std::lock_guard<std::mutex> guard(lock);
  log_text += line;
  log_text += '\n';
}

// What the test says: by `stub_set`, or by an environment variable.
int64_t value(const std::string& name, int64_t otherwise = 0) {
  const auto found = values.find(name);
  if (found != values.end()) return found->second;
  const char* text = std::getenv(("FAKE_" + name).c_str());
  return text != nullptr ? std::atoll(text) : otherwise;
}
int status(const std::string& of) { return static_cast<int>(value(of)); }

}  // namespace

extern "C" {

const char* stub_log() { return log_text.c_str(); }
void stub_clear() { log_text.clear(); }
void stub_set(const char* what, int64_t to) { values[what] = to; }
int stub_mode() { return mode; }

// Kernels of the tests call it as well.
void event(const char* text) { note("%s%s", text, mode == 2 ? "" : " in a strict mode"); }

}  // extern "C"
