// Right, but what is computed afterwards in vector registers is rounded up.
#include <xmmintrin.h>
LAUNCH {
  correct(x, bias, y);
  _MM_SET_ROUNDING_MODE(_MM_ROUND_UP);
  return 0;
}
