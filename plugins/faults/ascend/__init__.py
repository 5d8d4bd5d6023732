"""Faults of Ascend chips."""
