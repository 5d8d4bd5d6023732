"""Whether running containers have the devices and limits of their allocations.

Observed from the host.
"""
