"""RDMA devices of any driver, read from sysfs alone; needs no tool and no library."""
