"""Resource usage of the node, pods, containers and devices, now and over time."""
