"""What all stages share and that knows none of them: errors, storage, processes, the wall clock, progress."""
