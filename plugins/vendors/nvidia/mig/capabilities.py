"""Device files that give access to MIG instances: numbers from procfs, nodes below /dev."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from agent.host.files import read_text
from agent.snapshot.device import DeviceNode
from agent.snapshot.host_files import HostFiles

MINORS = "/proc/driver/nvidia-caps/mig-minors"
CAPABILITIES = "/proc/driver/nvidia/capabilities"
NODES = "/dev/nvidia-caps/nvidia-cap"
MAJORS = "/proc/devices"
MISSING, MISMATCH = "MIGNodeMissing", "NodeMismatch"
_LINE = re.compile(r"(config|monitor|gpu\d{1,5}/gi\d{1,5}(?:/ci\d{1,5})?/access) (\d{1,7})")
_MINOR = re.compile(r"DeviceFileMinor:\s*(\d{1,7})")


class InstanceAccess(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that an instance's containers need beside the card's, and what is odd."""

    nodes: tuple[DeviceNode, ...] = ()
    reason: str = ""  # empty: the nodes are there and right
    message: str = ""


def parse_minors(content: str) -> Mapping[str, int]:
    """Read lines such as `gpu0/gi1/ci0/access 13`; what is none of them is passed over."""
    found = (_LINE.fullmatch(line.strip()) for line in content.splitlines())
    return MappingProxyType({match[1]: int(match[2]) for match in found if match})


def parse_major(devices: str, name: str = "nvidia-caps") -> int | None:
    """Return the number of a character device's driver in `/proc/devices`."""
    for line in devices.partition("Block devices:")[0].splitlines():
        number, _, driver = line.strip().partition(" ")
        if driver.strip() == name and number.isdecimal() and len(number) < 6:
            return int(number)
    return None


class MigCapabilities:
    """Looks up capability files of one host; read once a discovery."""

    def __init__(self, host: HostFiles) -> None:
        self._host = host
        self._minors = parse_minors(read_text(host, MINORS) or "")
        self._major = parse_major(read_text(host, MAJORS) or "")

    def access(self, minor: int | None, gi: int | None, ci: int | None) -> InstanceAccess:
        """Return the nodes of GPU instance and compute instance of the card with that minor.

        Nodes are never made here: in a request there is no time for it. What is missing is said,
        with who makes it.
        """
        if minor is None or gi is None or ci is None:
            return InstanceAccess(reason=MISSING, message="card or instance number unknown")
        nodes: list[DeviceNode] = []
        odd: list[tuple[str, str]] = []
        for name in (f"gpu{minor}/gi{gi}/access", f"gpu{minor}/gi{gi}/ci{ci}/access"):
            number = self._number(name)
            if number is None or self._major is None:
                odd.append((MISSING, f"the driver shows no capability {name}"))
                continue
            node = DeviceNode(path=f"{NODES}{number}", major=self._major, minor=number)
            nodes.append(node)
            odd += self._oddity(node, name)
        reason, message = odd[0] if odd else ("", "")
        return InstanceAccess(nodes=tuple(nodes), reason=reason, message=message)

    def _number(self, name: str) -> int | None:
        if name in self._minors:
            return self._minors[name]
        gpu, _, instance = name.partition("/")
        found = _MINOR.search(read_text(self._host, f"{CAPABILITIES}/{gpu}/mig/{instance}") or "")
        return int(found[1]) if found else None

    def _oddity(self, node: DeviceNode, name: str) -> list[tuple[str, str]]:
        found = self._host.device_number(node.path)
        if found is None:
            gpu, _, instance = name.partition("/")
            file = f"{CAPABILITIES}/{gpu}/mig/{instance}"
            return [(MISSING, f"{node.path} is not there: run nvidia-modprobe -c 0 -f {file}")]
        if found != (node.major, node.minor):
            told = f"{node.path} is {found[0]}:{found[1]}, not {node.major}:{node.minor}"
            return [(MISMATCH, told)]
        return []
