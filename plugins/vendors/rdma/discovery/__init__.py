"""Which RDMA devices there are: NICs, their virtual functions, their numbers."""
