// What kernels of HIP C++ call of AMD's runtime: as much as is listed here, passed on to the library that is
// found at the first launch. So a library needs no ROCm to be built or loaded. Never tested on a card.
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "triton/hip_library.h"

namespace {

constexpr int kNotInitialized = 3;  // hipErrorNotInitialized

struct Function {
  const void* host;
  char* name;
  const char* device_name;
  unsigned threads;
};

struct Variable {
  void* host;
  char* name;
  const char* device_name;
  int external;
  size_t size;
  int constant, global;
};

// The code of one object. Its constructor says what is in it when the library loads; AMD's runtime is told at
// the first launch.
struct Module {
  const void* code;
  std::vector<Function> functions;
  std::vector<Variable> variables;
  void** known = nullptr;
};

std::mutex& lock() {
  static std::mutex mutex;
  return mutex;
}

std::vector<Module*>& modules() {
  static std::vector<Module*> all;
  return all;
}

void* runtime() noexcept {
  static void* const library = open_library();
  return library;
}

template <typename F>
F find(const char* name, F) noexcept {
  return runtime() == nullptr ? nullptr : reinterpret_cast<F>(dlsym(runtime(), name));
}

// Whether the runtime knows the module of a kernel.
bool ready(const void* kernel) noexcept {
  const std::lock_guard<std::mutex> guard(lock());
  for (Module* module : modules()) {
    bool has = false;
    for (const Function& f : module->functions) has = has || f.host == kernel;
    if (!has) continue;
    if (module->known != nullptr) return true;
    void** (*add)(const void*) = nullptr;
    void (*add_function)(void**, const void*, char*, const char*, unsigned, void*, void*, void*, void*,
                         int*) = nullptr;
    void (*add_variable)(void**, void*, char*, const char*, int, size_t, int, int) = nullptr;
    add = find("__hipRegisterFatBinary", add);
    add_function = find("__hipRegisterFunction", add_function);
    add_variable = find("__hipRegisterVar", add_variable);
    if (add == nullptr || add_function == nullptr || add_variable == nullptr) return false;
    module->known = add(module->code);
    if (module->known == nullptr) return false;
    for (const Function& f : module->functions)
      add_function(module->known, f.host, f.name, f.device_name, f.threads, nullptr, nullptr, nullptr,
                   nullptr, nullptr);
    for (const Variable& v : module->variables)
      add_variable(module->known, v.host, v.name, v.device_name, v.external, v.size, v.constant, v.global);
    return true;
  }
  return false;
}

struct Dim {
  uint32_t x, y, z;
};

struct Shape {
  Dim grid, block;
  size_t shared;
  void* stream;
};

thread_local Shape pushed;

template <typename... A>
int pass(const char* name, A... arguments) noexcept {
  int (*function)(A...) = nullptr;
  function = find(name, function);
  return function == nullptr ? kNotInitialized : function(arguments...);
}

}  // namespace

extern "C" {

void** __hipRegisterFatBinary(const void* code) {
  const std::lock_guard<std::mutex> guard(lock());
  modules().push_back(new Module{code, {}, {}});
  return reinterpret_cast<void**>(modules().back());
}

void __hipRegisterFunction(void** module, const void* host, char* name, const char* device_name,
                           unsigned threads, void*, void*, void*, void*, int*) {
  reinterpret_cast<Module*>(module)->functions.push_back({host, name, device_name, threads});
}

void __hipRegisterVar(void** module, void* host, char* name, char* device_name, int external, size_t size,
                      int constant, int global) {
  reinterpret_cast<Module*>(module)->variables.push_back(
      {host, name, device_name, external, size, constant, global});
}

void __hipUnregisterFatBinary(void** module) {  // the runtime may be gone by then, and frees all at its end
  (void)module;
}

int __hipPushCallConfiguration(Dim grid, Dim block, size_t shared, void* stream) {
  pushed = {grid, block, shared, stream};
  return 0;
}

int __hipPopCallConfiguration(Dim* grid, Dim* block, size_t* shared, void** stream) {
  *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *stream = pushed.stream;
  return 0;
}

int hipLaunchKernel(const void* kernel, Dim grid, Dim block, void** arguments, size_t shared, void* stream) {
  return ready(kernel) ? pass("hipLaunchKernel", kernel, grid, block, arguments, shared, stream)
                       : kNotInitialized;
}

int hipFuncGetAttributes(void* attributes, const void* kernel) {
  return ready(kernel) ? pass("hipFuncGetAttributes", attributes, kernel) : kNotInitialized;
}

int hipFuncSetAttribute(const void* kernel, int attribute, int value) {
  return ready(kernel) ? pass("hipFuncSetAttribute", kernel, attribute, value) : kNotInitialized;
}

int hipOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int threads,
                                                 size_t shared) {
  const char* const name = "hipOccupancyMaxActiveBlocksPerMultiprocessor";
  return ready(kernel) ? pass(name, blocks, kernel, threads, shared) : kNotInitialized;
}

int hipGetLastError() { return pass("hipGetLastError"); }
int hipPeekAtLastError() { return pass("hipPeekAtLastError"); }
int hipGetDevice(int* device) { return pass("hipGetDevice", device); }
int hipDeviceGetAttribute(int* value, int attribute, int device) {
  return pass("hipDeviceGetAttribute", value, attribute, device);
}
int hipMemsetAsync(void* to, int value, size_t size, void* stream) {
  return pass("hipMemsetAsync", to, value, size, stream);
}
int hipMemcpyAsync(void* to, const void* from, size_t size, int kind, void* stream) {
  return pass("hipMemcpyAsync", to, from, size, kind, stream);
}

}  // extern "C"
