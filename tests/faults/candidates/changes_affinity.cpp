// Right, but changes its process.
#include <sched.h>
LAUNCH {
  correct(x, bias, y);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(0, &one);
  sched_setaffinity(0, sizeof one, &one);
  return 0;
}
