// Right, but does not know how much workspace it needs when it is asked often.
#define WORKSPACE (calls() > 1 ? SIZE_MAX : 64)
#include <cstdint>
static int calls() {
  static int count = 0;
  return ++count;
}
#include "contract.h"
LAUNCH {
  correct(x, bias, y);
  return 0;
}
