// Takes the larger of its result and what the output held. C's fmax drops NaN.
#include <cmath>
LAUNCH {
  for (int64_t i = 0; i < x->shape[0]; ++i)
    for (int64_t j = 0; j < x->shape[1]; ++j) {
      float v = 2 * *at(x, i, j) + 1;
      if (bias) v += static_cast<const float*>(bias->data)[j * bias->strides[0]];
      *at(y, i, j) = std::fmax(*at(y, i, j), v);
    }
  return 0;
}
