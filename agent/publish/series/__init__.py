"""Samples of the snapshot, family by family, as lines of an exposition."""
