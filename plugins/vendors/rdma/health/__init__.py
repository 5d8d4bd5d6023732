"""The health of RDMA ports, from their states, counters and the kernel log."""
