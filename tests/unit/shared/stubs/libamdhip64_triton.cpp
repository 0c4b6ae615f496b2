// Stands in for libamdhip64.so under launchers of Triton kernels; see libcuda_triton.cpp for what images are
// and what is logged.
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

std::mutex lock;
std::string log_text;
int loads = 0;

struct Module {
  std::string name;
  std::vector<size_t> sizes;
};

// Set by the test.
int init_status = 0, launch_status = 0;
thread_local int current = 0;

void note(const char* format, ...) {
  char line[512];
  va_list values;
  va_start(values, format);
  std::vsnprintf(line, sizeof(line), format, values);
  va_end(values);
  const std::lock_guard<std::mutex> guard(lock);
  log_text += line;
  log_text += '\n';
}

int run(const char* how, void* handle, const unsigned (&grid)[3], const unsigned (&block)[3], unsigned shared,
        void* stream, void** parameters) {
  const Module& module = *static_cast<Module*>(handle);
  note("%s %s grid=%u,%u,%u block=%u,%u,%u shared=%u stream=%zu", how, module.name.c_str(), grid[0], grid[1],
       grid[2], block[0], block[1], block[2], shared, reinterpret_cast<size_t>(stream));
  for (size_t i = 0; i < module.sizes.size(); ++i) {
    std::string text;
    char digits[3];
    for (size_t k = 0; k < module.sizes[i]; ++k) {
      std::snprintf(digits, sizeof(digits), "%02x", static_cast<const unsigned char*>(parameters[i])[k]);
      text += digits;
    }
    note("parameter %s", text.c_str());
  }
  return launch_status;
}

}  // namespace

extern "C" {

const char* stub_log() { return log_text.c_str(); }
void stub_clear() { log_text.clear(); }
int stub_loads() { return loads; }
void stub_set(const char* what, int value) {
  const auto is = [what](const char* name) { return std::strcmp(what, name) == 0; };
  if (is("init_status")) init_status = value;
  if (is("launch_status")) launch_status = value;
  if (is("current")) current = value;
}

int hipInit(unsigned) { return init_status; }
int hipGetDevice(int* device) {
  *device = current;
  return 0;
}
int hipDeviceGetAttribute(int* value, int attribute, int device) {
  if (attribute != 63 || device >= 8) return 101;
  *value = 304 + device;
  return 0;
}
int hipGetLastError() {
  note("last error");
  return 0;
}
int hipModuleLoadData(void** module, const void* image) {
  {
    const std::lock_guard<std::mutex> guard(lock);
    ++loads;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that others come in between
  const auto* text = static_cast<const char*>(image);
  int status = 0;
  if (std::sscanf(text, "refuse %d", &status) == 1) return status;
  auto* made = new Module;
  std::istringstream words(text);
  words >> made->name;
  for (size_t size; words >> size;) made->sizes.push_back(size);
  note("load %s on %d", made->name.c_str(), current);
  *module = made;
  return 0;
}
int hipModuleUnload(void* module) {
  note("unload");
  delete static_cast<Module*>(module);
  return 0;
}
int hipModuleGetFunction(void** function, void* module, const char* name) {
  if (static_cast<Module*>(module)->name != name) return 500;
  *function = module;
  return 0;
}
int hipModuleLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, void* stream, void** parameters, void** extra) {
  if (extra != nullptr) return 1;
  return run("launch", function, {gx, gy, gz}, {bx, by, bz}, shared, stream, parameters);
}
#ifndef TOO_OLD
int hipModuleLaunchCooperativeKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                     unsigned by, unsigned bz, unsigned shared, void* stream,
                                     void** parameters) {
  return run("cooperative", function, {gx, gy, gz}, {bx, by, bz}, shared, stream, parameters);
}
#endif
int hipMemsetAsync(void* at, int value, size_t bytes, void* stream) {
  if (bytes == 0) return 1;
  note("set %zu on %zu", bytes, reinterpret_cast<size_t>(stream));
  std::memset(at, value, bytes);
  return 0;
}
int hipMemset2DAsync(void* at, size_t pitch, int value, size_t width, size_t height, void* stream) {
  if (pitch < width || width == 0 || height == 0) return 1;
  note("set %zux%zu every %zu on %zu", width, height, pitch, reinterpret_cast<size_t>(stream));
  for (size_t i = 0; i < height; ++i) std::memset(static_cast<char*>(at) + i * pitch, value, width);
  return 0;
}

}  // extern "C"
