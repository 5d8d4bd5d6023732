"""What a container needs of a granted device: nodes, mounts, environment. Pure."""
