// Right, but OpenMP's other threads flush denormal numbers from then on.
#include <omp.h>
#include <xmmintrin.h>
LAUNCH {
  correct(x, bias, y);
#pragma omp parallel
  {
    if (omp_get_thread_num() > 0) _mm_setcsr(_mm_getcsr() | 0x8040);
  }
  return 0;
}
