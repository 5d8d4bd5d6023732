"""Describes a chip as a device: names, sizes, resources. Pure but for sysfs."""

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


class ChipDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A chip in the driver's numbers, with everything that its description is made of."""

    card: int
    number: int  # in the card
    logic: int
    phy: int
    facts: ChipFacts
    bus_id: str | None  # None: the driver does not tell
    uuid: str
    family: str
    product: str | None = None
    vdevs: tuple[int, ...] = ()  # vNPUs that it is cut into

    @property
    def key(self) -> str:
        """As of the device."""
        return self.bus_id or self.uuid

    @property
    def has_port(self) -> bool:
        """Say whether chips of the family have network ports."""
        return self.family in models.WITH_HBM


def chip_uuid(facts: ChipFacts, card: int, phy: int) -> str:
    """Return the id of the die, else Koordinator's placeholder for a chip without one."""
    return facts.vdie or f"npu-{card}-{phy}"


def memory_mb(of_family: str, facts: ChipFacts) -> int | None:
    """Return the memory for tensors: HBM where there is some, else DDR, else by the model.

    Both are not added up: what a 910A has of DDR is not for tensors, not even while its HBM
    does not answer.
    """
    ddr_mb = None if of_family in models.WITH_HBM else facts.ddr_mb
    return facts.hbm_mb or ddr_mb or _of_model(of_family, facts).memory_mb


def cores(of_family: str, facts: ChipFacts) -> int | None:
    """Return the AI cores: what vNPUs may be cut of, else what the chip has, else by the model."""
    return facts.total_cores or facts.cores or _of_model(of_family, facts).cores


def cpus(of_family: str, facts: ChipFacts) -> int | None:
    """Return the AI CPUs; `None` if nobody knows."""
    found = facts.total_cpus
    return found if found is not None else _of_model(of_family, facts).cpus


def _of_model(of_family: str, facts: ChipFacts) -> models.ChipModel:
    key = models.model_of(of_family, facts.name)
    return models.MODELS.get(key, models.ChipModel(None, None, None))


def resources(of_family: str, facts: ChipFacts) -> Pairs:
    """Return what the scheduler grants of the chip; memory alone of a family nobody knows.

    There is no `gpu-core`: Koordinator grants NPUs by their AI cores.
    """
    memory = memory_mb(of_family, facts)
    if memory is None:
        return ()  # the scheduler divides by it
    found = [
        ("koordinator.sh/gpu-memory", format_binary(memory * MIB)),
        ("koordinator.sh/gpu-memory-ratio", "100"),
    ]
    if of_family != models.UNKNOWN:
        told = (("npu-core", cores(of_family, facts)), ("npu-cpu", cpus(of_family, facts)))
        found += [(f"huawei.com/{k}", format_decimal(v)) for k, v in told if v is not None]
        found.append(("huawei.com/npu-dvpp", "100"))
    return tuple(found)


def describe_chip(
    chip: ChipDescription, health: Health, host: HostFiles, vdevs: tuple[Vdev, ...] = ()
) -> VendorDevice:
    """Describe a chip."""
    memory = memory_mb(chip.family, chip.facts)
    model = models.model_label(chip.family, chip.facts.name, chip.product)
    granted = resources(chip.family, chip.facts)
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
        resources=granted,
        labels=_labels(model, chip.family),
        facts=(*_facts(chip), *(() if granted else (("unschedulable", "MemoryUnknown"),))),
        nodes=_node(host, f"/dev/davinci{chip.phy}"),
        partitions=tuple(describe_vnpu(chip, vdev, host) for vdev in vdevs),
    )


def _labels(model: str | None, of_family: str) -> Pairs:
    told = (("model", model), ("family", of_family))
    return tuple((LABEL + key, value) for key, value in told if value)


def _facts(chip: ChipDescription) -> Pairs:
    pod = chip.facts.super_pod
    told: Mapping[str, object] = {
        "chip-name": chip.facts.name or None,
        "family": chip.family,
        "product": chip.product,
        "card": chip.card,
        "chip": chip.number,
        "logic-id": chip.logic,
        "serial": chip.facts.serial,
        "board-id": None if chip.facts.board_id is None else f"{chip.facts.board_id:02x}",
        "super-pod": None if pod is None else pod.super_pod_id,
        "id-source": None if chip.facts.vdie == chip.uuid else "placeholder",
    }
    return tuple((key, str(value)) for key, value in told.items() if value is not None)


def _node(host: HostFiles, path: str) -> tuple[DeviceNode, ...]:
    number = host.device_number(path)
    return (DeviceNode(path=path, major=number[0], minor=number[1]),) if number else ()


def describe_vnpu(chip: ChipDescription, vdev: Vdev, host: HostFiles) -> DevicePartition:
    """Describe a vNPU of a chip."""
    return DevicePartition(
        uuid=f"{chip.uuid}-vnpu-{vdev.id}",
        profile=vdev.template,
        memory_bytes=vdev.memory_mb * MIB if vdev.memory_mb else None,
        instance=vdev.id,
        cores=vdev.cores,
        nodes=_node(host, f"/dev/vdavinci{vdev.id}"),
        with_card=False,
    )
