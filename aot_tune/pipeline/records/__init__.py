"""What is known before a build: committed records, the store of this machine; and what is kept."""
