"""Device nodes below /dev with the numbers of stat, and the drivers' own numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from agent.errors import HostFileError
from agent.host.files import HostFiles, text
from agent.means.stamps import ABSENT, Stamp, stamp
from agent.model.device import DeviceNode

MAX_NODES = 4096  # of one folder; a host has 2048 IMEX channels
MAX_DRIVERS = 1024
MAJORS = "/proc/devices"
_CHARACTER = "Character devices:"


class NodeFinder:
    """Looks nodes up. A folder in which nothing came or went is not looked at again."""

    def __init__(self, host: HostFiles, wall: Callable[[], float]) -> None:
        self._host = host
        self._wall = wall
        self._folders: dict[str, tuple[Stamp, dict[str, DeviceNode | None]]] = {}

    def find(self, patterns: Iterable[str], paths: Iterable[str]) -> tuple[DeviceNode, ...]:
        """Return the nodes that match a pattern, by path, then those of the paths that exist."""
        found: dict[str, DeviceNode] = {}
        for pattern in patterns:
            folder, _, name = pattern.rpartition("/")
            for entry in self._names(folder):
                if fnmatchcase(entry, name) and (node := self._node(folder, entry)) is not None:
                    found[node.path] = node
        for path in dict.fromkeys(paths):
            folder, _, name = path.rpartition("/")
            if path not in found and name in self._names(folder):
                node = self._node(folder, name)
                if node is not None:
                    found[path] = node
        return tuple(found.values())

    def begin(self) -> None:
        """Forget the folders in which something changed; before each round."""
        for folder in tuple(self._folders):
            if self._folders[folder][0] != stamp(self._host, folder, self._wall()):
                del self._folders[folder]

    def _names(self, folder: str) -> dict[str, DeviceNode | None]:
        known = self._folders.get(folder)
        if known is None:
            now = stamp(self._host, folder, self._wall())
            try:
                names = self._host.names(folder)[:MAX_NODES] if now != ABSENT else ()
            except HostFileError:
                names = ()
            known = self._folders[folder] = now, dict.fromkeys(names)
        return known[1]

    def _node(self, folder: str, name: str) -> DeviceNode | None:
        """Return a node of a listed folder; asked again where it could not be told."""
        known = self._names(folder)
        if known[name] is None:
            path = f"{folder}/{name}"
            numbers = self._host.device_number(path)
            if numbers is not None:
                known[name] = DeviceNode(path=path, major=numbers[0], minor=numbers[1])
        return known[name]


def read_majors(host: HostFiles) -> tuple[tuple[str, int], ...]:
    """Return the numbers of the character drivers; none if the list is not readable."""
    lines = (text(host, MAJORS) or "").partition(_CHARACTER)[2].splitlines()
    found: dict[str, int] = {}
    for line in lines[1 : MAX_DRIVERS + 1]:
        number, _, name = line.strip().partition(" ")
        if not number.isdecimal() or len(number) > 10:
            break  # a blank line ends them; block drivers follow
        found.setdefault(name, int(number))
    return tuple(found.items())
