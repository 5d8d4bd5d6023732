"""From the snapshot to the objects and series that others read; pure but for the appliers."""
