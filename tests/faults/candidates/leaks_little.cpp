// Loses 2 KiB per call.
#include <cstdlib>

#include "contract.h"
LAUNCH {
  static void* volatile lost;
  lost = malloc(2048);
  correct(x, bias, y);
  return lost ? 0 : 12;
}
