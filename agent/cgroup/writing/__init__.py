"""Changing cgroup files: in an order that the kernel takes, only on difference, read back."""
