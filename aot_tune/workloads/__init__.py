"""Workload files, which list problems worth tuning and their weights; and traces of real runs, in the same format."""
