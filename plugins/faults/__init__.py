"""What faults mean: codes of the vendors, their gravity, and when they are over."""
