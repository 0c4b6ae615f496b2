"""What need not be tried: by what a leader came to, and by a problem that it resembles."""
