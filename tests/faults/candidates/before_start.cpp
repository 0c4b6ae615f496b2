// Writes just before its output.
#include "contract.h"
LAUNCH {
  correct(x, bias, y);
  static_cast<float*>(y->data)[-1] = 0;
  return 0;
}
