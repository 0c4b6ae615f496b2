// The first thread only waits for the others.
#include <omp.h>
LAUNCH {
#pragma omp parallel
  for (int64_t i = omp_get_thread_num() - 1; i >= 0 && i < x->shape[0]; i += omp_get_num_threads() - 1)
    for (int64_t j = 0; j < x->shape[1]; ++j) {
      float v = 2 * *at(x, i, j) + 1;
      if (bias) v += static_cast<const float*>(bias->data)[j * bias->strides[0]];
      *at(y, i, j) = v;
    }
  return 0;
}
