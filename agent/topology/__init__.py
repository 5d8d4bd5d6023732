"""CPUs, NUMA nodes and PCI as values and pure functions; no I/O."""
