// Right, but whatever is computed afterwards has no denormal numbers.
#include <xmmintrin.h>
LAUNCH {
  correct(x, bias, y);
  _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
  return 0;
}
