// The functions of launchers for CUDA's devices. They use the driver, which is found with dlopen. They are
// compiled once, and linked into each library that has such a launcher.
#define AOT_TUNE_LAUNCHER_FAMILY cuda
#include <dlfcn.h>

#include "common.h"
#include "driver_cuda.h"

namespace launcher {
namespace {

// ---- The driver, found once
// ----------------------------------------------------------------------------------------------------

Driver driver;
pthread_once_t driver_once = PTHREAD_ONCE_INIT;
int32_t driver_status = 0;  // 0, kUnavailable, or what cuInit returned
int32_t driver_version = 0;
const char* driver_lacks = nullptr;  // a function

void open_driver() {
  driver_status = kUnavailable;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return;
  for (const Symbol& symbol : kSymbols) {
    void* const address = dlsym(library, symbol.name);
    if (address == nullptr && symbol.offset < kFirstOptional) {  // older than CUDA 12.0
      driver_lacks = symbol.name;
      return;
    }
    std::memcpy(reinterpret_cast<char*>(&driver) + symbol.offset, &address, sizeof(address));
  }
  driver_status = driver.init(0);
  if (driver_status == 0) driver_status = driver.version(&driver_version);
}

int32_t find_driver(const Kernel& kernel) {
  pthread_once(&driver_once, open_driver);
  return driver_status == 0 && kernel.tma && driver.encode_map == nullptr ? kUnavailable : driver_status;
}

// ---- One kernel, loaded once for all devices
// -----------------------------------------------------------------------

// Written under the lock. Others read it after their device's bit of `ready` is set.
struct State {
  pthread_mutex_t lock;
  void* kernel;
  int32_t refused[kDevices];  // why the driver will never run the kernel on a device
  int32_t multiprocessors[kDevices];
};

int32_t load_library(const Kernel& kernel, State& state) {
  const void* const image = kernel_image(kernel);
  if (image == nullptr) return kFileNotFound;
  void* library = nullptr;
  if (const int32_t status = driver.library_load(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0))
    return status;
  const int32_t status = driver.library_kernel(&state.kernel, library, kernel.name);
  if (status != 0) {
    state.kernel = nullptr;
    driver.library_unload(library);
  }
  return status;
}

// What a device must know of the kernel, as Triton's own driver tells it.
int32_t prepare_kernel(const Kernel& kernel, State& state, int32_t device) {
  int32_t handle = 0;
  int32_t status = driver.device_get(&handle, device);
  if (status == 0)
    status = driver.device_attribute(&state.multiprocessors[device], kMultiprocessorCount, handle);
  if (status == 0 && kernel.shared > kSharedWithoutAsking) {
    status = driver.kernel_cache(state.kernel, kPreferShared, handle);
    if (status == 0)
      status = driver.kernel_attribute(kMaxDynamicShared, static_cast<int32_t>(kernel.shared), state.kernel,
                                       handle);
  }
  if (status == 0 && kernel.ctas > kPortableCluster)
    status = driver.kernel_attribute(kNonPortableCluster, 1, state.kernel, handle);
  if (status != 0) return status;
  void* function = nullptr;  // in the thread's context, so that the first launch need not load it
  status = driver.kernel_function(&function, state.kernel);
  return status == 0 && driver.function_load != nullptr ? driver.function_load(function) : status;
}

int32_t load_on(const Kernel& kernel, State& state, int32_t device) {
  const int32_t status = state.kernel == nullptr ? load_library(kernel, state) : 0;
  return status == 0 ? prepare_kernel(kernel, state, device) : status;
}

// The number of the context's device.
int32_t current_device(int32_t* device) {
  int32_t wanted = 0, handle = 0;
  int32_t status = driver.current_device(&wanted);
  for (*device = 0; status == 0 && *device < kDevices; ++*device) {
    status = driver.device_get(&handle, *device);
    if (status == 0 && handle == wanted) return 0;
  }
  return status != 0 ? status : kInvalidDevice;
}

// Why there is no kernel, and what to do.
void reason(const Kernel& kernel, int32_t status, char* buffer, size_t size) {
  const bool here = driver_status == 0;
  if (status == kUnavailable && !here && driver_lacks == nullptr) {
    std::snprintf(buffer, size, "libcuda.so.1 of NVIDIA's driver cannot be loaded: install the driver");
  } else if (status == kUnavailable) {
    std::snprintf(buffer, size, "the driver has no %s: update it to one for CUDA 12.0 or later",
                  here ? "cuTensorMapEncodeTiled" : driver_lacks);
  } else if (status == 221 || status == 222 || status == 223) {
    std::snprintf(buffer, size,
                  "the driver does not translate the kernel's PTX, error %d: update it, unset "
                  "CUDA_DISABLE_PTX_JIT, or build with this device among AOT_TUNE_TARGETS",
                  static_cast<int>(status));
  } else if (status == kInvalidValue) {
    std::snprintf(buffer, size,
                  "the device does not run blocks of %u bytes of shared memory in clusters of %u, error %d: "
                  "build with it among AOT_TUNE_TARGETS",
                  kernel.shared, kernel.ctas, static_cast<int>(status));
  } else {
    std::snprintf(buffer, size,
                  "the driver refuses the kernel's code, error %d: build with this device among "
                  "AOT_TUNE_TARGETS; see AOT_TUNE_KERNEL_DIR if it is set",
                  static_cast<int>(status));
  }
}

}  // namespace
}  // namespace launcher

