"""Finds the narrowest part of a node that holds a number of GPUs: switch, root, NUMA node, node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import msgspec

from plugins.scheduler.devices.device_table import NodeDevice

# what `requiredTopologyScope` may demand: the depth of the part in which all devices lie. `PCIe` is
# a root, its switches are one deeper. No part is as deep as `Device`: as with Koordinator's
# scheduler, only a partition can meet that.
SCOPE_DEPTHS = {"": 0, "Node": 1, "NUMANode": 2, "PCIe": 3, "Device": 5}
_Level = Callable[[NodeDevice], int | str]
_LEVELS: tuple[_Level, ...] = (lambda device: device.numa_node, lambda device: device.pcie)


def _switch(device: NodeDevice) -> str:
    """Return the switch; a device without one is a part of its own."""
    return device.switch or f"minor {device.minor}"


DeviceScore = Callable[[NodeDevice], int]


class _Choice(msgspec.Struct, frozen=True):
    """Devices, and the score of the part in which they were found."""

    devices: tuple[NodeDevice, ...]
    depth: int
    packed: int  # parts on the way down in which a device is used
    score: int = 0


def _parts(devices: Sequence[NodeDevice], level: _Level) -> list[list[NodeDevice]]:
    ordered = sorted(devices, key=lambda device: (level(device), device.minor))
    return [list(part) for _, part in groupby(ordered, key=level)]


class TreeSearch(msgspec.Struct, frozen=True, kw_only=True):
    """One search. `scope_depth` is the required depth, 0 for none."""

    count: int
    fits: Callable[[NodeDevice], bool]
    is_used: Callable[[NodeDevice], bool]
    scope_depth: int = 0
    is_shared: bool = False
    score: DeviceScore | None = None
    uses_switches: bool = False  # Koordinator's tree ends at the PCIe roots

    def find(self, devices: Sequence[NodeDevice]) -> tuple[NodeDevice, ...]:
        """Return the devices, by minor; empty if no part can satisfy the request.

        The deepest part with enough free devices is used; among equal ones a part that is used
        already, so that idle parts stay idle.
        """
        has_switches = self.uses_switches and any(device.switch for device in devices)
        choice = self._find(devices, 1, 0, (*_LEVELS, _switch) if has_switches else _LEVELS)
        return () if choice is None else choice.devices

    def _find(
        self, devices: Sequence[NodeDevice], depth: int, packed: int, levels: tuple[_Level, ...]
    ) -> _Choice | None:
        if len(devices) < self.count:
            return None
        packed += any(map(self.is_used, devices))
        best: _Choice | None = None
        for part in _parts(devices, levels[0]) if levels else ():
            choice = self._find(part, depth + 1, packed, levels[1:])
            if choice is not None and (best is None or self._rank(choice) > self._rank(best)):
                best = choice
        return best or self._take(devices, depth, packed)

    def _rank(self, choice: _Choice) -> tuple[int, int, int]:
        return choice.depth, choice.packed, choice.score if self.is_shared else 0

    def _take(self, devices: Sequence[NodeDevice], depth: int, packed: int) -> _Choice | None:
        """Take devices of this part itself, unless a narrower one is demanded."""
        if self.scope_depth > depth:
            return None
        fitting = sorted(filter(self.fits, devices), key=lambda device: device.minor)
        if len(fitting) < self.count:
            return None
        if not self.is_shared or self.score is None:
            return _Choice(tuple(fitting[: self.count]), depth, packed)
        best = max(fitting, key=self.score)
        return _Choice((best,), depth, packed, self.score(best))
