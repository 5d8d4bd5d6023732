"""A session that reads accelerators without a plug-in from sysfs, inside the agent."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from agent.errors import HostFileError, NotSupported
from agent.snapshot.device import DeviceNode, Health, HealthState, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory, Problem
from agent.snapshot.vendor import LIVE_CONTEXT, SessionContext
from plugins.shared.pci_functions import DEVICES
from plugins.shared.resources import card_resources
from plugins.vendors.accelerators.settings import (
    DEV_NUMBER,
    AcceleratorsSettings,
    CardRule,
    rule_for,
)
from plugins.vendors.accelerators.sysfs import (
    VFIO,
    AcceleratorFunction,
    describe_unmanaged,
    find_accelerators,
)

MIB = 1 << 20

MAX_BELOW = 64  # entries of a function's folder, and of each folder in it, that are looked at


def describe_accelerators(
    host: HostFiles,
    functions: Iterable[AcceleratorFunction],
    cards: tuple[CardRule, ...],
    *,
    replay: bool,
) -> tuple[tuple[VendorDevice, ...], tuple[Problem, ...]]:
    """Return devices in the order of their addresses, and problems of the settings."""
    devices: list[VendorDevice] = []
    problems: list[Problem] = []
    card_counts: Counter[int] = Counter()  # by maker: a driver numbers all cards that are its own
    for function in functions:
        card = rule_for(cards, function.vendor_id, function.device_id)
        unmanaged = describe_unmanaged(function, card.model if card else None)
        if card is None or function.driver == VFIO:
            devices.append(unmanaged)
            continue
        if card.memory_mib is None:
            message = f"{function.bus_id}: memory_mib is not set: listed, not published"
            problems.append(Problem(reason="MemoryUnknown", message=message))
            devices.append(unmanaged)
            continue
        index = card_counts[function.vendor_id]
        card_counts[function.vendor_id] += 1
        minor = _number(host, function, card) if card.minor == DEV_NUMBER else index
        devices.append(_describe_managed(host, unmanaged, card, minor, replay=replay))
    return tuple(devices), tuple(problems)


def _describe_managed(
    host: HostFiles, unmanaged: VendorDevice, card: CardRule, minor: int | None, *, replay: bool
) -> VendorDevice:
    node, fault = _node(host, card, minor, replay=replay)
    memory_bytes = (card.memory_mib or 0) * MIB
    return replace(
        unmanaged,
        managed=True,
        minor=minor,
        memory_bytes=memory_bytes,
        resources=card_resources(memory_bytes, card.core),
        nodes=(node,) if node else (),
        health=fault or Health(),
    )


def _number(host: HostFiles, function: AcceleratorFunction, card: CardRule) -> int | None:
    """Return the number of the node that the kernel created for a function; `None` without a node.

    sysfs shows a driver's devices below the function: `<function>/<class>/xpu3`.
    """
    stem = card.node_stem
    pattern = re.compile(re.escape(stem or "") + r"(0|[1-9][0-9]{0,4})")
    folder = f"{DEVICES}/{function.bus_id}"
    for class_name in _names(host, folder):
        for entry in _names(host, f"{folder}/{class_name}"):
            if number := pattern.fullmatch(entry):
                return int(number[1])
    return None


def _names(host: HostFiles, path: str) -> tuple[str, ...]:
    try:
        return host.names(path)[:MAX_BELOW]
    except HostFileError:
        return ()


def _node(
    host: HostFiles, card: CardRule, minor: int | None, *, replay: bool
) -> tuple[DeviceNode | None, Health | None]:
    if card.node is None or minor is None:
        return None, None
    path = card.node.replace("{n}", str(minor))
    number = host.device_number(path)
    if number is not None:
        return DeviceNode(path=path, major=number[0], minor=number[1]), None
    if replay:  # a recording need not have the nodes of makers that we know nothing of
        return None, None
    fault = Health(
        state=HealthState.FAILED, reason="DeviceNodeMissing", message=f"{path} is missing"
    )
    return None, fault


class AcceleratorsSession:
    """Reads sysfs at each discovery, and has neither samples nor events."""

    def __init__(
        self,
        host: HostFiles,
        settings: AcceleratorsSettings,
        context: SessionContext = LIVE_CONTEXT,
    ) -> None:
        self._host = host
        self._cards = settings.rules()
        self._is_replay = context.is_replay

    def discover(self) -> Inventory:
        """Return the accelerators on the bus now."""
        devices, problems = describe_accelerators(
            self._host, find_accelerators(self._host), self._cards, replay=self._is_replay
        )
        return Inventory(vendor="accelerators", devices=devices, problems=problems)

    def sample(self) -> tuple[DeviceSample, ...]:
        """Raise `NotSupported`: there is no library."""
        raise NotSupported("no library tells what these devices do")

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Raise `NotSupported`: the agent itself listens to changes of the bus."""
        raise NotSupported(f"no events, not even within {wait_s:g} s")

    def close(self) -> None:
        """Do nothing: nothing is open."""
