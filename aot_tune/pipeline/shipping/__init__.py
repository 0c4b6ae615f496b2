"""From evidence to files: choosing, compiling, reporting, and checking the linked library."""
