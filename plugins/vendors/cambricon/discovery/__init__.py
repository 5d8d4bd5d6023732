"""Which MLUs there are, and how they are connected."""
