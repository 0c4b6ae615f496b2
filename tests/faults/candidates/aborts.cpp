// Aborts.
#include <cstdlib>

#include "contract.h"
LAUNCH { abort(); }
