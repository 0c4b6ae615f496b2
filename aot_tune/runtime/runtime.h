// What generated dispatch code and the backends share. It is internal to a library: nothing here is exported.
#ifndef AOT_TUNE_RUNTIME_RUNTIME_H_
#define AOT_TUNE_RUNTIME_RUNTIME_H_

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "arithmetic.h"
#include "tables.h"

namespace aot_tune {

struct Name {
  char text[40];
};

struct Backend;

struct VariantInfo {
  const char* name;
  const char* target;
  const char* kernel;
  const char* digest;  // sha256 of the object that was measured and linked
  const Backend* backend;
  int32_t level;         // the lowest level of devices that runs it
  int32_t last;          // and the highest, or 0 for no limit
  bool generic = false;  // it answers every legal call of its dtypes and devices
  bool settled =
      false;  // its workspace only depends on the call, and it loads nothing more after its first run
  bool varies = false;      // results of equal calls may have different bits
  bool uncaptured = false;  // its calls could not be captured in a graph when they were timed
};

// A variant's functions return this if something that it needs is missing, such as a vendor's library, or if
// that library cannot serve the call. If `workspace` returns it, the next variant is tried. So it is if
// `launch` does, and `workspace` from then on.
constexpr int32_t kUnavailable = -100;

// ---- Errors

// Sets the thread's message from a printf format and returns `code`.
int32_t fail(int32_t code, const char* format, ...) noexcept __attribute__((format(printf, 2, 3), cold));

// The thread's last message; empty before the first error.
const char* last_error() noexcept;

// The error of a variant's function. `note` is what the variant says of kUnavailable, or empty.
int32_t kernel_failed(const OperatorInfo& op, const VariantInfo& variant, const char* function,
                      int32_t status, const char* note = "") noexcept __attribute__((cold));

// ---- A call's tensors after the checks

// A tensor as kernels get it. byte_offset is folded into data. Strides are always there. The stride of an
// axis of extent 1 is never used, so it is set to a value that does not depend on what the caller passed.
struct View {
  DLTensor tensor;
  int64_t strides[kMaxRank];
  uintptr_t low;  // the bytes of all elements are in [low, high)
  uintptr_t high;
  bool empty;
};

// Whether two tensors are the same, element by element.
inline bool are_same(const View& one, const View& other) noexcept {
  bool same = one.tensor.data == other.tensor.data && one.tensor.ndim == other.tensor.ndim;
  for (int i = 0; same && i < one.tensor.ndim; ++i)
    same = one.tensor.shape[i] == other.tensor.shape[i] && one.strides[i] == other.strides[i];
  return same;
}

// Checks presence, rank, dtype and device of each tensor. Fills the views of those that are passed and, for
// each dtype variable, the index of its choice.
int32_t read_tensors(const OperatorInfo& op, const DLTensor* const* given, View* views,
                     int32_t* dtypes) noexcept;

// Checks that there is data, aligned to its element size. Also, that no output shares memory within itself or
// with another tensor, unless it may use exactly that tensor's memory and does.
int32_t check_memory(const OperatorInfo& op, const DLTensor* const* given, const View* views) noexcept;

// Checks that a caller's workspace shares no memory with a tensor.
int32_t check_workspace(const OperatorInfo& op, const DLTensor* const* given, const View* views,
                        const void* memory, size_t size) noexcept;

// The error for an extent that is not the wanted one. That is kNoExtent if it has no value in this call.
int32_t wrong_extent(const OperatorInfo& op, int tensor, int axis, int64_t got, int64_t wanted) noexcept
    __attribute__((cold));

// The error for an extent of a tensor if no dim solves it.
int32_t unsolved(const OperatorInfo& op, int tensor, int axis, int64_t got, const char* dim) noexcept
    __attribute__((cold));

// The error for an integer that is no extent of the dim that it binds, or not that of the tensors.
int32_t no_dim(const OperatorInfo& op, const char* scalar, int64_t got, const char* dim) noexcept
    __attribute__((cold));
int32_t other_dim(const OperatorInfo& op, const char* scalar, int64_t got, const char* dim,
                  int64_t wanted) noexcept __attribute__((cold));

int32_t too_small(const OperatorInfo& op, const ScalarInfo& scalar, double got) noexcept
    __attribute__((cold));

int32_t wrong_attribute(const OperatorInfo& op, const AttributeInfo& attribute, int32_t got) noexcept
    __attribute__((cold));

// A call's value of something in a condition. `text` is the name of a choice, or NULL.
struct FoundFact {
  const char* name;
  int64_t value;
  const char* text;
};

// The error for a condition of the operator that a call does not meet. `hint` says what to do, or is empty.
int32_t not_legal(const OperatorInfo& op, int32_t code, const char* condition, const char* hint,
                  std::initializer_list<FoundFact> found) noexcept __attribute__((cold));

// The largest power of two, at most 64, that divides an address.
inline int64_t alignment_of(const void* data) noexcept {
  return static_cast<int64_t>(1) << __builtin_ctzll(reinterpret_cast<uintptr_t>(data) | 64u);
}

// The order of a tensor's axes, and whether the fastest has stride 1. Equal numbers mean the same class.
int64_t stride_class(const DLTensor& tensor) noexcept;

// ---- Backends

// The workspace of a call until its kernels are launched. The calls on a stream share memory, which is locked
// for that time. Otherwise, between two kernels of one call, another thread's could overwrite what the first
// left for the second.
struct Workspace {
  void* memory = nullptr;
  pthread_mutex_t* lock = nullptr;  // held if there is one
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    if (lock != nullptr) pthread_mutex_unlock(lock);
  }
};

