// Right, unless an element is a denormal number.
#include <cmath>
LAUNCH {
  correct(x, bias, y);
  for (int64_t i = 0; i < x->shape[0]; ++i)
    for (int64_t j = 0; j < x->shape[1]; ++j)
      if (std::fpclassify(*at(x, i, j)) == FP_SUBNORMAL) *at(y, i, j) = 0;
  return 0;
}
