"""Partitions last-level cache and memory bandwidth by resctrl groups of classes and pods."""
