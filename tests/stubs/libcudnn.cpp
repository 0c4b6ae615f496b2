// Stands in for libcudnn.so.9 on machines without a GPU. It keeps what descriptors were given, and logs a
// graph when it is executed. The output becomes zeros.
#include <dlfcn.h>

#include <cstring>
#include <vector>

#include "stand_in.h"

#ifndef VERSION
#define VERSION 91900
#endif

namespace {

struct Made {
  int type;
  std::map<int, std::vector<char>> given;
};
int live = 0;  // descriptors

template <typename T>
std::vector<T> read(const Made* of, int attribute) {
  const auto found = of->given.find(attribute);
  if (found == of->given.end()) return {};
  const auto* first = reinterpret_cast<const T*>(found->second.data());
  return std::vector<T>(first, first + found->second.size() / sizeof(T));
}

int capture_mode() {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  return driver == nullptr ? -1 : reinterpret_cast<int (*)()>(dlsym(driver, "stub_mode"))();
}

}  // namespace

extern "C" {

size_t cudnnGetVersion() { return VERSION; }
int cudnnCreate(void** handle) {
  static int made = 0;
  note("create mode=%d", capture_mode());
  *handle = status("create") == 0 ? &made : nullptr;
  return status("create");
}
int cudnnSetStream(void*, void* stream) {
  note("stream %zu", reinterpret_cast<size_t>(stream));
  return 0;
}
int cudnnBackendCreateDescriptor(int type, void** made) {
  *made = new Made{type, {}};
  ++live;
  return 0;
}
int cudnnBackendSetAttribute(void* of, int attribute, int type, int64_t count, const void* value) {
  const int64_t sizes[] = {8, 4, 1, 8, 4, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4, 8, 4, 4, 4};
  const auto* bytes = static_cast<const char*>(value);
  static_cast<Made*>(of)->given[attribute].assign(bytes, bytes + count * sizes[type]);
  return 0;
}
int cudnnBackendGetAttribute(void* of, int attribute, int, int64_t wanted, int64_t* found, void* value) {
  (void)of;
  if (attribute == 202) {  // configs of heuristics: the caller's descriptors
    *found = ::value("configs", 2);
    return *found <= wanted ? 0 : 2000;
  }
  *found = 1;
  const int64_t workspace = ::value("workspace", 64);
  std::memcpy(value, &workspace, sizeof workspace);
  return 0;
}
int cudnnBackendFinalize(void* of) {
  static int plans = 0;
  const int type = static_cast<Made*>(of)->type;
  if (type == 5) note("plan %d mode=%d", ++plans, capture_mode());
  if (type == 5 && status("bad plans") > 0) {
    stub_set("bad plans", status("bad plans") - 1);
    return 3000;
  }
  if (type == 15) {
    std::string operations;
    for (const Made* one : read<Made*>(static_cast<Made*>(of), 801)) {
      operations += " " + std::to_string(one->type);
      for (const Made* mode : read<Made*>(one, 750))
        operations += "." + std::to_string(read<int32_t>(mode, 0)[0]);
    }
    note("graph%s", operations.c_str());
  }
  return type == 15 ? status("graph") : 0;
}
#ifdef LACKS_EXECUTE
#define cudnnBackendExecute another_name
#endif
int cudnnBackendExecute(void*, void* plan, void* pack) {
  (void)plan;
  const auto* const given = static_cast<Made*>(pack);
  const auto pointers = read<void*>(given, 1001);
  std::string ids;
  for (const int64_t id : read<int64_t>(given, 1000)) ids += " " + std::to_string(id);
  std::string values;
  for (size_t i = 4; i < pointers.size(); ++i) {
    char text[32];
    const bool whole = i > 5;
    std::snprintf(
        text, sizeof text, " %g",
        whole ? *static_cast<int32_t*>(pointers[i]) : static_cast<double>(*static_cast<float*>(pointers[i])));
    values += text;
  }
  note("execute ids%s values%s mode=%d", ids.c_str(), values.c_str(), capture_mode());
  std::memset(pointers[3], 0, 2);
  return status("execute");
}
int cudnnBackendDestroyDescriptor(void* of) {
  if (static_cast<Made*>(of)->type == 5) note("destroy mode=%d", capture_mode());
  delete static_cast<Made*>(of);
  --live;
  return 0;
}
int64_t stub_live() { return live; }

}  // extern "C"
