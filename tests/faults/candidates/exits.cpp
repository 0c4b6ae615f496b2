// Ends the process with status 0 and no result.
#include <unistd.h>

#include "contract.h"
LAUNCH { _exit(0); }