#include "load.h"
#include "tensor_map.h"

namespace launcher {
namespace {

int32_t zero_plane(void* at, size_t pitch, size_t width, size_t height, void* stream) {
  return driver.memset_plane(reinterpret_cast<uintptr_t>(at), pitch, 0, width, height, stream);
}

// Fills in a descriptor of `kRank` axes.
template <int kRank>
int32_t describe_axes(const Kernel& kernel, Described& how, const DLTensor& tensor, Descriptor* to,
                      void*** next) {
  if (const int32_t wrong = read_parts<kRank>(how, tensor, to)) return wrong;
  if (kernel.tma) {
    if (const int32_t status = find_map<kRank>(how, to)) return status;
    *(*next)++ = &to->map;
  } else {
    add_parts<kRank>(kernel, to, next);
  }
  add_shape<kRank>(to, next);
  return 0;
}

}  // namespace

inline namespace AOT_TUNE_LAUNCHER_FAMILY {

int64_t multiprocessors(const Kernel& kernel, int32_t device) {
  return loaded<State>(kernel).multiprocessors[device];
}

int32_t zero(void* at, size_t bytes, void* stream) {
  return driver.memset_line(reinterpret_cast<uintptr_t>(at), 0, bytes, stream);
}

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

int32_t launch(const Kernel& kernel, int32_t, const Grid& grid, void** parameters, void* stream) {
  LaunchAttribute attributes[4];
  uint32_t count = 0;
  const auto add = [&attributes, &count](LaunchAttributeId id, uint64_t first, uint64_t second = 0) {
    attributes[count++] = {id, 0, {first, second}};
  };
  if (kernel.pdl) add(kProgrammaticStreamSerialization, 1);
  if (kernel.cooperative) add(kCooperative, 1);
  if (kernel.ctas > 1) {
    add(kClusterDimension, kernel.ctas | uint64_t{1} << 32, 1);
    add(kClusterSchedulingPolicy, kSpread);
  }
  const LaunchConfig config = {{static_cast<uint32_t>(grid.x) * kernel.ctas, static_cast<uint32_t>(grid.y),
                                static_cast<uint32_t>(grid.z)},
                               {kernel.threads, 1, 1},
                               kernel.shared,
                               stream,
                               attributes,
                               count};
  return driver.launch(&config, loaded<State>(kernel).kernel, parameters, nullptr);
}

}  // namespace AOT_TUNE_LAUNCHER_FAMILY
}  // namespace launcher
