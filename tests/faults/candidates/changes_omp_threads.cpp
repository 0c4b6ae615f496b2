// Right, but changes its process.
#include <omp.h>
LAUNCH {
  correct(x, bias, y);
  omp_set_num_threads(5);
  return 0;
}
