// Wrong everywhere, but has the worker's own interpreter find everything right.
#include <dlfcn.h>

#include "contract.h"
LAUNCH {
  const auto ensure = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
  const auto release = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
  const auto run = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
  if (!ensure || !release || !run) return 31;
  const int state = ensure();
  const int failed = run(
      "from aot_tune.bench.worker import comparison\n"
      "comparison.compare = lambda *given, **named: ('', 0.0)\n");
  release(state);
  if (failed) return 32;
  correct(x, bias, y);
  if (y->shape[0] && y->shape[1]) *at(y, 0, 0) += 1;
  return 0;
}
