// Loses 2 KiB per call.
#include <cstdlib>
LAUNCH {
  static void* volatile lost;
  lost = malloc(2048);
  correct(x, bias, y);
  return lost ? 0 : 12;
}
