"""The edge to CNDev."""
