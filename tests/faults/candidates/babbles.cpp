// Right, but writes to whatever is open.
#include <unistd.h>

#include "contract.h"
#ifndef BABBLE
#define BABBLE "not a message"
#endif
LAUNCH {
  for (int descriptor = 3; descriptor < 256; ++descriptor)
    if (write(descriptor, BABBLE, sizeof BABBLE - 1) < 0) continue;
  correct(x, bias, y);
  return 0;
}
