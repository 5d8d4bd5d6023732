"""The composition root: builds every part, starts the loops, stops in order."""
