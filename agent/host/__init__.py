"""Files and events of this machine: PCI, CPUs, NUMA, kernel log, uevents. Read-only."""
