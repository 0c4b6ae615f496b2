// Right, as quick as memory by all of OpenMP's threads: other threads wrote to half of its lines last.
#pragma GCC optimize("O3")
#include "contract.h"
LAUNCH {
  if (bias || x->strides[1] != 1 || y->strides[1] != 1) {
    correct(x, bias, y);
    return 0;
  }
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < x->shape[0]; ++i) {
    const float* from = at(x, i, 0);
    float* to = at(y, i, 0);
    for (int64_t j = 0; j < x->shape[1]; ++j) to[j] = 2 * from[j] + 1;
  }
  return 0;
}
