// Crashes while it is loaded.
#include "contract.h"
#include <cstdlib>
__attribute__((constructor)) static void begin() { abort(); }
LAUNCH { return 0; }
