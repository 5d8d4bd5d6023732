"""Accelerators without a vendor plug-in: identified by their PCI ids alone."""
