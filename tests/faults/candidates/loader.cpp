// Crashes while it is loaded.
#include <cstdlib>
__attribute__((constructor)) static void begin() { abort(); }
LAUNCH { return 0; }
