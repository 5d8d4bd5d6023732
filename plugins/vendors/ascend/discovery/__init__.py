"""Discovery of Ascend chips and their links."""
