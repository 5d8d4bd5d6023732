"""Hooks: what the agent changes in a pod or container at each stage of its life. Pure."""
