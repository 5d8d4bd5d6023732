"""What the states of RDMA ports and lines of the kernel log mean for an RDMA device."""
