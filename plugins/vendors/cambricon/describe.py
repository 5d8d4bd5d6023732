"""What one card is: the library's answers as a device, with what was known where it is silent."""

from __future__ import annotations

import msgspec

from agent.host.files import HostFiles
from agent.model.device import DeviceKind, DevicePartition, Health, HealthState, VendorDevice
from agent.model.quantity import binary
from plugins.bindings.cndev.card import MIB, Card, Instance
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


def read_cut(card: Card) -> Cut:
    """Ask how the card is divided, and for the parts of it."""
    mim = card.mode("cndevGetMimMode")
    smlu = card.mode("cndevGetSMLUMode")
    instances = card.instances() if mim else card.slices() if smlu else ()
    return Cut(smlu=smlu, mim=mim, instances=instances)


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
    cut = read_cut(card)
    model = model_label(name, number) or (before.model if before else None)
    facts = (
        ("name", name),
        ("index", str(card.index)),
        ("serial", card.serial()),
        ("driver", card.driver()),
        ("smlu", _switch(cut.smlu)),
        ("smlu-unit", f"{unit_mib(unit, total // MIB)}Mi" if cut.smlu and total else None),
        ("mim", _switch(cut.mim)),
        ("unschedulable", "MIMMode" if cut.mim else None if total else "MemoryUnknown"),
    )
    return VendorDevice(
        kind=DeviceKind.MLU,
        vendor="cambricon",
        bus_id=card.bus_id() or (before.bus_id if before else None),
        uuid=uuid,
        minor=card.index,  # the number of /dev/cambricon_dev
        model=model,
        memory_bytes=total,
        health=_MIM if cut.mim else Health(),
        resources=_resources(total) if total and not cut.mim else (),
        labels=((LABEL + "model", model),) if model else (),
        facts=tuple((key, value) for key, value in facts if value),
        nodes=node(host, f"/dev/cambricon_dev{card.index}"),
        partitions=tuple(_partition(uuid, item, host, mim=bool(cut.mim)) for item in cut.instances),
    )


def _switch(value: bool | None) -> str | None:
    return None if value is None else "on" if value else "off"


def _resources(total_bytes: int) -> tuple[tuple[str, str], ...]:
    return (
        ("koordinator.sh/gpu-core", "100"),
        ("koordinator.sh/gpu-memory", binary(total_bytes)),
        ("koordinator.sh/gpu-memory-ratio", "100"),
    )


def _partition(card: str | None, found: Instance, host: HostFiles, *, mim: bool) -> DevicePartition:
    kind = "mim" if mim else "smlu"
    return DevicePartition(
        uuid=f"{card or 'MLU'}-{kind}-{found.uuid or found.number}",
        profile=found.name,
        memory_bytes=found.memory_bytes or None,
        instance=found.number,
        cores=found.cores,
        nodes=tuple(n for path in found.nodes for n in node(host, path)),
    )
