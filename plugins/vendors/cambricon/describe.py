"""What one card is: the library's answers as a device, with what was known where it is silent."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.host.files import HostFiles, text
from agent.model.device import DeviceKind, DevicePartition, Health, HealthState, VendorDevice
from agent.model.foreign.device_info import NODE_FACT
from agent.model.quantity import binary
from plugins.bindings.cndev.card import MIB, Card, Instance
from plugins.functions import DEVICES
from plugins.slices.smlu.rules import unit_mib
from plugins.vendors.cambricon.names import device_id, model_label
from plugins.vendors.cambricon.sight import node

LABEL = "xpu-agent.io/"
_MIM = Health(
    state=HealthState.FAILED,
    reason="MIMMode",
    message="the card is cut into instances by an administrator; they are served one by one",
)


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """How a card is divided: by sMLU, by MIM, or not; `None` cannot be told."""

    smlu: bool | None = None
    mim: bool | None = None
    instances: tuple[Instance, ...] = ()


def read_cut(card: Card, before: Mapping[str, str]) -> Cut:
    """Ask how the card is divided, and for the parts of it; `before` are the facts so far."""
    mim = _mode(card, "cndevGetMimMode", before.get("mim"))
    smlu = _mode(card, "cndevGetSMLUMode", before.get("smlu"))
    instances = card.instances() if mim else card.slices() if smlu else ()
    return Cut(smlu=smlu, mim=mim, instances=instances)


def _mode(card: Card, symbol: str, before: str | None) -> bool | None:
    """Believe what was known before while the card does not say: it is not whole for that."""
    told = card.mode(symbol)
    return told if told is not None or before is None else before == "on"


def describe(
    card: Card, host: HostFiles, unit: int, before: VendorDevice | None = None
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
    cut = read_cut(card, known)
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
        (NODE_FACT, _numa_node(card, host, bus_id, known.get(NODE_FACT))),
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
        health=_MIM if cut.mim else Health(),
        resources=_resources(total) if total and not cut.mim else (),
        labels=((LABEL + "model", model),) if model else (),
        facts=tuple((key, value) for key, value in facts if value),
        nodes=node(host, f"/dev/cambricon_dev{card.index}"),
        partitions=_partitions(card, uuid, cut, host, before),
    )


def _numa_node(card: Card, host: HostFiles, bus_id: str | None, before: str | None) -> str | None:
    """Ask the library for the memory node only where sysfs has none."""
    known = (text(host, f"{DEVICES}/{bus_id}/numa_node") or "") if bus_id else ""
    if known.isdecimal():
        return None
    told = card.numa()
    return before if told is None else str(told)


def _switch(value: bool | None) -> str | None:
    return None if value is None else "on" if value else "off"


def _resources(total_bytes: int) -> tuple[tuple[str, str], ...]:
    return (
        ("koordinator.sh/gpu-core", "100"),
        ("koordinator.sh/gpu-memory", binary(total_bytes)),
        ("koordinator.sh/gpu-memory-ratio", "100"),
    )


def _partitions(
    card: Card, uuid: str | None, cut: Cut, host: HostFiles, before: VendorDevice | None
) -> tuple[DevicePartition, ...]:
    """Describe the parts; while the card does not list them, they are those of before."""
    asked = "cndevGetAllMluInstanceInfo" if cut.mim else "cndevGetAllSMluInstanceInfo"
    if before is not None and asked in card.faults:
        return before.partitions
    return tuple(partition(uuid, item, host, mim=bool(cut.mim)) for item in cut.instances)


def partition(card: str | None, found: Instance, host: HostFiles, *, mim: bool) -> DevicePartition:
    """Describe an instance of a card."""
    kind = "mim" if mim else "smlu"
    return DevicePartition(
        uuid=f"{card or 'MLU'}-{kind}-{found.uuid or found.number}",
        profile=found.name,
        memory_bytes=found.memory_bytes or None,
        instance=found.number,
        cores=found.cores,
        nodes=tuple(n for path in found.nodes for n in node(host, path)),
    )
