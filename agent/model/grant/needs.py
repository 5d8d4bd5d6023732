"""What a vendor wants to be looked for on the host, so that its `edits` find it in `HostMeans`."""

from __future__ import annotations

import msgspec


class HostNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of the host. The nodes of the vendor's own devices are looked for unasked."""

    nodes: tuple[str, ...] = ()  # device nodes; the last part may hold `*`: /dev/davinci*
    paths: tuple[str, ...] = ()  # files and folders, whose being there is all that counts
    mount_list: str = ""  # a file of paths, which are looked for too
    functions: bool = False  # RDMA devices by PCI function
    mps: bool = False


NOTHING_MORE = HostNeeds()