// What a backend changed in the thread for the duration of a call.
struct Scope {
  void* previous;  // context of the thread, or the number of its device
  int32_t mode;    // of stream captures
  bool switched;   // whether that was changed
};

constexpr int32_t kUnfinished = 600;  // of both CUDA and HIP

// What the library needs to know of a family of devices. Each family has a source file that defines `const
// Backend backend_<family>`. Generated code lists those for which a library has variants. The last ten may
// be NULL.
struct Backend {
  const char* family;
  int32_t device_type;  // DLPack's
  // The highest level of targets that a device runs, or a negative error code after `fail`.
  int32_t (*level)(int32_t device_id) noexcept;
  // Memory of at least `size` bytes for one call on this thread and stream, aligned to 64 bytes.
  int32_t (*workspace)(int32_t device_id, void* stream, size_t size, Workspace* taken) noexcept;
  // Makes the device the thread's current one, and lets kernels load while a stream is captured. `leave`
  // undoes both.
  int32_t (*enter)(int32_t device_id, Scope* scope) noexcept;
  void (*leave)(const Scope& scope) noexcept;
  const char* (*describe)(int32_t status) noexcept;  // what a status of a variant's functions means, or NULL
  void* (*context)() noexcept;               // where the thread's launches go: its context or device, or NULL
  bool (*capturing)(void* stream) noexcept;  // whether a graph is captured from a stream
  // Threads that kernels of the calling thread get, or a device's multiprocessors. 0 if they do not matter.
  int32_t (*processors)(int32_t device_id) noexcept;
  // Copies between the device and the host, in the stream's order, and waits. NULL if both have one memory.
  int32_t (*copy)(void* to, const void* from, size_t size, void* stream) noexcept;
  // Puts a mark behind what a stream has to do. `between` tells the time from one mark to another and frees
  // both, unless it returns kUnfinished. NULL if work is done when its function returns.
  int32_t (*mark)(void* stream, void** mark) noexcept;
  int32_t (*between)(void* first, void* last, int64_t* ns) noexcept;
  void (*model)(int32_t device_id, char* name, size_t size) noexcept;  // what its maker calls the device
};

// The error for a call on a device of a family that no variant is for.
int32_t no_backend(const OperatorInfo& op, const DLDevice& device) noexcept __attribute__((cold));

// A family of devices that an operator has variants for.
struct FamilyInfo {
  const Backend* backend;
  const char* targets;  // of its variants, for people
  const char* served;   // the dtypes of its generic variants, for people
};

// The family of a call's device, and its level. All tensors were checked to be on one device.
template <size_t kFamilies>
int32_t find_family(const OperatorInfo& op, const FamilyInfo (&families)[kFamilies], const DLDevice& device,
                    const FamilyInfo** family, int32_t* level) noexcept {
  for (const FamilyInfo& info : families) {
    if (info.backend->device_type != static_cast<int32_t>(device.device_type)) continue;
    *family = &info;
    *level = info.backend->level(device.device_id);
    return *level < 0 ? -*level : AOT_TUNE_OK;
  }
  return no_backend(op, device);
}

