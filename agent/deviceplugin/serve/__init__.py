"""Servers of the device plug-in: what they answer, what they list, and what they count."""
