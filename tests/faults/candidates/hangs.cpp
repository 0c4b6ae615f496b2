// Never returns, and ignores the polite signal.
#include <csignal>

#include "contract.h"
LAUNCH {
  signal(SIGTERM, SIG_IGN);
  for (volatile bool forever = true; forever;) {
  }
  return 0;
}
