"""What can be asked of vendors' libraries on the machine that has the device: their algorithms, as plain numbers."""
