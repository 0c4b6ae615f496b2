// Never returns, and ignores the polite signal.
#include <csignal>
LAUNCH {
  signal(SIGTERM, SIG_IGN);
  for (volatile bool forever = true; forever;) {
  }
  return 0;
}
