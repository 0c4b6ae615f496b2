// Wrong everywhere, but has the worker's own interpreter find everything right.
#include "interpreter.h"
LAUNCH {
  const int failed = run_python(
      "from aot_tune.bench.worker import comparison\n"
      "comparison.compare = lambda *given, **named: ('', 0.0)\n");
  if (failed) return failed;
  correct(x, bias, y);
  if (y->shape[0] && y->shape[1]) *at(y, 0, 0) += 1;
  return 0;
}
