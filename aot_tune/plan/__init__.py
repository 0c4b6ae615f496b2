"""What CMake asked for: the options, the plan made from them, the checks before a build, and what it requires."""
