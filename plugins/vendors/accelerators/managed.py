"""Accelerators that settings describe, beside those of which only the identity is known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from agent.errors import HostFileError
from agent.host.files import HostFiles
from agent.model.device import DeviceNode, Health, HealthState, VendorDevice
from agent.model.inventory import Problem
from agent.model.quantity import binary
from plugins.functions import DEVICES
from plugins.vendors.accelerators.described import DEV_NUMBER, Card, card_of
from plugins.vendors.accelerators.sight import VFIO, Sighting, unmanaged

MIB = 1 << 20
MAX_BELOW = 64  # entries of a function's folder, and of each folder in it, that are looked at


def devices(
    host: HostFiles, seen: Iterable[Sighting], cards: tuple[Card, ...], *, replay: bool
) -> tuple[tuple[VendorDevice, ...], tuple[Problem, ...]]:
    """Describe all functions in the order of their addresses, and what is odd about settings."""
    found: list[VendorDevice] = []
    problems: list[Problem] = []
    places: Counter[int] = Counter()  # by maker: a driver numbers all cards that are its own
    for function in seen:
        card = card_of(cards, function.vendor_id, function.device_id)
        plain = unmanaged(function, card.model if card else None)
        if card is None or function.driver == VFIO:
            found.append(plain)
            continue
        if card.memory_mib is None:
            message = f"{function.bus_id}: memory_mib is not set: listed, not published"
            problems.append(Problem(reason="MemoryUnknown", message=message))
            found.append(plain)
            continue
        place = places[function.vendor_id]
        places[function.vendor_id] += 1
        minor = _number(host, function, card) if card.minor == DEV_NUMBER else place
        found.append(_managed(host, plain, card, minor, replay=replay))
    return tuple(found), tuple(problems)


def _managed(
    host: HostFiles, plain: VendorDevice, card: Card, minor: int | None, *, replay: bool
) -> VendorDevice:
    node, fault = _node(host, card, minor, replay=replay)
    memory_bytes = (card.memory_mib or 0) * MIB
    return replace(
        plain,
        managed=True,
        minor=minor,
        memory_bytes=memory_bytes,
        resources=(
            ("koordinator.sh/gpu-core", str(card.core)),
            ("koordinator.sh/gpu-memory", binary(memory_bytes)),
            ("koordinator.sh/gpu-memory-ratio", "100"),
        ),
        nodes=(node,) if node else (),
        health=fault or Health(),
    )


def _number(host: HostFiles, function: Sighting, card: Card) -> int | None:
    """Return the number of the node that the kernel made for a function; `None` if it made none.

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
    host: HostFiles, card: Card, minor: int | None, *, replay: bool
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
