// Right, but changes its process.
#include <csignal>
LAUNCH {
  correct(x, bias, y);
  signal(SIGUSR1, SIG_IGN);
  return 0;
}
