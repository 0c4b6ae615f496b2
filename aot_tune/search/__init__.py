"""What to try next, within a budget."""
