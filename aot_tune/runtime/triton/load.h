// Loads once per device, with `State`, `find_driver`, `load_on`, `is_lasting`, `current_device` and `reason`
// of a driver. It is part of cuda.cpp and hip.cpp.
#ifndef AOT_TUNE_RUNTIME_TRITON_LOAD_H_
#define AOT_TUNE_RUNTIME_TRITON_LOAD_H_

#include "common.h"

namespace launcher {
namespace {

// Loads the kernel on a device, unless that was done before. The device must be the thread's.
__attribute__((noinline, cold)) int32_t load_slowly(Kernel& kernel, int32_t device) {
  if (device < 0 || device >= kDevices) return kInvalidDevice;
  if (const int32_t status = find_driver(kernel)) return status;
  State* const state = state_of<State>(kernel);
  if (state == nullptr) return kOutOfMemory;
  pthread_mutex_lock(&state->lock);
  int32_t status = state->refused[device];
  if ((kernel.ready >> device & 1) == 0 && status == 0) {
    status = load_on(kernel, *state, device);
    if (status == 0) __atomic_store_n(&kernel.ready, kernel.ready | uint64_t{1} << device, __ATOMIC_RELEASE);
    if (is_lasting(status)) state->refused[device] = status;
  }
  pthread_mutex_unlock(&state->lock);
  return status;
}

}  // namespace

inline namespace AOT_TUNE_LAUNCHER_FAMILY {

int32_t load(Kernel& kernel, int32_t device) {
  const bool known = static_cast<uint32_t>(device) < static_cast<uint32_t>(kDevices);
  if (known && (__atomic_load_n(&kernel.ready, __ATOMIC_ACQUIRE) >> device & 1) != 0) return 0;
  return load_slowly(kernel, device);
}

int32_t find(Kernel& kernel, int32_t device) {
  const int32_t status = load(kernel, device);
  return is_lasting(status) ? kUnavailable : status;
}

int32_t preload(Kernel& kernel) {
  int32_t device = 0;
  int32_t status = find_driver(kernel);
  if (status == 0) status = current_device(&device);
  return status == 0 ? find(kernel, device) : status;
}

void tell(Kernel& kernel, int32_t device, char* buffer, size_t size) {
  if (size == 0) return;
  buffer[0] = '\0';
  const int32_t status = load(kernel, device);
  if (status == kUnavailable || is_lasting(status)) reason(kernel, status, buffer, size);
}

}  // namespace AOT_TUNE_LAUNCHER_FAMILY
}  // namespace launcher

#endif  // AOT_TUNE_RUNTIME_TRITON_LOAD_H_
