"""Checks that show problems of this node, and their remedies."""
