"""Cards and MIG instances as kubelet resources, as in NVIDIA's device plug-in. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from agent.snapshot.device import Device, DeviceKind, DevicePartition, VendorDevice
from agent.snapshot.device_plugin import DeviceUnit
from agent.snapshot.inventory import Problem
from plugins.vendors.nvidia.mig.profile_names import mig_resource_name

WHOLE = "nvidia.com/gpu"
NOT_UNIFORM = "MIGNotUniform"

# sockets of device plug-ins: NVIDIA's, Google's, and NVIDIA's oldest one
SOCKET_PREFIXES: tuple[str, ...] = (
    "nvidia-",
    "nvidiaGPU-",
    "nvidia.sock",
)


class NvidiaKubeletSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of `device_plugin` that concern only NVIDIA's cards."""

    mig: str = "none"


class MigOffer(msgspec.Struct, frozen=True, kw_only=True):
    """Kubelet resources with the UUIDs of their devices; both are sorted."""

    resources: tuple[tuple[str, tuple[str, ...]], ...] = ()
    problems: tuple[Problem, ...] = ()


def serves_device(device: VendorDevice) -> bool:
    """Return whether the device is an NVIDIA card."""
    return device.vendor == "nvidia" and device.kind is DeviceKind.GPU


def kubelet_units(
    devices: Sequence[Device], settings: msgspec.Struct, problems: list[Problem]
) -> Iterator[tuple[str, DeviceUnit]]:
    """Yield (resource, card or MIG instance) according to the MIG strategy."""
    strategy = msgspec.convert(settings, NvidiaKubeletSettings, from_attributes=True).mig
    offer = kubelet_offer([device.info for device in devices], strategy)
    problems += offer.problems
    units: dict[str, DeviceUnit] = {}
    for device in devices:
        for part in device.info.partitions:
            units[part.uuid] = DeviceUnit(id=part.uuid, device=device, partition=part)
        if device.info.uuid:
            units[device.info.uuid] = DeviceUnit(id=device.info.uuid, device=device)
    for name, ids in offer.resources:
        yield from ((name, units[one]) for one in ids)


def has_mig_enabled(card: VendorDevice) -> bool:
    """Return whether MIG is on, with or without instances."""
    return dict(card.labels).get("xpu-agent.io/mig") == "true"


def kubelet_offer(cards: Sequence[VendorDevice], strategy: str) -> MigOffer:
    """Return the resources for the strategy `none`, `single` or `mixed`, with unhealthy devices.

    With `none`, cards with MIG on are left out. With `single`, each instance counts as a card, if
    all instances are equal and MIG is on everywhere. With `mixed`, each profile is a resource.
    """
    cards = [card for card in cards if card.managed and card.uuid]
    if strategy == "single":
        return _single(cards)
    units = [
        (WHOLE, card.uuid or "") for card in cards if not has_mig_enabled(card) and card.resources
    ]
    problems: list[Problem] = []
    for part in _instances(cards) if strategy == "mixed" else ():
        name = mig_resource_name(part.profile)
        if name is not None:
            units.append((name, part.uuid))
        else:
            message = f"{part.uuid}: profile {part.profile[:63]!r} makes no resource name"
            problems.append(Problem(reason="BadResourceName", message=message))
    return MigOffer(resources=_sorted(units), problems=tuple(problems))


def _instances(cards: Iterable[VendorDevice]) -> list[DevicePartition]:
    return [part for card in cards for part in card.partitions]


def _single(cards: Sequence[VendorDevice]) -> MigOffer:
    parts = _instances(cards)
    for card in cards:
        difference = _difference(card, parts[0] if parts else None)
        if difference:
            problem = Problem(
                reason=NOT_UNIFORM, message=f"{card.key}: {difference}; nothing is offered"
            )
            return MigOffer(problems=(problem,))
    return MigOffer(resources=_sorted([(WHOLE, part.uuid) for part in parts]))


def _difference(card: VendorDevice, first: DevicePartition | None) -> str:
    if not has_mig_enabled(card):
        return "the card is not cut by MIG"
    if not card.partitions or first is None:
        return "the card has no instance"
    for part in card.partitions:
        if _attributes(part) != _attributes(first):
            return f"an instance is {part.profile}, another {first.profile}"
    return ""


def _attributes(part: DevicePartition) -> tuple[str, int | None, int | None]:
    return part.profile, part.memory_bytes, part.cores


def _sorted(units: Iterable[tuple[str, str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    table: dict[str, set[str]] = {}
    for name, uuid in units:
        table.setdefault(name, set()).add(uuid)
    return tuple((name, tuple(sorted(ids))) for name, ids in sorted(table.items()))
