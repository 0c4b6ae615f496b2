"""Workload files: problems worth tuning with how much each counts, and traces of real runs, which are the same."""
