// The functions of launchers for AMD's devices. They use the HIP runtime, which is found with dlopen. They
// are compiled once, and linked into each library that has such a launcher. They were only tested with a
// stand-in, never on a card.
#define AOT_TUNE_LAUNCHER_FAMILY hip
#include <dlfcn.h>

#include "common.h"
#include "driver_hip.h"
#include "hip_library.h"

namespace launcher {
namespace {

// ---- The driver, found once
// ----------------------------------------------------------------------------------------------------

Driver driver;
pthread_once_t driver_once = PTHREAD_ONCE_INIT;
int32_t driver_status = 0;           // 0, kUnavailable, or what hipInit returned
const char* driver_lacks = nullptr;  // a function

void open_driver() {
  driver_status = kUnavailable;
  void* const library = open_hip();
  if (library == nullptr) return;
  for (const Symbol& symbol : kSymbols) {
    void* const address = dlsym(library, symbol.name);
    if (address == nullptr) {
      driver_lacks = symbol.name;
      return;
    }
    std::memcpy(reinterpret_cast<char*>(&driver) + symbol.offset, &address, sizeof(address));
  }
  driver_status = driver.init(0);
}

int32_t find_driver(const Kernel&) {
  pthread_once(&driver_once, open_driver);
  return driver_status;
}

// ---- One kernel, loaded once for each device
// -----------------------------------------------------------------------

// Written under the lock. Others read it after their device's bit of `ready` is set.
struct State {
  pthread_mutex_t lock;
  void* functions[kDevices];
  int32_t refused[kDevices];  // why the driver will never run the kernel on a device
  int32_t multiprocessors[kDevices];
};

int32_t load_on(const Kernel& kernel, State& state, int32_t device) {
  const void* const image = kernel_image(kernel);
  if (image == nullptr) return kFileNotFound;
  void *module = nullptr, *function = nullptr;
  int32_t status = driver.device_attribute(&state.multiprocessors[device], kMultiprocessorCount, device);
  if (status == 0) status = driver.module_load(&module, image);
  if (status == 0) status = driver.module_function(&function, module, kernel.name);
  if (status == 0) {
    state.functions[device] = function;
    return 0;
  }
  if (module != nullptr) driver.module_unload(module);
  driver.last_error();  // so that no later call of somebody else reports it again
  return status;
}

int32_t current_device(int32_t* device) { return driver.current_device(device); }

// Why there is no kernel, and what to do.
void reason(const Kernel&, int32_t status, char* buffer, size_t size) {
  if (status == kUnavailable && driver_lacks == nullptr) {
    std::snprintf(buffer, size, "libamdhip64.so of AMD's ROCm cannot be loaded: install ROCm");
  } else if (status == kUnavailable) {
    std::snprintf(buffer, size, "AMD's HIP runtime has no %s: update ROCm to version 6 or later",
                  driver_lacks);
  } else {
    std::snprintf(buffer, size,
                  "AMD's HIP runtime refuses the kernel's code, error %d: build with this device among "
                  "AOT_TUNE_TARGETS; see AOT_TUNE_KERNEL_DIR if it is set",
                  static_cast<int>(status));
  }
}

}  // namespace
}  // namespace launcher

#include "load.h"

namespace launcher {
namespace {

int32_t zero_plane(void* at, size_t pitch, size_t width, size_t height, void* stream) {
  return driver.memset_plane(at, pitch, 0, width, height, stream);
}

// Tensor descriptors are passed as their parts.
template <int kRank>
int32_t describe_axes(const Kernel& kernel, const Described& how, const DLTensor& tensor, Descriptor* to,
                      void*** next) {
  if (const int32_t wrong = read_parts<kRank>(how, tensor, to)) return wrong;
  add_parts<kRank>(kernel, to, next);
  add_shape<kRank>(to, next);
  return 0;
}

}  // namespace

inline namespace AOT_TUNE_LAUNCHER_FAMILY {

int64_t multiprocessors(const Kernel& kernel, int32_t device) {
  return loaded<State>(kernel).multiprocessors[device];
}

int32_t zero(void* at, size_t bytes, void* stream) { return driver.memset_line(at, 0, bytes, stream); }

int32_t describe(const Kernel& kernel, Described& how, const DLTensor& tensor, Descriptor* to, void*** next) {
  switch (how.rank) {
    case 1:
      return describe_axes<1>(kernel, how, tensor, to, next);
    case 2:
      return describe_axes<2>(kernel, how, tensor, to, next);
    case 3:
      return describe_axes<3>(kernel, how, tensor, to, next);
    case 4:
      return describe_axes<4>(kernel, how, tensor, to, next);
    case 5:
      return describe_axes<5>(kernel, how, tensor, to, next);
    default:
      return kInvalidValue;
  }
}

int32_t launch(const Kernel& kernel, int32_t device, const Grid& grid, void** parameters, void* stream) {
  const unsigned threads = kernel.threads;
  if (grid.x * int64_t{threads} > int64_t{UINT32_MAX}) return kInvalidValue;  // threads have 32-bit numbers
  const auto x = static_cast<unsigned>(grid.x), y = static_cast<unsigned>(grid.y),
             z = static_cast<unsigned>(grid.z);
  void* const function = loaded<State>(kernel).functions[device];
  if (kernel.cooperative)
    return driver.launch_cooperative(function, x, y, z, threads, 1, 1, kernel.shared, stream, parameters);
  return driver.launch(function, x, y, z, threads, 1, 1, kernel.shared, stream, parameters, nullptr);
}

}  // namespace AOT_TUNE_LAUNCHER_FAMILY
}  // namespace launcher
