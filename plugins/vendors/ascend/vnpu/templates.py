"""vNPU templates of Huawei, and what an allocation that names one asks of a chip. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from agent.errors import AgentError
from agent.snapshot.allocation import AllocatedDevice, AllocationRefused, RefusalReason
from agent.snapshot.device import DeviceKind, VendorDevice
from agent.snapshot.inventory import SliceRequest
from agent.wire_formats.quantities import parse_quantity

A910 = "910A"  # key for all chips of the first 910 generation


class VnpuRefused(AgentError):
    """A requested vNPU cannot be created; the message says why."""


class VnpuTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a vNPU; `None` for values that the maker does not publish."""

    name: str
    kind: str  # name of the size in the maker's device plug-in
    cores: int
    cpus: int | None
    dvpp: int | None  # percent of the image units
    memory_mb: int


# model: name kind cores AI-CPUs dvpp MB; a dash is not published
_TABLE: dict[str, tuple[str, ...]] = {
    "310P3": (
        "vir01 1c 1 1 12 3072",
        "vir02 2c 2 2 25 6144",
        "vir02_1c 2c.1cpu 2 1 25 6144",
        "vir04 4c 4 4 50 12288",
        "vir04_3c 4c.3cpu 4 3 50 12288",
        "vir04_3c_ndvpp 4c.3cpu.ndvpp 4 3 - 12288",
        "vir04_4c_dvpp 4c.4cpu.dvpp 4 4 100 12288",
    ),
    A910: (
        "vir02 2c 2 - - 2184",
        "vir04 4c 4 - - 4369",
        "vir08 8c 8 - - 8738",
        "vir16 16c 16 - - 17476",
    ),
    "910B2": (
        "vir03_1c_8g 3c.1cpu.8g 3 1 - 8192",
        "vir06_1c_16g 6c.1cpu.16g 6 1 - 16384",
        "vir12_3c_32g 12c.3cpu.32g 12 3 - 32768",
    ),
    "910B3": (
        "vir05_1c_16g 5c.1cpu.16g 5 1 - 16384",
        "vir10_3c_32g 10c.3cpu.32g 10 3 - 32768",
    ),
    "910B4": (
        "vir05_1c_8g 5c.1cpu.8g 5 1 - 8192",
        "vir10_3c_16g 10c.3cpu.16g 10 3 - 16384",
        "vir10_3c_16g_nm 10c.3cpu.16g.ndvpp 10 3 0 16384",
        "vir10_4c_16g_m 10c.4cpu.16g.dvpp 10 4 100 16384",
    ),
    "910C of 24": (
        "vir06_1c_16g 6c.1cpu.16g 6 1 - 16384",
        "vir12_3c_32g 12c.3cpu.32g 12 3 - 32768",
    ),
}
_SAME = {"910B4-1": "910B3", "910C of 20": "910B3"}


def templates(model: str, cores: int | None = None) -> tuple[VnpuTemplate, ...]:
    """Return the templates of a chip; `cores` distinguishes the two kinds of 910C."""
    key = f"{model} of {cores}" if model == "910C" else model
    return tuple(_rows(_SAME.get(key, key)))


def template_of(model: str, cores: int | None, name: str) -> VnpuTemplate:
    """Return a chip's template by name; raises `VnpuRefused` if there is none."""
    template = next(
        (candidate for candidate in templates(model, cores) if candidate.name == name), None
    )
    if template is None:
        raise VnpuRefused(f"a chip of model {model} has no template {name[:40]}")
    return template


def _rows(model: str) -> Iterator[VnpuTemplate]:
    for row in _TABLE.get(model, ()):
        name, kind, cores, cpus, dvpp, memory = row.split()
        yield VnpuTemplate(
            name=name,
            kind=kind,
            cores=int(cores),
            cpus=None if cpus == "-" else int(cpus),
            dvpp=None if dvpp == "-" else int(dvpp),
            memory_mb=int(memory),
        )


NPU_CORE = "huawei.com/npu-core"
_FAMILY_LABEL = "xpu-agent.io/family"  # label of a chip
_MODEL_PREFIX = "Ascend-"  # prefix of the device's model
_DUO_SUFFIX = "-300I-DUO"  # suffix of the model of a card with two chips
_SLICING_HANDLER = "ascend"  # in the name of the runtime handler that creates vNPUs itself


def slices_device(device: VendorDevice) -> bool:
    """Return whether the device is a chip."""
    return device.kind is DeviceKind.NPU


def resolve_entry(entry: AllocatedDevice, device: VendorDevice) -> AllocatedDevice:
    """Return the entry with the AI cores of its template, if these are more than its own.

    Raises `AllocationRefused` (`TemplateUnknown`) if the chip has no such template. For a model
    without published templates the entry stays as the scheduler wrote it, and the driver decides.
    """
    known_templates = _templates_of(device) if entry.template else ()
    if not known_templates:
        return entry
    template = next((one for one in known_templates if one.name == entry.template), None)
    if template is None:
        message = f"{device.key} has no template {entry.template[:40]!r}"
        raise AllocationRefused(RefusalReason.TEMPLATE_UNKNOWN, message)
    cores = max(template.cores, entry.amount(NPU_CORE) or 0)
    return replace(entry, resources=tuple({**dict(entry.resources), NPU_CORE: cores}.items()))


def slice_request(pod: str, entry: AllocatedDevice, device: VendorDevice) -> SliceRequest | None:
    """Return the vNPU that a pod's entry requests; `None` for a whole chip."""
    if not entry.template:
        return None
    return SliceRequest(pod=pod, device=device.key, template=entry.template)


def is_sliced_by_runtime(handler: str) -> bool:
    """Return whether the runtime creates vNPUs itself, so that the agent must not."""
    return _SLICING_HANDLER in handler.lower()


def _templates_of(device: VendorDevice) -> tuple[VnpuTemplate, ...]:
    is_first_910 = dict(device.labels).get(_FAMILY_LABEL) == A910
    model = (device.model or "").removeprefix(_MODEL_PREFIX).removesuffix(_DUO_SUFFIX)
    cores = parse_quantity(dict(device.resources).get(NPU_CORE, ""))
    return templates(A910 if is_first_910 else model, cores.value if cores else None)
