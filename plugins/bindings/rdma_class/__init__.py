"""The edge to the kernel's RDMA classes: what their files say, in plain data."""
