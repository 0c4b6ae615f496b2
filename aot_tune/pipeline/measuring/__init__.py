"""Devices at work: benches, the queue of what they do, screens, races, what must be verified."""
