"""Static facts of a chip: name, address, numbers, sizes. Sizes are in MB as in DCMI."""

from __future__ import annotations

import ctypes

import msgspec

from plugins.vendors.ascend.library.chip import Chip
from plugins.vendors.ascend.library.layout import (
    U32,
    number_member,
    numbers_member,
    structure_member,
    text_member,
)

VDIE = 1  # type of the die whose id identifies the chip
PRODUCT_LENGTH = 65
MAX_MEMORY_MB = 1 << 24  # 16 TiB
_CHIP, _SPOD = 12, 1
_VDEV, _TOTAL = 52, 1


class SuperPod(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a chip in its super pod."""

    sdid: int
    super_pod_id: int
    server_id: int


class ChipFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that do not change while a chip runs; `None` is unknown."""

    name: str | None = None  # empty: the chip reports other facts but no name
    full_name: str | None = None  # name, type and version, with a dash between them
    cores: int | None = None  # AI cores that the chip reports
    bus_id: str | None = None
    pci_device: int | None = None
    board_id: int | None = None
    product: str | None = None
    vdie: str | None = None
    serial: str | None = None
    hbm_mb: int | None = None
    ddr_mb: int | None = None
    total_cores: int | None = None  # AI cores available for vNPUs
    total_cpus: int | None = None  # AI CPUs available for vNPUs
    super_pod: SuperPod | None = None


def read_facts(chip: Chip) -> ChipFacts:
    """Read a chip's facts. Never raises: errors are in `chip.faults`."""
    name, full_name, cores = _chip_info(chip)
    bus_id, device = _pci(chip)
    cpus, total_cores = _total(chip)
    return ChipFacts(
        name=name,
        full_name=full_name,
        cores=cores,
        bus_id=bus_id,
        pci_device=device,
        board_id=_board(chip),
        product=_product(chip),
        vdie=_vdie(chip),
        serial=_serial(chip),
        hbm_mb=_hbm(chip),
        ddr_mb=_ddr(chip),
        total_cores=total_cores,
        total_cpus=cpus,
        super_pod=_super_pod(chip),
    )


def _chip_info(chip: Chip) -> tuple[str | None, str | None, int | None]:
    record = chip.read_structure("dcmi_get_device_chip_info_v2", "chip_info_v2")
    record = record or chip.read_structure("dcmi_get_device_chip_info", "chip_info")
    names = [text_member(record, f"chip_{m}") for m in ("name", "type", "ver")] if record else []
    if record is None or not any(names):
        return None, None, None
    cores = chip.check_bounds("aicore_cnt", number_member(record, "aicore_cnt"), 1, 64)
    return names[0], "-".join(names), cores


def _pci(chip: Chip) -> tuple[str | None, int | None]:
    record = chip.read_structure("dcmi_get_device_pcie_info_v2", "pcie_info_all")
    if record is None:
        return None, None
    limits = (("domain", 0xFFFFFFFF), ("bus", 255), ("dev", 31), ("func", 7))
    domain, bus, dev, func = (number_member(record, member) for member, _ in limits)
    domain = 0 if domain == -1 else domain
    parts = zip((domain, bus, dev, func), limits, strict=True)
    if any(chip.check_bounds(f"pcie {m}", value, 0, high) is None for value, (m, high) in parts):
        return None, None
    return f"{domain:04x}:{bus:02x}:{dev:02x}.{func:x}", number_member(record, "device") & 0xFFFF


def _board(chip: Chip) -> int | None:
    record = chip.read_structure("dcmi_get_device_board_info", "board_info")
    if record is None:
        return None
    values = [number_member(record, m) for m in ("board_id", "pcb_id", "bom_id", "slot_id")]
    return None if all(value == U32 for value in values) else values[0]


def _product(chip: Chip) -> str | None:
    buffer = ctypes.create_string_buffer(PRODUCT_LENGTH)
    if not chip.try_call("dcmi_get_product_type", None, buffer, len(buffer)):
        return None
    return buffer.raw.partition(b"\0")[0].decode("ascii", "ignore").strip() or None


def _vdie(chip: Chip) -> str | None:
    """Return the id of the die; `None` if it is unknown, all zeros or all ones."""
    record = chip.read_structure("dcmi_get_device_die_v2", "die_id", VDIE)
    parts = numbers_member(record, "soc_die") if record is not None else ()
    if set(parts) <= {0} or set(parts) == {U32}:
        return None
    return "-".join(f"{part:08X}" for part in parts)


def _serial(chip: Chip) -> str | None:
    record = chip.read_structure("dcmi_get_card_elabel_v2", "elabel")
    values = text_member(record, "serial") if record is not None else ""
    return values if values.isprintable() and values.upper() not in ("", "NA", "N/A") else None


def _hbm(chip: Chip) -> int | None:
    record = chip.read_structure("dcmi_get_device_hbm_info", "hbm_info")
    return _size(chip, "hbm", number_member(record, "memory_size")) if record is not None else None


def _ddr(chip: Chip) -> int | None:
    record = chip.read_structure("dcmi_get_device_memory_info_v3", "memory_info_v3")
    record = record or chip.read_structure("dcmi_get_memory_info", "memory_info")
    return _size(chip, "ddr", number_member(record, "memory_size")) if record is not None else None


def _size(chip: Chip, source: str, value_mb: int) -> int | None:
    return (chip.check_bounds(source, value_mb, 0, MAX_MEMORY_MB) or None) if value_mb else None


def _total(chip: Chip) -> tuple[int | None, int | None]:
    """Return AI CPUs and AI cores of the whole chip that are available for vNPUs."""
    record = chip.read_info(_VDEV, _TOTAL, "soc_total_resource")
    if record is None:
        return None, None
    computing = structure_member(record, "computing")
    cores = float(getattr(computing, "aic"))  # noqa: B009 - a member of a made structure
    cpus = number_member(computing, "device_aicpu")
    total_cores = round(cores) if 8 <= cores <= 36 else None  # the largest chips have 36
    return cpus if 1 <= cpus <= 16 else None, total_cores


def _super_pod(chip: Chip) -> SuperPod | None:
    record = chip.read_info(_CHIP, _SPOD, "spod_info")
    if record is None:
        return None
    sdid, pod, server = (number_member(record, m) for m in ("sdid", "super_pod_id", "server_id"))
    if U32 in (sdid, pod, server):
        return None
    return SuperPod(sdid=sdid, super_pod_id=pod, server_id=server)
