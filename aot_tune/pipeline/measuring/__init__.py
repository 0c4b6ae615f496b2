"""Devices at work: benches, job queues, screens, races, and the verification of variants."""
