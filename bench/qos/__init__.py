"""The cost of keeping files at the values of strategies."""
