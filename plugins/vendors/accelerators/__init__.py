"""Accelerators that no plug-in of ours drives: known by their PCI identity alone."""
