"""The device vendors that come with the agent."""

from __future__ import annotations

# Name and class of each, in the order of `config reference`; a worker imports its own vendor only.
BUILTIN: tuple[tuple[str, str], ...] = (
    ("nvidia", "plugins.vendors.nvidia.vendor:NvidiaVendor"),
    ("ascend", "plugins.vendors.ascend.vendor:AscendVendor"),
    ("cambricon", "plugins.vendors.cambricon.vendor:CambriconVendor"),
    ("rdma", "plugins.vendors.rdma.vendor:RdmaVendor"),
    ("fake", "plugins.vendors.fake.vendor:FakeVendor"),
    ("accelerators", "plugins.vendors.accelerators.vendor:AcceleratorsVendor"),
    ("infofiles", "plugins.vendors.infofiles.vendor:InfofilesVendor"),
)
