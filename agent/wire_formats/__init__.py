"""Annotations and objects of other programs, parsed and rendered. Pure."""
