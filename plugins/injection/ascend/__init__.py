"""Ascend: the runtime's environment, and what a container needs without that runtime."""
