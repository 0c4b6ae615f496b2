// Workspace memory per stream, for the backends of GPUs.
#ifndef AOT_TUNE_RUNTIME_STREAM_MEMORY_H_
#define AOT_TUNE_RUNTIME_STREAM_MEMORY_H_

#include <mutex>
#include <new>

#include "runtime.h"

namespace aot_tune {

// A family's names in messages, and the meaning of its statuses.
struct DeviceWords {
  const char* device;  // "cuda"
  const char* driver;  // "CUDA"
  const char* (*error_text)(int status) noexcept;
};

// Work on a stream runs in order, so its calls can share memory in turn. The memory is never freed, because a
// graph that was captured with it may run at any later time.
class StreamMemory {
 public:
  explicit constexpr StreamMemory(const DeviceWords& words) noexcept : words_(words) {}

  // Memory of at least `size` bytes for one call on this thread and stream. No other call has it until this
  // one is done with `taken`. `allocate` gets it on the thread's device, which must be that of the call.
  int32_t take(int32_t device_id, void* stream, size_t size, int (*allocate)(void** memory, size_t size),
               Workspace* taken) noexcept {
    Buffer* buffer = find(device_id, key(stream));
    if (buffer == nullptr) return fail(AOT_TUNE_ERROR_MEMORY, "no memory for the list of workspaces");
    pthread_mutex_lock(&buffer->lock);
    taken->lock = &buffer->lock;
    if (buffer->size < size) {
      const size_t wanted =
          size > 2 * buffer->size ? size : 2 * buffer->size;  // doubled, so that old memory is seldom lost
      const size_t rounded = (wanted + 65535) / 65536 * 65536;
      void* grown = nullptr;
      const int error = rounded >= size ? allocate(&grown, rounded) : kOutOfMemory;
      if (error != 0) return failed(device_id, size, error);
      buffer->memory = grown;
      buffer->size = rounded;
    }
    taken->memory = buffer->memory;
    return AOT_TUNE_OK;
  }

 private:
  static constexpr int kOutOfMemory = 2;  // in cuda.h and in hip_runtime_api.h

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
  static const void* key(void* stream) noexcept {
    static thread_local char own;
    return stream == reinterpret_cast<void*>(2) ? &own : stream;
  }

  Buffer* find(int32_t device_id, const void* stream) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Buffer* buffer = buffers_; buffer != nullptr; buffer = buffer->next) {
      if (buffer->device_id == device_id && buffer->stream == stream) return buffer;
    }
    auto* made =
        new (std::nothrow) Buffer{device_id, stream, PTHREAD_MUTEX_INITIALIZER, nullptr, 0, buffers_};
    if (made != nullptr) buffers_ = made;
    return made;
  }

  int32_t failed(int32_t device_id, size_t size, int error) const noexcept {
    return fail(AOT_TUNE_ERROR_MEMORY,
                "%s:%d: no memory for a workspace of %zu bytes: %s error %d (%s); pass a workspace, or one "
                "that is smaller for another variant",
                words_.device, static_cast<int>(device_id), size, words_.driver, error,
                words_.error_text(error));
  }

  const DeviceWords words_;
  std::mutex mutex_;
  Buffer* buffers_ = nullptr;  // guarded by `mutex_`
};

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_STREAM_MEMORY_H_
