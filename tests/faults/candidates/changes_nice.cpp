// Right, but changes its process.
#include <unistd.h>
LAUNCH {
  correct(x, bias, y);
  if (nice(3) == -1) return 9;
  return 0;
}
