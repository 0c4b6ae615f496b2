// Stands in for libamdhip64.so under whole libraries: devices of the architectures that FAKE_ARCHITECTURES
// names, memory of the host, and a log of what is asked. Code objects are not run, but refused where they are
// for another architecture than the thread's device.
#include <cstring>
#include <vector>

#include "stand_in.h"

namespace {

thread_local int current = 0;
thread_local int last = 0;

// An architecture's number in the flags of an ELF file. [AMDGPU backend of LLVM, ELF header]
struct Machine {
  const char* name;
  uint32_t number;
};
constexpr Machine kMachines[] = {{"gfx90a", 0x3f}, {"gfx942", 0x4c}, {"gfx950", 0x4f}};

// The name of a device, with features behind a colon; empty where there is no such device.
std::string architecture(int device) {
  const char* given = std::getenv("FAKE_ARCHITECTURES");
  std::string text = given != nullptr ? given : "gfx942:sramecc+:xnack-,gfx90a:sramecc+:xnack-,gfx1100";
  for (; device > 0 && !text.empty(); --device) {
    const size_t comma = text.find(',');
    text = comma == std::string::npos ? "" : text.substr(comma + 1);
  }
  return device < 0 ? "" : text.substr(0, text.find(','));
}

int failed(int with) { return last = with; }

}  // namespace

extern "C" {

// ---- For tests
void stub_enter(int device) {
  current = device;
  last = 0;
}
int stub_current() { return current; }
int stub_waiting() { return last != 0; }  // an error, for the thread's next question

// ---- The runtime
int hipInit(unsigned) { return status("init") != 0 ? failed(status("init")) : 0; }
int hipGetDeviceCount(int* count) {
  for (*count = 0; !architecture(*count).empty();) ++*count;
  return 0;
}
#ifndef TOO_OLD
int hipGetDevicePropertiesR0600(void* properties, int device) {
  const std::string name = architecture(device);
  if (name.empty()) return failed(101);
  event("properties");
  std::memset(properties, 0x7f, 1472);  // as long as the record of the header
  std::strcpy(static_cast<char*>(properties) + 1160, name.c_str());
  return 0;
}
#endif
int hipGetDevice(int* device) { return *device = current, 0; }
int hipSetDevice(int device) {
  event(("set " + std::to_string(device)).c_str());
  if (status("set") != 0) return failed(status("set"));
  return current = device, 0;
}
int hipThreadExchangeStreamCaptureMode(int* wanted) { return std::swap(mode, *wanted), 0; }
// Handles of streams that are captured are odd; the legacy stream has no answer, as while another one is
// captured.
int hipStreamIsCapturing(void* stream, int* state) {
  *state = reinterpret_cast<intptr_t>(stream) & 1;
  return stream == nullptr ? failed(906) : 0;
}
int hipMalloc(void** memory, size_t size) {
  event(("malloc " + std::to_string(size >> 10) + "K on " + std::to_string(current)).c_str());
  if (status("malloc") != 0) return failed(status("malloc"));
  *memory = std::aligned_alloc(256, size);
  return *memory != nullptr ? 0 : failed(2);
}
int hipGetLastError() { return std::exchange(last, 0); }
const char* hipGetErrorString(int error) { return error == 700 ? "an illegal address" : "a fake error"; }

// ---- Modules, for launchers
int hipDeviceGetAttribute(int* value, int attribute, int) {
  return *value = 304, attribute == 63 ? 0 : failed(1);
}
int hipModuleLoadData(void** module, const void* image) {
  const auto* bytes = static_cast<const unsigned char*>(image);
  uint16_t machine;
  uint32_t flags;
  std::memcpy(&machine, bytes + 18, sizeof machine);
  std::memcpy(&flags, bytes + 48, sizeof flags);
  if (std::memcmp(bytes, "\177ELF", 4) != 0 || machine != 224) return failed(200);
  for (const Machine& one : kMachines) {
    if (one.number != (flags & 0xff)) continue;
    event((std::string("load ") + one.name).c_str());
    const std::string here = architecture(current);
    *module = const_cast<void*>(image);
    return here.substr(0, here.find(':')) == one.name ? 0 : failed(209);
  }
  return failed(209);
}
int hipModuleUnload(void*) { return 0; }
int hipModuleGetFunction(void** function, void*, const char* name) { return *function = strdup(name), 0; }
int hipModuleLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned,
                          unsigned, unsigned, void* stream, void**, void**) {
  char line[200];
  std::snprintf(line, sizeof line, "%s %u,%u,%u x %u on %d stream %zu", static_cast<const char*>(function),
                gx, gy, gz, bx, current, reinterpret_cast<size_t>(stream));
  event(line);
  return 0;
}
int hipModuleLaunchCooperativeKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                     unsigned, void*, void**) {
  return failed(1);
}
int hipMemsetAsync(void* at, int value, size_t bytes, void*) { return std::memset(at, value, bytes), 0; }

// ---- Modules and launches of HIP C++
struct FatBinary {  // __CudaFatBinaryWrapper of clang
  uint32_t magic, version;
  const char* bundle;
};
void** __hipRegisterFatBinary(const FatBinary* data) {
  uint64_t count, name;
  std::memcpy(&count, data->bundle + 24,
              8);  // behind "__CLANG_OFFLOAD_BUNDLE__": entries of offset, size, name
  const char* entry = data->bundle + 32;
  for (; count > 0; --count, entry += 24 + name) {
    std::memcpy(&name, entry + 16, 8);
    event(("register " + std::string(entry + 24, name)).c_str());
  }
  return new void*(nullptr);
}
static std::vector<std::pair<const void*, const char*>>& kernels() {
  static std::vector<std::pair<const void*, const char*>> known;
  return known;
}
void __hipRegisterFunction(void**, const void* host, char*, const char* name, unsigned, void*, void*, void*,
                           void*, int*) {
  kernels().emplace_back(host, name);
}
void __hipRegisterVar(void**, void*, char*, const char*, int, size_t, int, int) {}
struct Dim {
  unsigned x, y, z;
};
int hipLaunchKernel(const void* kernel, Dim grid, Dim block, void** arguments, size_t shared, void* stream) {
  for (const auto& [host, name] : kernels()) {
    char line[200];
    std::snprintf(line, sizeof line, "%s %u x %u shared %zu on %d stream %zu first %d", name, grid.x, block.x,
                  shared, current, reinterpret_cast<size_t>(stream), arguments[0] != nullptr);
    if (host == kernel) return event(line), 0;
  }
  return failed(98);
}
int hipFuncGetAttributes(void*, const void*) { return 0; }
int hipMemset2DAsync(void*, size_t, int, size_t, size_t, void*) { return failed(1); }
}
