"""The device vendors that come with the agent."""

from __future__ import annotations

# Name and class of each; a worker imports its own vendor and no other.
BUILTIN: tuple[tuple[str, str], ...] = (
    ("accelerators", "plugins.vendors.accelerators.vendor:AcceleratorsVendor"),
    ("ascend", "plugins.vendors.ascend.vendor:AscendVendor"),
    ("cambricon", "plugins.vendors.cambricon.vendor:CambriconVendor"),
    ("fake", "plugins.vendors.fake.vendor:FakeVendor"),
    ("infofiles", "plugins.vendors.infofiles.vendor:InfofilesVendor"),
    ("nvidia", "plugins.vendors.nvidia.vendor:NvidiaVendor"),
    ("rdma", "plugins.vendors.rdma.vendor:RdmaVendor"),
)
