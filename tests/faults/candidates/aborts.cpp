// Aborts.
#include "contract.h"
#include <cstdlib>
LAUNCH { abort(); }
