// Loses 1 MiB per call.
#include <cstdlib>
#include <cstring>
LAUNCH {
  static char* volatile lost;
  lost = static_cast<char*>(malloc(1 << 20));
  if (!lost) return 12;
  memset(lost, 1, 1 << 20);
  correct(x, bias, y);
  return 0;
}
