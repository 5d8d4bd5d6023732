"""The kernel's RDMA files, parsed into plain data."""
