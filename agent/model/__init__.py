"""Frozen data and pure functions: what the agent knows of its node at one moment."""
