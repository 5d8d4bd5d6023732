"""The status page: one document from the snapshot, its sections, and the topology picture."""
