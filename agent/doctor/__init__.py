"""Checks that tell a person what is wrong on this node, and what to do."""
