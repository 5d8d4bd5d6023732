"""Describes a chip as a device: names, sizes, resources. Pure except for device nodes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.snapshot.device import (
    DeviceKind,
    DeviceNode,
    DevicePartition,
    Health,
    Pairs,
    VendorDevice,
)
from agent.snapshot.host_files import HostFiles
from agent.wire_formats.quantities import format_binary, format_decimal
from plugins.vendors.ascend.discovery import models
from plugins.vendors.ascend.discovery.sysfs import MAKER
from plugins.vendors.ascend.library.facts import ChipFacts
from plugins.vendors.ascend.library.vdev import Vdev

MIB = 1 << 20
LABEL = "xpu-agent.io/"
Place = tuple[int, int]  # card and number in the card
PLACEHOLDER = "placeholder"  # fact `id-source` of a chip without the id of its die


class ChipDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A chip with its numbers and facts, as input of its device description."""

    card: int
    number: int  # in the card
    logic: int
    phy: int
    facts: ChipFacts
    bus_id: str | None  # None: the driver does not report it
    uuid: str
    family: str
    product: str | None = None
    vdevs: tuple[int, ...] = ()  # ids of its vNPUs

    @property
    def key(self) -> str:
        """The device key."""
        return self.bus_id or self.uuid

    @property
    def has_port(self) -> bool:
        """Return whether chips of the family have network ports."""
        return self.family in models.WITH_HBM


def chip_uuid(facts: ChipFacts, card: int, phy: int) -> str:
    """Return the id of the die, else Koordinator's placeholder for a chip without one."""
    return facts.vdie or f"npu-{card}-{phy}"


def memory_mb(family: str, facts: ChipFacts) -> int | None:
    """Return the memory for tensors: HBM if there is any, else DDR, else by the model.

    The two are not added, because the DDR memory of a 910A is not for tensors. It is not used
    as a fallback either while the HBM call of such a chip fails.
    """
    ddr_mb = None if family in models.WITH_HBM else facts.ddr_mb
    return facts.hbm_mb or ddr_mb or _of_model(family, facts).memory_mb


def cores(family: str, facts: ChipFacts) -> int | None:
    """Return the AI cores: those available for vNPUs, else all of the chip, else by the model."""
    return facts.total_cores or facts.cores or _of_model(family, facts).cores


def cpus(family: str, facts: ChipFacts) -> int | None:
    """Return the AI CPUs; `None` if the number is unknown."""
    total = facts.total_cpus
    return total if total is not None else _of_model(family, facts).cpus


def _of_model(family: str, facts: ChipFacts) -> models.ChipModel:
    key = models.model_of(family, facts.name)
    return models.MODELS.get(key, models.ChipModel(None, None, None))


def resources(family: str, facts: ChipFacts) -> Pairs:
    """Return the chip's resources for the scheduler; only memory for an unknown family.

    There is no `gpu-core`: Koordinator allocates NPUs by AI cores.
    """
    memory = memory_mb(family, facts)
    if memory is None:
        return ()  # the scheduler divides by the memory
    quantities = [
        ("koordinator.sh/gpu-memory", format_binary(memory * MIB)),
        ("koordinator.sh/gpu-memory-ratio", "100"),
    ]
    if family != models.UNKNOWN:
        counts = (("npu-core", cores(family, facts)), ("npu-cpu", cpus(family, facts)))
        quantities += [(f"huawei.com/{k}", format_decimal(v)) for k, v in counts if v is not None]
        quantities.append(("huawei.com/npu-dvpp", "100"))
    return tuple(quantities)


def describe_chip(
    chip: ChipDescription, health: Health, host: HostFiles, vdevs: tuple[Vdev, ...] = ()
) -> VendorDevice:
    """Return a chip as a device."""
    memory = memory_mb(chip.family, chip.facts)
    model = models.model_label(chip.family, chip.facts.name, chip.product)
    chip_resources = resources(chip.family, chip.facts)
    return VendorDevice(
        kind=DeviceKind.NPU,
        vendor=MAKER,
        bus_id=chip.bus_id,
        uuid=chip.uuid,
        minor=chip.phy,
        vendor_minor=chip.phy,  # the number of /dev/davinci
        model=model,
        memory_bytes=memory * MIB if memory else None,
        module_id=chip.card,
        health=health,
        resources=chip_resources,
        labels=_labels(model, chip.family),
        facts=(*_facts(chip), *(() if chip_resources else (("unschedulable", "MemoryUnknown"),))),
        nodes=_node(host, f"/dev/davinci{chip.phy}"),
        partitions=tuple(describe_vnpu(chip, vdev, host) for vdev in vdevs),
    )


def _labels(model: str | None, family: str) -> Pairs:
    labels = (("model", model), ("family", family))
    return tuple((LABEL + key, value) for key, value in labels if value)


def _facts(chip: ChipDescription) -> Pairs:
    pod = chip.facts.super_pod
    facts: Mapping[str, object] = {
        "chip-name": chip.facts.name or None,
        "npu-name": chip.facts.full_name,
        "family": chip.family,
        "product": chip.product,
        "card": chip.card,
        "chip": chip.number,
        "logic-id": chip.logic,
        "serial": chip.facts.serial,
        "board-id": None if chip.facts.board_id is None else f"{chip.facts.board_id:02x}",
        "super-pod": None if pod is None else pod.super_pod_id,
        "id-source": None if chip.facts.vdie == chip.uuid else PLACEHOLDER,
    }
    return tuple((key, str(value)) for key, value in facts.items() if value is not None)


def place_of(device: VendorDevice) -> Place | None:
    """Return the place of a described chip; `None` if only sysfs had it."""
    facts = dict(device.facts)
    card, number = facts.get("card", ""), facts.get("chip", "")
    return (int(card), int(number)) if card.isdecimal() and number.isdecimal() else None


def restore_facts(device: VendorDevice) -> ChipFacts:
    """Return the facts of a described chip that its identity and its resources depend on."""
    facts = dict(device.facts)
    memory = device.memory_bytes // MIB if device.memory_bytes else None
    has_hbm = facts.get("family") in (*models.WITH_HBM, models.UNKNOWN)
    return ChipFacts(
        bus_id=device.bus_id,
        vdie=None if facts.get("id-source") == PLACEHOLDER else device.uuid,
        serial=facts.get("serial"),
        hbm_mb=memory if has_hbm else None,
        ddr_mb=None if has_hbm else memory,
    )


def _node(host: HostFiles, path: str) -> tuple[DeviceNode, ...]:
    number = host.device_number(path)
    return (DeviceNode(path=path, major=number[0], minor=number[1]),) if number else ()


def describe_vnpu(chip: ChipDescription, vdev: Vdev, host: HostFiles) -> DevicePartition:
    """Return a vNPU as a partition."""
    return DevicePartition(
        uuid=f"{chip.uuid}-vnpu-{vdev.id}",
        profile=vdev.template,
        memory_bytes=vdev.memory_mb * MIB if vdev.memory_mb else None,
        instance=vdev.id,
        cores=vdev.cores,
        nodes=_node(host, f"/dev/vdavinci{vdev.id}"),
        with_card=False,
    )
