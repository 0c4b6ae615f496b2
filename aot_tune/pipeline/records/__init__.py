"""What is known from before: committed records, the store of this machine, whole builds; and what is kept."""
