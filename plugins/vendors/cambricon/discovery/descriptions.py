"""Describes a card as a device: the library's answers, earlier ones where it does not answer."""

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
from plugins.vendors.cambricon.library.card import MIB, CndevCard, MluInstance
from plugins.vendors.cambricon.smlu.profiles import unit_mib

_MODELS = {20: "MLU290", 23: "MLU370", 24: "MLU365", 26: "MLU590", 30: "MLU580", 31: "MLU570"}

_NOT_IN_LABEL = re.compile(r"[^A-Za-z0-9._-]+")

MAX_LABEL = 63


def model_label(name: str | None, number: int | None) -> str | None:
    """Return the model: its name, else what its number stands for, else the number itself."""
    if name:
        return _NOT_IN_LABEL.sub("-", name)[:MAX_LABEL].strip("-_.") or None
    if number is None or number < 0:
        return None
    return _MODELS.get(number, f"MLU-{number}")


def device_id(uuid: str | None) -> str | None:
    """Return the `id` of the Device object for a UUID as the library spells it."""
    if not uuid or not re.fullmatch(r"[0-9A-Za-z-]{1,64}", uuid):
        return None
    return uuid if uuid.startswith("MLU-") else f"MLU-{uuid}"


LABEL = "xpu-agent.io/"

_MIM_HEALTH = Health(
    state=HealthState.FAILED,
    reason="MIMMode",
    message="the card is cut into instances by an administrator; they are served one by one",
)


class CardDivision(msgspec.Struct, frozen=True, kw_only=True):
    """How a card is divided: by sMLU, by MIM, or not; `None` cannot be told."""

    smlu: bool | None = None
    mim: bool | None = None
    instances: tuple[MluInstance, ...] = ()


def read_division(card: CndevCard, before: Mapping[str, str]) -> CardDivision:
    """Ask how the card is divided, and for the parts of it; `before` are the facts so far."""
    mim = _mode(card, "cndevGetMimMode", before.get("mim"))
    smlu = _mode(card, "cndevGetSMLUMode", before.get("smlu"))
    instances = card.mim_instances() if mim else card.smlu_instances() if smlu else ()
    return CardDivision(smlu=smlu, mim=mim, instances=instances)


def _mode(card: CndevCard, symbol: str, before: str | None) -> bool | None:
    """Believe what was known before while the card does not say: it is not whole for that."""
    told = card.mode(symbol)
    return told if told is not None or before is None else before == "on"


def describe_card(
    card: CndevCard, host: HostFiles, unit: int, before: VendorDevice | None = None
) -> VendorDevice:
    """Ask a card what it is; `unit` is the setting of sMLU's memory unit in MiB, 0 the usual.

    What was known `before` stands in for what the card cannot say for a moment. Its health is
    judged elsewhere.
    """
    name, number = card.name(), card.name_id()
    memory = card.memory()
    total = memory[0] if memory else before.memory_bytes if before else None
    uuid = device_id(card.uuid()) or (before.uuid if before else None)
    known = dict(before.facts) if before else {}
    cut = read_division(card, known)
    model = model_label(name, number) or (before.model if before else None)
    bus_id = card.bus_id() or (before.bus_id if before else None)
    facts = (
        ("name", name or known.get("name")),
        ("index", str(card.index)),
        ("serial", card.serial() or known.get("serial")),
        ("driver", card.driver() or known.get("driver")),
        ("smlu", _switch(cut.smlu)),
        ("smlu-unit", f"{unit_mib(unit, total // MIB)}Mi" if cut.smlu and total else None),
        ("mim", _switch(cut.mim)),
        (NUMA_NODE_FACT, _numa_node(card, host, bus_id, known.get(NUMA_NODE_FACT))),
        ("unschedulable", "MIMMode" if cut.mim else None if total else "MemoryUnknown"),
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
        health=_MIM_HEALTH if cut.mim else Health(),
        resources=card_resources(total) if total and not cut.mim else (),
        labels=((LABEL + "model", model),) if model else (),
        facts=tuple((key, value) for key, value in facts if value),
        nodes=read_node(host, f"/dev/cambricon_dev{card.index}"),
        partitions=_partitions(card, uuid, cut, host, before),
    )


def _numa_node(
    card: CndevCard, host: HostFiles, bus_id: str | None, before: str | None
) -> str | None:
    """Ask the library for the memory node only where sysfs has none."""
    known = (read_text(host, f"{DEVICES}/{bus_id}/numa_node") or "") if bus_id else ""
    if known.isdecimal():
        return None
    told = card.numa()
    return before if told is None else str(told)


def _switch(value: bool | None) -> str | None:
    return None if value is None else "on" if value else "off"


def _partitions(
    card: CndevCard,
    uuid: str | None,
    cut: CardDivision,
    host: HostFiles,
    before: VendorDevice | None,
) -> tuple[DevicePartition, ...]:
    """Describe the parts; while the card does not list them, they are those of before."""
    asked = "cndevGetAllMluInstanceInfo" if cut.mim else "cndevGetAllSMluInstanceInfo"
    if before is not None and asked in card.faults:
        return before.partitions
    return tuple(describe_instance(uuid, item, host, mim=bool(cut.mim)) for item in cut.instances)


def describe_instance(
    card: str | None, found: MluInstance, host: HostFiles, *, mim: bool
) -> DevicePartition:
    """Describe an instance of a card."""
    kind = "mim" if mim else "smlu"
    return DevicePartition(
        uuid=f"{card or 'MLU'}-{kind}-{found.uuid or found.number}",
        profile=found.name,
        memory_bytes=found.memory_bytes or None,
        instance=found.number,
        cores=found.cores,
        nodes=tuple(n for path in found.nodes for n in read_node(host, path)),
    )
