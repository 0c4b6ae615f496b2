"""What CMake asked for: options, the plan that is made of them, what must be so before, and what a build requires."""
