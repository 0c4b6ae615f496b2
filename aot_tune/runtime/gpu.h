// What the backends of GPUs share: levels, the thread's device, and workspace memory per stream. It is part
// of cuda/cuda.cpp and hip/hip.cpp. They define what it declares of a family.
#ifndef AOT_TUNE_RUNTIME_GPU_H_
#define AOT_TUNE_RUNTIME_GPU_H_

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <new>

#include "runtime.h"

namespace aot_tune {
namespace {

constexpr int32_t kMaxDevices = 64;

// ---- The driver

// Values of both interfaces. [CUDA driver API, cuda.h; HIP runtime API, hip_runtime_api.h]
enum : int {
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kRelaxedCapture = 2,
  kActiveCapture = 1,
};

// Functions that are looked up in a library.
struct Lookup {
  void* library = nullptr;
  const char* lacks = nullptr;  // the first missing function

  template <typename Function>
  void find(Function& function, const char* name) noexcept {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr && lacks == nullptr) lacks = name;
  }
};

// Functions that both have.
struct Functions : Lookup {
  int (*init)(unsigned flags) = nullptr;
  int (*device_count)(int* count) = nullptr;
  int (*current_device)(int* device) = nullptr;
  int (*exchange_mode)(int* mode) = nullptr;
  int (*allocate)(void** memory, size_t size) = nullptr;
  int (*is_capturing)(void* stream, int* state) = nullptr;
  bool usable = false;  // nothing is missing
  int status = 0;       // of `init`
};

// A family's names in messages.
struct Words {
  const char* device;     // "cuda"
  const char* api;        // "CUDA"
  const char* driver;     // "driver"
  const char* look_at;    // what shows why there is no device
  const char* events[5];  // functions that create, record, ask, compare and destroy them
};
extern const Words kWords;

const Functions& functions() noexcept;
const char* error_text(int status) noexcept;
// The status of a call of the driver. What it left behind in the thread is taken away.
int forget(int status) noexcept;
// The error if there is no driver that this library can use, else 0.
int32_t check_driver(int device) noexcept;
const char* hint_for(int error) noexcept;  // what to do, or empty
// Sets the level of a device, or a negative error code after `fail`. Returns the driver's status.
int read_level(int32_t device_id, int32_t* level) noexcept;
// Makes the device the thread's current one, and undoes that.
int switch_device(int32_t device_id, Scope* scope) noexcept;
void switch_back(const Scope& scope) noexcept;

int32_t failed(int32_t device_id, int error) noexcept {
  const int device = static_cast<int>(device_id);
  const auto& [name, api, driver, look_at, events] = kWords;
  if (const int32_t code = check_driver(device)) return code;
  if (error == kNoDevice) {
    return fail(AOT_TUNE_ERROR_DEVICE, "%s:%d: the %s sees no device; look at %s", name, device, driver,
                look_at);
  }
  int count = 0;
  if (error == kInvalidDevice && forget(functions().device_count(&count)) == 0) {
    return fail(AOT_TUNE_ERROR_DEVICE, "%s:%d: there is no such device; the %s sees %d, from %s:0 on", name,
                device, driver, count, name);
  }
  return fail(AOT_TUNE_ERROR_DRIVER, "%s:%d cannot be used: %s error %d (%s)%s", name, device, api, error,
              error_text(error), hint_for(error));
}

std::atomic<int32_t> levels[kMaxDevices];  // 0 until it is asked for

int32_t gpu_level(int32_t device_id) noexcept {
  const bool cached = device_id >= 0 && device_id < kMaxDevices;
  int32_t level = cached ? levels[device_id].load(std::memory_order_relaxed) : 0;
  if (level != 0) return level;
  int error = functions().usable ? functions().status : int{kNoDevice};
  if (error == 0) error = read_level(device_id, &level);
  if (error != 0) return -failed(device_id, error);
  // Every thread finds the same.
  if (cached && level > 0) levels[device_id].store(level, std::memory_order_relaxed);
  return level;
}

// ---- The thread's device

void gpu_leave(const Scope& scope) noexcept {
  if (scope.switched) switch_back(scope);
  int mode = scope.mode;
  forget(functions().exchange_mode(&mode));
}

// A thread in relaxed mode may load modules and allocate memory while it or another thread captures a stream.
int32_t gpu_enter(int32_t device_id, Scope* scope) noexcept {
  int mode = kRelaxedCapture;
  int error = functions().usable ? forget(functions().exchange_mode(&mode)) : int{kNotInitialized};
  if (error != 0) return failed(device_id, error);
  *scope = {nullptr, mode, false};
  error = switch_device(device_id, scope);
  if (error == 0) return AOT_TUNE_OK;
  gpu_leave(*scope);
  return failed(device_id, error);
}

// The legacy stream cannot be captured. While other streams are captured, the question fails, and does not
// disturb them.
bool gpu_capturing(void* stream) noexcept {
  int state = 0;
  return functions().usable && forget(functions().is_capturing(stream, &state)) == 0 &&
         state == kActiveCapture;
}

const char* gpu_describe(int32_t status) noexcept { return status > 0 ? error_text(status) : nullptr; }

// ---- Times

struct Events : Lookup {
  int (*create)(void** event, unsigned flags);
  int (*record)(void* event, void* stream);
  int (*query)(void* event);
  int (*elapsed)(float* ms, void* first, void* last);
  int (*destroy)(void* event);
  Events() noexcept {
    library = functions().library;
    find(create, kWords.events[0]);
    find(record, kWords.events[1]);
    find(query, kWords.events[2]);
    find(elapsed, kWords.events[3]);
    find(destroy, kWords.events[4]);
  }
};

const Events& events() noexcept {
  static const Events found;
  return found;
}

int32_t gpu_mark(void* stream, void** mark) noexcept {
  if (events().lacks != nullptr) return kNotInitialized;
  const int error = forget(events().create(mark, 0));
  return error != 0 ? error : forget(events().record(*mark, stream));
}

int32_t gpu_between(void* first, void* last, int64_t* ns) noexcept {
  float ms = 0;
  int error = first != nullptr && last != nullptr ? forget(events().query(last)) : int{kNotInitialized};
  if (error == kUnfinished) return error;
  if (error == 0) error = forget(events().elapsed(&ms, first, last));
  for (void* const mark : {first, last}) {
    if (mark != nullptr) forget(events().destroy(mark));
  }
  *ns = static_cast<int64_t>(static_cast<double>(ms) * 1e6);
  return error;
}

// ---- Workspace

// Work on a stream runs in order, so its calls can share memory in turn. The memory is never freed, because a
// graph that was captured with it may run at any later time.
struct Buffer {
  int32_t device_id;
  const void* stream;
  pthread_mutex_t lock;
  void* memory;  // `lock` guards this and its size
  size_t size;
  Buffer* next;
};

// What tells streams apart: the handle. But a stream that each thread has of its own has the same handle in
// all threads (cudaStreamPerThread, hipStreamPerThread).
const void* key_of(void* stream) noexcept {
  static thread_local char own;
  return stream == reinterpret_cast<void*>(2) ? &own : stream;
}

Buffer* find_buffer(int32_t device_id, const void* stream) noexcept {
  static std::mutex mutex;
  static Buffer* buffers = nullptr;  // guarded by `mutex`
  const std::lock_guard<std::mutex> lock(mutex);
  for (Buffer* buffer = buffers; buffer != nullptr; buffer = buffer->next) {
    if (buffer->device_id == device_id && buffer->stream == stream) return buffer;
  }
  auto* made = new (std::nothrow) Buffer{device_id, stream, PTHREAD_MUTEX_INITIALIZER, nullptr, 0, buffers};
  if (made != nullptr) buffers = made;
  return made;
}

// No other call has the memory until this one is done with `taken`. The thread's device must be that of the
// call.
int32_t gpu_workspace(int32_t device_id, void* stream, size_t size, Workspace* taken) noexcept {
  Buffer* buffer = find_buffer(device_id, key_of(stream));
  if (buffer == nullptr) return fail(AOT_TUNE_ERROR_MEMORY, "no memory for the list of workspaces");
  pthread_mutex_lock(&buffer->lock);
  taken->lock = &buffer->lock;
  if (buffer->size < size) {
    const size_t wanted =
        size > 2 * buffer->size ? size : 2 * buffer->size;  // doubled, so that old memory is seldom lost
    const size_t rounded = (wanted + 65535) / 65536 * 65536;
    void* grown = nullptr;
    const int error = rounded >= size ? forget(functions().allocate(&grown, rounded)) : int{kOutOfMemory};
    if (error != 0) {
      return fail(AOT_TUNE_ERROR_MEMORY,
                  "%s:%d: no memory for a workspace of %zu bytes: %s error %d (%s); pass a workspace, or one "
                  "that is smaller for another variant",
                  kWords.device, static_cast<int>(device_id), size, kWords.api, error, error_text(error));
    }
    buffer->memory = grown;
    buffer->size = rounded;
  }
  taken->memory = buffer->memory;
  return AOT_TUNE_OK;
}

}  // namespace
}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_GPU_H_
