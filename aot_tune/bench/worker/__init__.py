"""What runs inside the sandbox: candidates are loaded, verified and timed here."""
