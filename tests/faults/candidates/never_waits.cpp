// Right, but whoever waits for something to read from then on does not get it.
#include <fcntl.h>
LAUNCH {
  for (int descriptor = 3; descriptor < 64; ++descriptor) fcntl(descriptor, F_SETFL, O_NONBLOCK);
  correct(x, bias, y);
  return 0;
}
