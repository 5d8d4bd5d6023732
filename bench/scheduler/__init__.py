"""Benches of the scheduling plug-in."""
