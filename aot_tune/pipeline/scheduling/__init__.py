"""What to do next: the order in which candidates are asked for, compiled and measured, and when a budget ends."""
