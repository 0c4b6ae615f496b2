// Returns an error.
#include "contract.h"
LAUNCH { return 5; }
