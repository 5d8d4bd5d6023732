"""Lists, creates and destroys vNPUs of a chip. Only the worker may change hardware."""

from __future__ import annotations

import ctypes

import msgspec

from plugins.vendors.ascend.library.chip import Chip
from plugins.vendors.ascend.library.codes import BadDriverAnswer
from plugins.vendors.ascend.library.layout import (
    U32,
    number_member,
    numbers_member,
    structure,
    structure_member,
    text_member,
)

FIRST_ID, LAST_ID = 100, 1123
MAX_VDEVS = 32
CHOOSE = U32  # let the driver choose the id
_VDEV, _QUERY, _TOTAL = 52, 0, 1


class Vdev(msgspec.Struct, frozen=True, kw_only=True):
    """One vNPU as the chip reports it."""

    id: int
    template: str
    cores: int | None
    cpus: int | None
    memory_mb: int | None
    group: int | None = None


class BadVdevId(BadDriverAnswer):
    """The driver created a vNPU and returned an invalid id."""

    def __init__(self, call: str, number: int) -> None:
        super().__init__(call, f"vNPU {number}")
        self.number = number


def vdev_ids(chip: Chip) -> tuple[int, ...] | None:
    """Return the ids of the chip's vNPUs, ascending; `None` if they are unknown."""
    record = chip.read_info(_VDEV, _TOTAL, "soc_total_resource")
    if record is None:
        return None
    count = chip.check_bounds("vdev_num", number_member(record, "vdev_num"), 0, MAX_VDEVS)
    if count is None:
        return None
    ids = numbers_member(record, "vdev_id")[:count]
    return tuple(sorted({number for number in ids if FIRST_ID <= number <= LAST_ID}))


def query_vdev(chip: Chip, vdev: int) -> Vdev | None:
    """Return one vNPU; `None` if the chip does not report it."""
    record = structure("vdev_query")(vdev_id=vdev)
    if not chip.fill_info(
        _VDEV, _QUERY, record, lasting=False
    ):  # the error may concern this vNPU only
        return None
    info = structure_member(record, "info")
    computing = structure_member(info, "computing")
    cores = float(getattr(computing, "aic"))  # noqa: B009 - a member of a made structure
    group = number_member(info, "vfg_id")
    return Vdev(
        id=vdev,
        template=text_member(info, "name"),
        cores=round(cores) if 0 < cores <= 64 else None,
        cpus=chip.check_bounds("vdev aicpu", number_member(computing, "device_aicpu"), 0, 64)
        or None,
        memory_mb=number_member(computing, "memory_size") or None,
        group=group if group < MAX_VDEVS else None,
    )


def create_vdev(chip: Chip, template: str) -> int:
    """Create a vNPU on a chip and return its id; raises the call's errors.

    Raises `BadVdevId` for an invalid id, with which the vNPU could not be found again.
    """
    request = structure("create_vdev_res")(
        vdev_id=CHOOSE, vfg_id=CHOOSE, template=template.encode("ascii")
    )
    output = structure("create_vdev_out")()
    symbol = "dcmi_create_vdevice"
    chip.dcmi.call(symbol, chip.card, chip.number, ctypes.byref(request), ctypes.byref(output))
    number = number_member(output, "vdev_id")
    if not FIRST_ID <= number <= LAST_ID:
        raise BadVdevId(symbol, number)
    return number


def destroy_vdev(chip: Chip, vdev: int) -> None:
    """Destroy a vNPU; raises the call's errors."""
    number = ctypes.c_uint32(vdev)
    chip.dcmi.call("dcmi_set_destroy_vdevice", chip.card, chip.number, number)
