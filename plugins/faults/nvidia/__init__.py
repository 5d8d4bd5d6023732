"""Faults of NVIDIA cards."""
