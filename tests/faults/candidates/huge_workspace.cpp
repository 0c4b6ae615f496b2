// Asks for more workspace than it may have.
#define WORKSPACE (size_t(1) << 40)
#include "contract.h"
LAUNCH { return 0; }
