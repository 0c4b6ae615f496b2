// Gives NaN for values above 2.
#include <cmath>
LAUNCH {
  correct(x, bias, y);
  for (int64_t i = 0; i < x->shape[0]; ++i)
    for (int64_t j = 0; j < x->shape[1]; ++j)
      if (*at(x, i, j) > 2) *at(y, i, j) = NAN;
  return 0;
}
