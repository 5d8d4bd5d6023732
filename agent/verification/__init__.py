"""Whether running containers have the devices and limits of their allocations.

Containers are observed from the host.
"""
