"""Allocations with a vNPU template: their AI cores, and the slice to create."""

from __future__ import annotations

from msgspec.structs import replace

from agent.snapshot.allocation import AllocatedDevice, AllocationRefused, RefusalReason
from agent.snapshot.device import DeviceKind, VendorDevice
from agent.snapshot.inventory import SliceRequest
from agent.wire_formats.quantities import parse_quantity
from plugins.vendors.ascend.vnpu.templates import A910, VnpuTemplate, templates

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
