"""Evictions of pods when CPU or memory is short."""
