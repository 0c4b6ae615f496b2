// Aborts.
#include <cstdlib>
LAUNCH { abort(); }
