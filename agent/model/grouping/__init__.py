"""Groups of devices derived from their links: the scheduler's partition table."""
