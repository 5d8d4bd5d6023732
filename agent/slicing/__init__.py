"""Slices that grants ask for: made before their pods, taken back after them."""
