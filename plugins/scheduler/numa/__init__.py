"""CPUs and memory nodes of pods: CPU sets, and the alignment of resources to NUMA nodes."""
