"""What becomes of changes: the runs of publishers, where they write, and the events."""
