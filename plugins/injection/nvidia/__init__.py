"""NVIDIA: ways into the container, and the two kinds of sharing a card without hardware slices."""
