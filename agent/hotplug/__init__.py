"""Kernel events of devices that come and go, and the scans that they ask for."""
