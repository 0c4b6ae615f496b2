// Right, but changes its process.
#include <cstdlib>
LAUNCH {
  correct(x, bias, y);
  setenv("OMP_PROC_BIND", "true", 1);
  return 0;
}
