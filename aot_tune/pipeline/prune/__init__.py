"""What need not be tried, because of the results of a leader or of a similar problem."""