// The error for a call that no generic variant of the device's family is for. `served` lists the dtypes of
// the existing ones.
int32_t no_kernels(const OperatorInfo& op, const DLDevice& device, const int32_t* dtypes,
                   const char* served) noexcept __attribute__((cold));

// The error for a device that is older than the generic variant, or whose architecture none of them is for.
// `targets` are those of the device's family.
int32_t too_old(const OperatorInfo& op, const DLDevice& device, int32_t level, const VariantInfo& generic,
                const char* targets) noexcept __attribute__((cold));

// The makers' name of a backend's device level: sm_90, gfx942. "level 4" for others.
Name level_name(const Backend& backend, int32_t level) noexcept;

// Whether a device of the level runs the variant.
inline bool runs_on(const VariantInfo& variant, int32_t level) noexcept {
  return level >= variant.level && (variant.last == 0 || level <= variant.last);
}

inline bool is_capturing(const Backend& backend, const aot_tune_exec* exec) noexcept {
  return backend.capturing != nullptr && backend.capturing(exec != nullptr ? exec->stream : nullptr);
}

// Bytes of workspace that a variant may have in a call.
inline size_t workspace_limit(const aot_tune_exec* exec) noexcept {
  return exec != nullptr && exec->workspace != nullptr ? exec->workspace_size : SIZE_MAX;
}

// The caller's workspace if there is one, or else the backend's. `size` is not 0.
int32_t find_workspace(const OperatorInfo& op, const Backend& backend, const DLDevice& device,
                       const aot_tune_exec* exec, size_t size, Workspace* taken) noexcept;

inline int32_t take_workspace(const OperatorInfo& op, const Backend& backend, const DLDevice& device,
                              const aot_tune_exec* exec, size_t size, Workspace* taken) noexcept {
  return size == 0 ? AOT_TUNE_OK : find_workspace(op, backend, device, exec, size, taken);
}

// The duration in which a call runs a variant's functions.
class Entered {
 public:
  Entered() = default;
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;
  ~Entered() {
    if (backend_ != nullptr) backend_->leave(scope_);
  }
  int32_t enter(const Backend& backend, int32_t device_id) noexcept {
    if (backend.enter == nullptr) return AOT_TUNE_OK;
    const int32_t status = backend.enter(device_id, &scope_);
    if (status == AOT_TUNE_OK) backend_ = &backend;
    return status;
  }

 private:
  const Backend* backend_ = nullptr;
  Scope scope_;
};

// Loads a variant's kernels on the thread's device and sets its bit in `loaded`.
int32_t load_now(const OperatorInfo& op, const VariantInfo& variant, int32_t (*preload)(), uint64_t bit,
                 std::atomic<uint64_t>& loaded) noexcept;

// The same, unless it was done before. `loaded` has a bit per device.
inline int32_t load(const OperatorInfo& op, const VariantInfo& variant, int32_t (*preload)(),
                    int32_t device_id, std::atomic<uint64_t>& loaded) noexcept {
  const uint64_t bit = device_id >= 0 && device_id < 64 ? uint64_t{1} << device_id : 0;
  if (preload == nullptr || (loaded.load(std::memory_order_acquire) & bit) != 0) return AOT_TUNE_OK;
  return load_now(op, variant, preload, bit, loaded);
}

using Preload = int32_t (*)(const Backend& backend, int32_t level, int32_t device_id);

// Loads what the operators have for a device.
int32_t preload_all(const Backend* const* backends, int32_t count, const DLDevice& device,
                    const Preload* operators, int32_t operator_count) noexcept;

// ---- Variables of the environment

// A copy of a variable's value, because a later setenv may free that. Empty if there is none.
const char* copied(const char* value) noexcept;

// What a variable asks for. It is read at the first question, perhaps by several threads.
class Switch {
 public:
  constexpr explicit Switch(bool (*read)() noexcept) noexcept : read_(read) {}
  bool is_on() noexcept {
    const int32_t state = state_.load(std::memory_order_acquire);
    return state < 0 ? ask() : state != 0;
  }
  void turn_off() noexcept { state_.store(0, std::memory_order_relaxed); }

