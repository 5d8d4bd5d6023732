"""Plug-ins: the vendors of devices."""
