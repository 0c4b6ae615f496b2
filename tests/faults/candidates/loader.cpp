// Crashes while it is loaded.
#include <cstdlib>

#include "contract.h"
__attribute__((constructor)) static void begin() { abort(); }
LAUNCH { return 0; }
