"""Processes that benches of containers start."""
