"""CPUs, memory nodes and PCI as values and pure rules: text in, facts out, no I/O."""
