"""Chips and vNPUs as kubelet resources, with names as in Huawei's device plug-in. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from agent.snapshot.device import Device, DeviceKind, VendorDevice
from agent.snapshot.device_plugin import DeviceUnit
from agent.snapshot.inventory import Problem

# resource names below huawei.com/, by chip family
_RESOURCES = {
    "910A": "Ascend910",
    "910B": "Ascend910",
    "A3": "Ascend910",
    "310P": "Ascend310P",
    "310": "Ascend310",
    "A5": "npu",
}

_TEMPLATE = re.compile(r"vir(\d{2})(?:_(\d{1,2})c)?(?:_(\d{1,3})g)?(?:_(m|nm|dvpp|ndvpp))?")

_DVPP_NAMES = {"m": "dvpp", "nm": "ndvpp"}

# sockets of the vendor's own device plug-in
SOCKET_PREFIXES: tuple[str, ...] = ("Ascend", "ascend", "davinci", "npu.", "huawei")


def serves_device(device: VendorDevice) -> bool:
    """Return whether the device is a chip from Huawei."""
    return device.vendor == "huawei" and device.kind is DeviceKind.NPU


def kubelet_units(
    devices: Sequence[Device],
    settings: msgspec.Struct,  # noqa: ARG001 - no key concerns these chips
    problems: list[Problem],
) -> Iterator[tuple[str, DeviceUnit]]:
    """Yield chips, and vNPUs that a person created; not the vNPUs that the agent created for pods.

    As in Huawei's plug-in, a chip with vNPUs is not listed itself.
    """
    for device in devices:
        info = device.info
        resource = _RESOURCES.get(dict(info.facts).get("family", ""))
        if resource is None or info.vendor_minor is None or not info.managed:
            continue
        if not info.partitions and info.resources:
            identity = f"{resource}-{info.vendor_minor}"
            yield f"huawei.com/{resource}", DeviceUnit(id=identity, device=device)
        for part in info.partitions:
            kind = vnpu_resource_kind(part.profile)
            if part.owner or part.instance is None:
                continue
            if kind is None:
                text = f"{device.key}: vNPU {part.instance} is of no known template"
                problems.append(Problem(reason="BadResourceName", message=text))
                continue
            name = f"{resource}-{kind}"
            identity = f"{name}-{part.instance}-{info.vendor_minor}"
            yield f"huawei.com/{name}", DeviceUnit(id=identity, device=device, partition=part)


def vnpu_resource_kind(template: str) -> str | None:
    """Return a template's name in Huawei's plug-in: `vir05_1c_16g` is `5c.1cpu.16g`."""
    match = _TEMPLATE.fullmatch(template)
    if match is None:
        return None
    cpus, memory, coder = match[2], match[3], match[4]
    parts = [f"{int(match[1])}c", f"{cpus}cpu" if cpus else "", f"{memory}g" if memory else ""]
    parts.append(_DVPP_NAMES.get(coder, coder) if coder else "")
    return ".".join(filter(None, parts))
