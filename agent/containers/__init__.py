"""Hooks: what is changed in a pod or container at each stage of its life. Pure."""
