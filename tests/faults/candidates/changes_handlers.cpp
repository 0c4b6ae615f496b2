// Right, but changes its process.
#include <csignal>

#include "contract.h"
LAUNCH {
  correct(x, bias, y);
  signal(SIGUSR1, SIG_IGN);
  return 0;
}
