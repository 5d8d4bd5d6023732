"""Plug-ins: what the hardware says (vendors) and what the cluster decides (scheduler)."""
