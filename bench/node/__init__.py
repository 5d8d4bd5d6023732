"""A busy node to run the whole agent on."""
