// Ranges of NVTX, and a file of Chrome's trace events. Without the variable, nothing of this runs.
#include "profile.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>

#include "call_lines.h"
#include "warn.h"

namespace aot_tune {

namespace {

constexpr const char* kVariable = "AOT_TUNE_PROFILE";
constexpr const char* kNvtx = "nvtx";
constexpr int64_t kMicrosecond = 1000;

// ---- NVTX: a profiler names its library in a variable of the environment. The library fills in a table of
// functions that it asks us for. [nvtx3/nvtxDetail/nvtxTypes.h]

using Function = void (*)();
enum : uint32_t { kCore = 1, kPush = 9, kPop = 11, kFunctions = 16, kCallbacks = 1, kVersionInfo = 3 };

Function filled_in[kFunctions];
Function* table[kFunctions + 1];  // the first and the last are null

int functions_of(uint32_t module, Function*** to, uint32_t* size) noexcept {
  if (module != kCore) return 0;
  for (uint32_t i = 1; i < kFunctions; ++i) table[i] = filled_in + i;
  if (to != nullptr) *to = table;
  if (size != nullptr) *size = kFunctions;
  return 1;
}

void ignore_version(uint32_t) noexcept {}

const void* exported(uint32_t id) noexcept {
  struct Callbacks {
    size_t size;
    int (*functions)(uint32_t, Function***, uint32_t*) noexcept;
  };
  struct VersionInfo {
    size_t size;
    uint32_t version;
    uint32_t reserved;
    void (*set)(uint32_t) noexcept;
  };
  static const Callbacks callbacks = {sizeof(Callbacks), functions_of};
  static const VersionInfo version = {sizeof(VersionInfo), 3, 0, ignore_version};
  return id == kCallbacks ? static_cast<const void*>(&callbacks) : id == kVersionInfo ? &version : nullptr;
}

bool find_profiler() noexcept {
  const char* path = secure_getenv("NVTX_INJECTION64_PATH");
  void* const library = path != nullptr && *path != '\0' ? dlopen(path, RTLD_LAZY) : nullptr;
  void* const begin = library != nullptr ? dlsym(library, "InitializeInjectionNvtx2") : nullptr;
  using Begin = int (*)(const void* (*)(uint32_t) noexcept);
  return begin != nullptr && reinterpret_cast<Begin>(begin)(exported) == 1 && filled_in[kPush] != nullptr &&
         filled_in[kPop] != nullptr;
}

bool has_profiler = false;

// ---- The file

FILE* file = nullptr;
const char* given = "";

void stop(const char* why) noexcept {
  profiling.turn_off();
  std::fprintf(stderr, "aot_tune: %s=%s: %s; calls are not profiled\n", kVariable, given, why);
}

uint64_t bytes_of(const View& view) noexcept {
  uint64_t count = 1;
  for (int i = 0; i < view.tensor.ndim; ++i)
    count *= view.strides[i] != 0 ? static_cast<uint64_t>(view.tensor.shape[i]) : 1;
  return count * view.tensor.dtype.bits / 8;
}

}  // namespace

Switch profiling([]() noexcept {
  static const bool on = [] {
    given = copied(secure_getenv(kVariable));
    if (*given == '\0') return false;
    if (std::strcmp(given, kNvtx) == 0) {
      has_profiler = find_profiler();
      if (!has_profiler) stop("no profiler that records NVTX runs this process, as `nsys profile` would");
      return has_profiler;
    }
    file = std::fopen(given, "ae");
    const bool good = file != nullptr && std::setvbuf(file, nullptr, _IOLBF, BUFSIZ) == 0;
    if (!good) stop(std::strerror(errno));
    return good;
  }();
  return on;
});

ProfiledCall::ProfiledCall(const FactsInfo& info, const int64_t* facts, const VariantInfo& variant,
                           const DLTensor* const* passed, const View* views) noexcept
    : info_(info), variant_(variant) {
  Text text(call_, sizeof call_);
  add_call(text, info, facts);
  for (int32_t i = 0; i < info.op->tensor_count; ++i) {
    if (passed[i] != nullptr) bytes_ += bytes_of(views[i]) * (info.op->tensors[i].inout ? 2 : 1);
  }
  if (has_profiler) {
    char name[600];
    Text range(name, sizeof name);
    range.add("%s.%s %s%s %" PRIu64 " bytes", library_info.name, info.op->name, variant.name, call_, bytes_);
    reinterpret_cast<int (*)(const char*)>(filled_in[kPush])(name);
  }
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  at_ = int64_t{now.tv_sec} * kSecond + now.tv_nsec;
  begun_ = monotonic();
}

ProfiledCall::~ProfiledCall() {
  const int64_t took = monotonic() - begun_;
  if (has_profiler) reinterpret_cast<int (*)()>(filled_in[kPop])();
  if (file == nullptr) return;
  const bool host = variant_.backend->device_type == kDLCPU;  // elsewhere the call does not wait for its end
  char rate[40] = "";
  Text added(rate, sizeof rate);
  if (host && took > 0)
    added.add(", \"GB/s\": %.3f", static_cast<double>(bytes_) / static_cast<double>(took));
  const int written = std::fprintf(
      file,
      "{\"name\": \"%s.%s\", \"cat\": \"%s\", \"ph\": \"X\", \"ts\": %" PRId64 ".%03d, \"dur\": %" PRId64
      ".%03d, \"pid\": %d, \"tid\": %ld, \"args\": {\"variant\": \"%s\", \"call\": \"%s\", \"bytes\": "
      "%" PRIu64 "%s}}\n",
      library_info.name, info_.op->name, host ? "call" : "launch", at_ / kMicrosecond,
      static_cast<int>(at_ % kMicrosecond), took / kMicrosecond, static_cast<int>(took % kMicrosecond),
      static_cast<int>(getpid()), syscall(SYS_gettid), variant_.name, call_ + (call_[0] == ' '), bytes_,
      rate);
  if (written < 0) stop(std::strerror(errno));
}

}  // namespace aot_tune
