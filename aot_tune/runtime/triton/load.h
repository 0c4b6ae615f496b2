// Loading once per device, by `state`, `load_on`, `is_lasting` and `current_device` of a driver. Part of
// launcher.h and launcher_hip.h.
#ifndef AOT_TUNE_RUNTIME_TRITON_LOAD_H_
#define AOT_TUNE_RUNTIME_TRITON_LOAD_H_

namespace {
namespace launcher {

// Loads the kernel on a device, which must be the thread's, unless that was done before.
__attribute__((noinline, cold)) inline int32_t load_slowly(int32_t device, const char* symbol) {
  if (device < 0 || device >= kDevices) return kInvalidDevice;
  pthread_mutex_lock(&state.lock);
  const int32_t status = load_on(device, symbol);
  pthread_mutex_unlock(&state.lock);
  return status;
}

inline int32_t load(int32_t device, const char* symbol) {
  const bool known = static_cast<uint32_t>(device) < static_cast<uint32_t>(kDevices);
  if (known && (__atomic_load_n(&state.ready, __ATOMIC_ACQUIRE) >> device & 1) != 0) return 0;
  return load_slowly(device, symbol);
}

// As `load`, but a kernel that the driver refuses is one that is not here: another variant serves.
inline int32_t find(int32_t device, const char* symbol) {
  const int32_t status = load(device, symbol);
  return is_lasting(status) ? kUnavailable : status;
}

inline int32_t preload(const char* symbol) {
  int32_t device = 0;
  const int32_t status = current_device(&device);
  return status == 0 ? find(device, symbol) : status;
}

}  // namespace launcher
}  // namespace

#endif  // AOT_TUNE_RUNTIME_TRITON_LOAD_H_
