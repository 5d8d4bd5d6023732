"""What the agent says of the machine's devices, and what the kernel's own files say."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.guest.inside.groups import read
from tests.guest.inside.pods import COMMAND_S, agent

_NETLINK_RDMA = 20
_NEW_LINK = (5 << 10) | 3  # RDMA_NL_NLDEV, RDMA_NLDEV_CMD_NEWLINK
_REQUEST_ACK = 0x5
_DEVICE, _PARENT, _TYPE = 2, 51, 65  # RDMA_NLDEV_ATTR_DEV_NAME, _NDEV_NAME, _LINK_TYPE
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port

PCI = Path("/sys/bus/pci/devices")
RDMA = Path("/sys/class/infiniband")
VERBS = Path("/sys/class/infiniband_verbs")


def add_soft_roce() -> list[str]:
    """Make `rxe_<name>` on every Ethernet device; return their names."""
    names = sorted(name for name in os.listdir("/sys/class/net") if name.startswith("eth"))
    for name in names:
        add_link(f"rxe_{name}", name)
    return names


def add_link(name: str, parent: str) -> None:
    """Do what `rdma link add NAME type rxe netdev PARENT` does."""
    pairs = ((_DEVICE, name), (_TYPE, "rxe"), (_PARENT, parent))
    body = b"".join(_attribute(kind, text) for kind, text in pairs)
    head = _HEADER.pack(_HEADER.size + len(body), _NEW_LINK, _REQUEST_ACK, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_RDMA) as link:
        link.settimeout(30)
        link.sendto(head + body, (0, 0))
        answer = link.recv(4096)
    (error,) = struct.unpack_from("=i", answer, _HEADER.size)
    if error:
        raise OSError(-error, f"{name}: {os.strerror(-error)}")


def _attribute(kind: int, text: str) -> bytes:
    data = text.encode() + b"\0"
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def facts(share: Path) -> dict[str, Any]:
    """Return the agent's answers and the kernel's; leave a recording in the share."""
    record = [sys.executable, "-m", "agent", "record", str(share / "recording")]
    subprocess.run(record, check=True, timeout=COMMAND_S, stdin=subprocess.DEVNULL)
    return {
        "devices": agent("devices", "-o", "json"),
        "topology": agent("topology", "-o", "json"),
        "pci": {path.name: _function(path) for path in sorted(PCI.iterdir())},
        "rdma": {path.name: _rdma(path) for path in sorted(RDMA.iterdir())},
    }


def _function(path: Path) -> dict[str, str | None]:
    return {
        "path": str(path.resolve()),
        **{name: _text(path / name) for name in ("class", "vendor", "device", "numa_node")},
    }


def _rdma(path: Path) -> dict[str, str | None]:
    parent = _text(path / "parent")
    function = Path(f"/sys/class/net/{parent}/device").resolve().parent  # above virtio<N>
    verbs = [entry for entry in VERBS.iterdir() if _text(entry / "ibdev") == path.name]
    number = os.stat(f"/dev/infiniband/{verbs[0].name}").st_rdev
    return {
        "parent": parent,
        "function": function.name,
        "verbs": verbs[0].name,
        "verbs_number": _text(verbs[0] / "dev"),
        "node_number": f"{os.major(number)}:{os.minor(number)}",
    }


def _text(path: Path) -> str | None:
    text = read(path)
    return None if text is None else text.strip()
