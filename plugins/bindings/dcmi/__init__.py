"""The edge to DCMI."""
