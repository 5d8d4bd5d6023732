"""Accelerators known by their PCI identity alone."""
