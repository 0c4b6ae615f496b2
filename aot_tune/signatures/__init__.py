"""What a library's module says of its operators, read and checked alike for every framework."""
