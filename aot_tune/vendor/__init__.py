"""Asks vendors' libraries, on the machine that has the device, for their algorithms as plain numbers."""