 private:
  bool ask() noexcept;
  bool (*const read_)() noexcept;
  std::atomic<int32_t> state_{-1};
};

// AOT_TUNE_FORCE: the variant that is taken. It is also on if one of the other variables is bad, and with
// AOT_TUNE_CHECK or AOT_TUNE_ONLINE, so that calls without them ask only once.
extern Switch forcing;
inline bool is_forced() noexcept { return forcing.is_on(); }

// AOT_TUNE_EXCLUDE: variants and kernels that are never chosen, unless AOT_TUNE_FORCE names them.
extern Switch excluding;
bool is_excluded(const OperatorInfo& op, const VariantInfo& variant) noexcept;

// Whether one of the variables that are checked together with AOT_TUNE_FORCE is bad, and its error.
bool bad_exclude() noexcept;
bool bad_override() noexcept;
bool bad_warn() noexcept;
bool bad_check() noexcept;
bool bad_online() noexcept;
int32_t check_override(const OperatorInfo& op) noexcept;
int32_t check_warn(const OperatorInfo& op) noexcept;
int32_t check_check(const OperatorInfo& op) noexcept;
int32_t check_online(const OperatorInfo& op) noexcept;

template <typename Trace>
bool allowed(const OperatorInfo& op, const VariantInfo& variant, Trace& trace) noexcept {
  return !excluding.is_on() || trace.guard(!is_excluded(op, variant), variant, "AOT_TUNE_EXCLUDE names it");
}

// An argument of the generated guards. It keeps the first guard that fails.
struct FirstRefusal {
  const VariantInfo* variant = nullptr;
  const char* condition = nullptr;
  bool guard(bool value, const VariantInfo& which, const char* text) noexcept {
    if (!value && variant == nullptr) {
      variant = &which;
      condition = text;
    }
    return value;
  }
};

// The next variant of the backend after `previous` that is named, or -1. A negative status if the names are
// bad.
int32_t next_forced(const OperatorInfo& op, const VariantInfo* variants, int32_t count,
                    const Backend& backend, int32_t previous) noexcept;

int32_t forced_refused(const OperatorInfo& op, const VariantInfo& variant, int32_t level,
                       const char* condition) noexcept __attribute__((cold));

// Puts the first named variant that takes the call into `variant`, or -1 if none is named for it.
template <typename Accepts>
int32_t choose_forced(const OperatorInfo& op, const VariantInfo* variants, int32_t count,
                      const Backend& backend, int32_t level, Accepts accepts, int* variant) noexcept {
  FirstRefusal refusal;
  int32_t named = -1;
  *variant = -1;
  for (int32_t i = -1; (i = next_forced(op, variants, count, backend, i)) != -1;) {
    if (i < -1) return -i;
    if (named < 0) named = i;
    if (runs_on(variants[i], level) && accepts(i, refusal)) {
      *variant = i;
      return AOT_TUNE_OK;
    }
  }
  if (named < 0) return AOT_TUNE_OK;
  if (refusal.variant == nullptr) return forced_refused(op, variants[named], level, nullptr);
  return forced_refused(op, *refusal.variant, level, refusal.condition);
}

// ---- Explaining a choice

// Appends to a caller's buffer, never beyond its end. The text is always terminated.
class Text {
 public:
  Text(char* buffer, size_t size) noexcept : buffer_(buffer), size_(size) {
    if (size_ > 0) buffer_[0] = '\0';
  }
  void add(const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));

 private:
  char* buffer_;
  size_t size_;
  size_t used_ = 0;
};

// Reports if the number of processors is not that of `tuned`. `tuned` is 0 if nobody knows it.
void explain_processors(Text& text, const Backend& backend, int32_t device_id, int32_t tuned) noexcept;
// What a call is, with its facts without those of tensors.
void explain_call(Text& text, const OperatorInfo& op, const int64_t* facts, const Backend& backend,
                  int32_t level, const DLTensor* const* given, const View* views) noexcept;
// Why a generic variant answers a call that lacks elements.
void explain_hollow(Text& text, const OperatorInfo& op) noexcept;
void explain_choice(Text& text, const VariantInfo& variant, size_t workspace, const char* note,
                    const char* why) noexcept;

Name dtype_name(const DLDataType& type) noexcept;
Name device_name(const DLDevice& device) noexcept;

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_RUNTIME_H_
