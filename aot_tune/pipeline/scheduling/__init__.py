"""What next: what is asked for, compiled and measured in which order, and when a budget ends."""
