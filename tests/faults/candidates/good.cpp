// Right in every way.
#include "contract.h"
LAUNCH {
  correct(x, bias, y);
  return 0;
}
