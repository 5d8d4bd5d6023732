"""Which Ascend chips there are, and how they are connected."""
