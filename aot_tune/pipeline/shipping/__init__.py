"""From evidence to files: what is chosen, compiled, told, and checked once it is linked."""
