"""The parts of one node: host facts, vendors, usage, and the snapshot they fill."""
