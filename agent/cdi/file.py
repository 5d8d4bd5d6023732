"""A CDI file as it is to be on the disk."""

from __future__ import annotations

import msgspec


class CdiFile(msgspec.Struct, frozen=True, kw_only=True):
    """One specification: the name of its file, and its JSON text. Equal hosts give equal bytes."""

    name: str  # xpu-agent-npu.json
    kind: str  # xpu-agent.io/npu
    devices: tuple[str, ...]  # names, in order
    text: bytes
