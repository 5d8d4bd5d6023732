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
    """Device nodes of an instance, which containers need besides the card's, and any problem."""

    nodes: tuple[DeviceNode, ...] = ()
    reason: str = ""  # empty: the nodes exist and have the right numbers
    message: str = ""


def parse_minors(content: str) -> Mapping[str, int]:
    """Parse lines such as `gpu0/gi1/ci0/access 13`; other lines are skipped."""
    matches = (_LINE.fullmatch(line.strip()) for line in content.splitlines())
    return MappingProxyType({match[1]: int(match[2]) for match in matches if match})


def parse_major(devices: str, name: str = "nvidia-caps") -> int | None:
    """Return a driver's major number among the character devices of `/proc/devices`."""
    for line in devices.partition("Block devices:")[0].splitlines():
        number, _, driver = line.strip().partition(" ")
        if driver.strip() == name and number.isdecimal() and len(number) < 6:
            return int(number)
    return None


class MigCapabilities:
    """Capability files of one host, read once in each discovery."""

    def __init__(self, host: HostFiles) -> None:
        self._host = host
        self._minors = parse_minors(read_text(host, MINORS) or "")
        self._major = parse_major(read_text(host, MAJORS) or "")

    def access(self, minor: int | None, gi: int | None, ci: int | None) -> InstanceAccess:
        """Return the nodes of a GPU instance and a compute instance of the card with that minor.

        The agent does not create missing nodes, because a request leaves no time for it. The
        message names the command that creates them.
        """
        if minor is None or gi is None or ci is None:
            return InstanceAccess(reason=MISSING, message="card or instance number unknown")
        nodes: list[DeviceNode] = []
        problems: list[tuple[str, str]] = []
        for name in (f"gpu{minor}/gi{gi}/access", f"gpu{minor}/gi{gi}/ci{ci}/access"):
            number = self._number(name)
            if number is None or self._major is None:
                problems.append((MISSING, f"the driver shows no capability {name}"))
                continue
            node = DeviceNode(path=f"{NODES}{number}", major=self._major, minor=number)
            nodes.append(node)
            problems += self._oddity(node, name)
        reason, message = problems[0] if problems else ("", "")
        return InstanceAccess(nodes=tuple(nodes), reason=reason, message=message)

    def _number(self, name: str) -> int | None:
        if name in self._minors:
            return self._minors[name]
        gpu, _, instance = name.partition("/")
        match = _MINOR.search(read_text(self._host, f"{CAPABILITIES}/{gpu}/mig/{instance}") or "")
        return int(match[1]) if match else None

    def _oddity(self, node: DeviceNode, name: str) -> list[tuple[str, str]]:
        numbers = self._host.device_number(node.path)
        if numbers is None:
            gpu, _, instance = name.partition("/")
            file = f"{CAPABILITIES}/{gpu}/mig/{instance}"
            return [(MISSING, f"{node.path} is not there: run nvidia-modprobe -c 0 -f {file}")]
        if numbers != (node.major, node.minor):
            message = f"{node.path} is {numbers[0]}:{numbers[1]}, not {node.major}:{node.minor}"
            return [(MISMATCH, message)]
        return []
