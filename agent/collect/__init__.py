"""Collectors: counters of node, pods, containers and devices to usage over time."""
