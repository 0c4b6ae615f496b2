// Right, but changes its process.
#include <cstdlib>

#include "contract.h"
LAUNCH {
  correct(x, bias, y);
  setenv("OMP_PROC_BIND", "true", 1);
  return 0;
}
