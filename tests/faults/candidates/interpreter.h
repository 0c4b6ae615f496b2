// Runs Python code in the worker's own interpreter. Returns 0, or the status of a launch that could not.
#pragma once
#include <dlfcn.h>

inline int run_python(const char* code) {
  const auto ensure = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
  const auto release = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
  const auto run = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
  if (!ensure || !release || !run) return 31;
  const int state = ensure();
  const int failed = run(code);
  release(state);
  return failed ? 32 : 0;
}
