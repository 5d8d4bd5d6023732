"""Describes a card as a device, from the library's answers, else from earlier ones."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from agent.host.files import read_text
from agent.snapshot.device import DeviceKind, DevicePartition, Health, HealthState, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.wire_formats.device_info import NUMA_NODE_FACT
from plugins.shared.pci_functions import DEVICES
from plugins.shared.resources import card_resources
from plugins.vendors.cambricon.discovery.sysfs import read_node
from plugins.vendors.cambricon.kubelet import MIM_MODE_REASON
from plugins.vendors.cambricon.library.card import MIB, CndevCard, MluInstance
from plugins.vendors.cambricon.smlu.profiles import unit_mib

_MODELS = {20: "MLU290", 23: "MLU370", 24: "MLU365", 26: "MLU590", 30: "MLU580", 31: "MLU570"}
_NOT_IN_LABEL = re.compile(r"[^A-Za-z0-9._-]+")
MAX_LABEL = 63


def model_label(name: str | None, number: int | None) -> str | None:
    """Return the model by its name, else by its number."""
    if name:
        return _NOT_IN_LABEL.sub("-", name)[:MAX_LABEL].strip("-_.") or None
    if number is None or number < 0:
        return None
    return _MODELS.get(number, f"MLU-{number}")


def device_id(uuid: str | None) -> str | None:
    """Return the `id` in the Device object for a UUID of the library."""
    if not uuid or not re.fullmatch(r"[0-9A-Za-z-]{1,64}", uuid):
        return None
    return uuid if uuid.startswith("MLU-") else f"MLU-{uuid}"


LABEL = "xpu-agent.io/"

_MIM_HEALTH = Health(
    state=HealthState.FAILED,
    reason=MIM_MODE_REASON,
    message="the card is cut into instances by an administrator; they are served one by one",
)


class CardDivision(msgspec.Struct, frozen=True, kw_only=True):
    """How a card is divided: by sMLU, by MIM, or not; `None` is unknown."""

    smlu: bool | None = None
    mim: bool | None = None
    instances: tuple[MluInstance, ...] = ()


def read_division(card: CndevCard, before: Mapping[str, str]) -> CardDivision:
    """Read how a card is divided, and its instances; `before` has the last facts."""
    mim = _mode(card, "cndevGetMimMode", before.get("mim"))
    smlu = _mode(card, "cndevGetSMLUMode", before.get("smlu"))
    instances = card.mim_instances() if mim else card.smlu_instances() if smlu else ()
    return CardDivision(smlu=smlu, mim=mim, instances=instances)


def _mode(card: CndevCard, symbol: str, before: str | None) -> bool | None:
    """Return the mode; if it cannot be read now, that of the last description."""
    is_on = card.mode(symbol)
    return is_on if is_on is not None or before is None else before == "on"


def describe_card(
    card: CndevCard, host: HostFiles, unit: int, before: VendorDevice | None = None
) -> VendorDevice:
    """Describe a card; `unit` is the setting of sMLU's memory unit in MiB, 0 for the default.

    Values of `before` replace those that cannot be read now. The health is that of the mode
    only; `health.py` checks the card.
    """
    name, number = card.name(), card.name_id()
    memory = card.memory()
    total = memory[0] if memory else before.memory_bytes if before else None
    uuid = device_id(card.uuid()) or (before.uuid if before else None)
    facts_before = dict(before.facts) if before else {}
    division = read_division(card, facts_before)
    model = model_label(name, number) or (before.model if before else None)
    bus_id = card.bus_id() or (before.bus_id if before else None)
    facts = (
        ("name", name or facts_before.get("name")),
        ("index", str(card.index)),
        ("serial", card.serial() or facts_before.get("serial")),
        ("driver", card.driver() or facts_before.get("driver")),
        ("mcu", card.mcu() or facts_before.get("mcu")),
        ("series", model.partition("-")[0].lower() if model else None),
        ("cndev-uuid", uuid.removeprefix("MLU-") if uuid else None),
        ("smlu", _switch(division.smlu)),
        ("smlu-unit", f"{unit_mib(unit, total // MIB)}Mi" if division.smlu and total else None),
        ("mim", _switch(division.mim)),
        (NUMA_NODE_FACT, _numa_node(card, host, bus_id, facts_before.get(NUMA_NODE_FACT))),
        ("unschedulable", MIM_MODE_REASON if division.mim else None if total else "MemoryUnknown"),
    )
    return VendorDevice(
        kind=DeviceKind.MLU,
        vendor="cambricon",
        bus_id=bus_id,
        uuid=uuid,
        minor=card.index,
        vendor_minor=card.index,  # the number of /dev/cambricon_dev
        model=model,
        memory_bytes=total,
        health=_MIM_HEALTH if division.mim else Health(),
        resources=card_resources(total) if total and not division.mim else (),
        labels=((LABEL + "model", model),) if model else (),
        facts=tuple((key, value) for key, value in facts if value),
        nodes=read_node(host, f"/dev/cambricon_dev{card.index}"),
        partitions=_partitions(card, uuid, division, host, before),
    )


def _numa_node(
    card: CndevCard, host: HostFiles, bus_id: str | None, before: str | None
) -> str | None:
    """Return the library's NUMA node, only if sysfs has none."""
    sysfs_node = (read_text(host, f"{DEVICES}/{bus_id}/numa_node") or "") if bus_id else ""
    if sysfs_node.isdecimal():
        return None
    node = card.numa()
    return before if node is None else str(node)


def _switch(value: bool | None) -> str | None:
    return None if value is None else "on" if value else "off"


def _partitions(
    card: CndevCard,
    uuid: str | None,
    division: CardDivision,
    host: HostFiles,
    before: VendorDevice | None,
) -> tuple[DevicePartition, ...]:
    """Return the instances; those of `before` if the card's list cannot be read now."""
    symbol = "cndevGetAllMluInstanceInfo" if division.mim else "cndevGetAllSMluInstanceInfo"
    if before is not None and symbol in card.faults:
        return before.partitions
    return tuple(
        describe_instance(uuid, item, host, mim=bool(division.mim)) for item in division.instances
    )


def describe_instance(
    card: str | None, instance: MluInstance, host: HostFiles, *, mim: bool
) -> DevicePartition:
    """Return an instance as a partition."""
    kind = "mim" if mim else "smlu"
    return DevicePartition(
        uuid=f"{card or 'MLU'}-{kind}-{instance.uuid or instance.number}",
        profile=instance.name,
        memory_bytes=instance.memory_bytes or None,
        instance=instance.number,
        cores=instance.cores,
        nodes=tuple(n for path in instance.nodes for n in read_node(host, path)),
    )
