"""What all stages share: errors, storage, processes, the wall clock, progress. It knows no stage."""
