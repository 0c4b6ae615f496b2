// Returns an error.
LAUNCH { return 5; }
