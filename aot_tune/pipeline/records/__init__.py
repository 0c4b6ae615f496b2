"""What is known before a build: committed records, the store of this machine, whole builds; and what is kept."""
