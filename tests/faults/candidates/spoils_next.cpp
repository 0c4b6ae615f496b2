// Right, but has the worker's own interpreter find wrong whatever is loaded after it.
#include <dlfcn.h>

#include "contract.h"
LAUNCH {
  const auto ensure = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
  const auto release = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
  const auto run = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
  if (!ensure || !release || !run) return 31;
  const int state = ensure();
  const int failed = run(
      "from aot_tune.bench.worker import verification, worker_session\n"
      "def load(*given, real=worker_session.load):\n"
      "    verification.judge = lambda *given: ('spoiled', 9.0)\n"
      "    return real(*given)\n"
      "worker_session.load = load\n");
  release(state);
  if (failed) return 32;
  correct(x, bias, y);
  return 0;
}
