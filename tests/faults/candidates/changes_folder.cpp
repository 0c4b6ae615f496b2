// Right, but changes its process.
#include <unistd.h>
LAUNCH {
  correct(x, bias, y);
  if (chdir("/") != 0) return 9;
  return 0;
}
