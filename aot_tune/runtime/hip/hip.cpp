// AMD's devices. The HIP runtime is found with dlopen at the first call, and declared here as far as it is
// used. Nothing here runs when the library loads, and building it needs no ROCm. It was only tested with a
// stand-in, never on a card.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "gpu.h"
#include "triton/hip_library.h"

namespace aot_tune {
namespace {

const Words kWords = {
    "rocm",
    "HIP",
    "HIP runtime",
    "rocminfo, HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, and whether this user may open /dev/kfd",
    {"hipEventCreateWithFlags", "hipEventRecord", "hipEventQuery", "hipEventElapsedTime", "hipEventDestroy"}};

// hipDeviceProp_tR0600 as far as it is read: the architecture's name, and spare bytes after it.
struct Properties {
  char name[256];
  char between[904];
  char architecture[256];  // gcnArchName, such as "gfx942:sramecc+:xnack-"
  char behind[2680];
};

struct Driver : Functions {
  int (*device_properties)(Properties* properties, int device) = nullptr;
  int (*set_device)(int device) = nullptr;
  int (*last_error)() = nullptr;
  const char* (*error_string)(int status) = nullptr;

  Driver() noexcept {
    library = open_library();
    if (library == nullptr) return;
    find(init, "hipInit");
    find(device_count, "hipGetDeviceCount");
    find(device_properties, "hipGetDevicePropertiesR0600");
    find(current_device, "hipGetDevice");
    find(set_device, "hipSetDevice");
    find(exchange_mode, "hipThreadExchangeStreamCaptureMode");
    find(allocate, "hipMalloc");
    find(last_error, "hipGetLastError");
    find(error_string, "hipGetErrorString");
    find(is_capturing, "hipStreamIsCapturing");
    usable = lacks == nullptr;
    if (usable && (status = init(0)) != 0) last_error();  // the status is kept here
  }
};

const Driver& driver() noexcept {
  static const Driver functions;
  return functions;
}

const Functions& functions() noexcept { return driver(); }

// A failed call leaves its status for the thread's next question about the last error. That question is not
// ours.
int forget(int status) noexcept {
  if (status != 0) driver().last_error();
  return status;
}

const char* error_text(int status) noexcept {
  const char* text = driver().usable ? driver().error_string(status) : nullptr;
  return text != nullptr ? text : "unknown error";
}

int32_t check_driver(int device) noexcept {
  if (driver().library == nullptr) {
    return fail(
        AOT_TUNE_ERROR_DRIVER,
        "rocm:%d: there is no HIP runtime here (libamdhip64.so was not found); install AMD's ROCm, or "
        "pass tensors on the CPU",
        device);
  }
  if (!driver().usable) {
    return fail(
        AOT_TUNE_ERROR_DRIVER,
        "rocm:%d: the HIP runtime here has no function %s; this library needs that of ROCm 6 or later: "
        "update ROCm",
        device, driver().lacks);
  }
  return 0;
}

const char* hint_for(int error) noexcept {
  if (error != kNotInitialized) return "";
  return "; a process that was forked after HIP was used cannot use it: start it anew (spawn)";
}

// The digits of an architecture's name in base 16: 0x942 for "gfx942:sramecc+:xnack-". 0 for other text.
int32_t level_of(const char* name) noexcept {
  if (std::strncmp(name, "gfx", 3) != 0) return 0;
  const size_t length = std::strcspn(name + 3, ":");
  if (length < 3 || length > 6 || std::strspn(name + 3, "0123456789abcdef") != length) return 0;
  return static_cast<int32_t>(std::strtol(name + 3, nullptr, 16));
}

int read_level(int32_t device_id, int32_t* level) noexcept {
  Properties properties;
  properties.architecture[0] = '\0';
  const int error = forget(driver().device_properties(&properties, device_id));
  if (error != 0) return error;
  properties.architecture[sizeof properties.architecture - 1] = '\0';
  *level = level_of(properties.architecture);
  if (*level == 0) {
    *level =
        -fail(AOT_TUNE_ERROR_DEVICE,
              "rocm:%d: the HIP runtime calls its architecture '%.60s', wanted a name such as gfx942; update "
              "ROCm, or pass tensors on the CPU",
              static_cast<int>(device_id), properties.architecture);
  }
  return 0;
}

int32_t hip_copy(void* to, const void* from, size_t size, void* stream) noexcept {
  struct Copying {
    int (*copy)(void*, const void*, size_t, int kind, void* stream);
    int (*wait)(void* stream);
  };
  constexpr int kByAddress = 4;  // hipMemcpyDefault
  static const Copying found = {
      reinterpret_cast<decltype(Copying::copy)>(dlsym(driver().library, "hipMemcpyAsync")),
      reinterpret_cast<decltype(Copying::wait)>(dlsym(driver().library, "hipStreamSynchronize"))};
  if (found.copy == nullptr || found.wait == nullptr) return kNotInitialized;
  const int error = forget(found.copy(to, from, size, kByAddress, stream));
  return error != 0 ? error : forget(found.wait(stream));
}

void hip_model(int32_t device_id, char* name, size_t size) noexcept {
  Properties properties;
  if (forget(driver().device_properties(&properties, device_id)) == 0)
    std::snprintf(name, size, "%.100s", properties.name);
}

int switch_device(int32_t device_id, Scope* scope) noexcept {
  int before = 0;
  int error = forget(driver().current_device(&before));
  if (error != 0 || before == device_id) return error;
  error = forget(driver().set_device(device_id));
  if (error == 0) *scope = {reinterpret_cast<void*>(intptr_t{before}), scope->mode, true};
  return error;
}

void switch_back(const Scope& scope) noexcept {
  forget(driver().set_device(static_cast<int>(reinterpret_cast<intptr_t>(scope.previous))));
}

}  // namespace

extern const Backend backend_hip;
const Backend backend_hip = {"hip",     kDLROCM,      gpu_level,   gpu_workspace, gpu_enter,
                             gpu_leave, gpu_describe, nullptr,     gpu_capturing, nullptr,
                             hip_copy,  gpu_mark,     gpu_between, hip_model};

}  // namespace aot_tune
