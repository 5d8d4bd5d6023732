"""Control groups, version 1 and 2: their layout, their files, and writes that can be undone."""
