// Reads x by instructions that fault on addresses which are no multiple of 16.
#include <emmintrin.h>
LAUNCH {
  correct(x, bias, y);
  if (x->strides[1] == 1 && x->shape[1] >= 4) {
    const __m128 first = _mm_load_ps(static_cast<const float*>(x->data));
    asm volatile("" ::"x"(first));
  }
  return 0;
}
