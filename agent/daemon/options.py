"""How one run of the daemon serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agent.config.address import Address

if TYPE_CHECKING:
    from agent.kube.session.target import ApiTarget
    from agent.node.lock import NodeLock


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to serve."""

    listen: tuple[Address, ...]
    out: str  # folder of the objects in standalone mode, and of the admin socket
    notice: str
    cluster: ApiTarget | None = None  # `None`: standalone mode
    lock: NodeLock | None = None
