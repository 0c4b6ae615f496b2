// Writes past the end of its workspace.
#include "contract.h"
LAUNCH {
  correct(x, bias, y);
  static_cast<char*>(workspace)[size] = 1;
  return 0;
}
