"""RDMA devices of any driver, read from sysfs alone: no tool and no library is needed."""
