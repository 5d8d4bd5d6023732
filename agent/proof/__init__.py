"""Looks into running containers whether what was granted is there."""
