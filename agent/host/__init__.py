"""The machine's files, read side: one door, parsers that never crash, nothing written."""
