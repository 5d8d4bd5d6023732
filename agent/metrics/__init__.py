"""The metrics of the agent: families, series from the snapshot, and the text formats."""
