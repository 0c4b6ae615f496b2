// Right, but changes its process.
#include <fcntl.h>
LAUNCH {
  correct(x, bias, y);
  if (open("/dev/null", O_RDONLY) < 0) return 9;
  return 0;
}
