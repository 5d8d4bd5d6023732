"""Which CPUs, how much of them, and beside whom."""
