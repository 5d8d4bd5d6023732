"""Which resource each vendor's devices are, under the names and ids of the vendor's own plug-in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from agent.config.containers import DevicePluginSettings
from agent.deviceplugin.units import MIM, Unit
from agent.model.device import Device, DeviceKind, DevicePartition
from agent.model.inventory import Problem
from plugins.slices.mig.names import resource_name
from plugins.slices.mig.strategy import kubelet_offer

MLU = "cambricon.com/mlu"
INVENTED = "fake"  # of demonstrations: no container can be given it
_ASCEND = {"910A": "Ascend910", "910B": "Ascend910", "A3": "Ascend910", "310P": "Ascend310P"}
_NPU = {**_ASCEND, "310": "Ascend310", "A5": "npu"}  # by family, below huawei.com/
_TEMPLATE = re.compile(r"vir(\d{2})(?:_(\d{1,2})c)?(?:_(\d{1,3})g)?(?:_(m|nm|dvpp|ndvpp))?")
_DVPP = {"m": "dvpp", "nm": "ndvpp"}

Found = Iterator[tuple[str, Unit]]  # name of the resource, and one of its devices
Problems = list[Problem]
Rule = Callable[[Sequence[Device], DevicePluginSettings, Problems], Found]


def of_vendor(vendor: str, devices: Iterable[Device]) -> tuple[Device, ...]:
    """Return the devices that are served for a name of `device_plugin.vendors`."""
    return tuple(device for device in devices if vendor_of(device) == vendor)


def vendor_of(device: Device) -> str:
    """Return the name in `device_plugin.vendors`; empty for hardware that is not served."""
    info = device.info
    if info.kind is DeviceKind.RDMA:
        return "" if info.vendor == INVENTED else "rdma"
    return {
        ("nvidia", DeviceKind.GPU): "nvidia",
        ("huawei", DeviceKind.NPU): "ascend",
        ("cambricon", DeviceKind.MLU): "cambricon",
    }.get((info.vendor, info.kind), "")


def _nvidia(
    devices: Sequence[Device], device_plugin: DevicePluginSettings, problems: Problems
) -> Found:
    """Yield cards by UUID and MIG instances by theirs, by the strategy."""
    offer = kubelet_offer([device.info for device in devices], device_plugin.mig)
    problems += offer.problems
    units: dict[str, Unit] = {}
    for device in devices:
        for part in device.info.partitions:
            units[part.uuid] = Unit(id=part.uuid, device=device, partition=part)
        if device.info.uuid:
            units[device.info.uuid] = Unit(id=device.info.uuid, device=device)
    for name, ids in offer.resources:
        yield from ((name, units[one]) for one in ids)


def _ascend(
    devices: Sequence[Device], _device_plugin: DevicePluginSettings, problems: Problems
) -> Found:
    """Yield chips, or the vNPUs of chips that were cut by hand; those cut for grants are nothing.

    Huawei's own plug-in lists a chip that is cut by its parts alone.
    """
    for device in devices:
        info = device.info
        word = _NPU.get(dict(info.facts).get("family", ""))
        if word is None or info.vendor_minor is None or not info.managed:
            continue
        if not info.partitions and info.resources:
            yield f"huawei.com/{word}", Unit(id=f"{word}-{info.vendor_minor}", device=device)
        for part in info.partitions:
            kind = vnpu_kind(part.profile)
            if part.owner or part.instance is None:
                continue
            if kind is None:
                text = f"{device.key}: vNPU {part.instance} is of no known template"
                problems.append(Problem(reason="BadResourceName", message=text))
                continue
            name = f"{word}-{kind}"
            identity = f"{name}-{part.instance}-{info.vendor_minor}"
            yield f"huawei.com/{name}", Unit(id=identity, device=device, partition=part)


def vnpu_kind(template: str) -> str | None:
    """Return what Huawei's plug-in calls vNPUs of a template: `vir05_1c_16g` is `5c.1cpu.16g`."""
    found = _TEMPLATE.fullmatch(template)
    if found is None:
        return None
    cpus, memory, coder = found[2], found[3], found[4]
    parts = [f"{int(found[1])}c", f"{cpus}cpu" if cpus else "", f"{memory}g" if memory else ""]
    parts.append(_DVPP.get(coder, coder) if coder else "")
    return ".".join(filter(None, parts))


def _cambricon(
    devices: Sequence[Device], _device_plugin: DevicePluginSettings, problems: Problems
) -> Found:
    """Yield whole cards, and instances of cards in MIM mode."""
    for device in devices:
        info = device.info
        if not info.uuid or not info.managed:
            continue
        if info.health.reason == MIM:
            for part in info.partitions:
                name = _mim_name(device, part, problems)
                if name:
                    yield name, Unit(id=part.uuid, device=device, partition=part)
        elif info.resources and not info.partitions:
            yield MLU, Unit(id=info.uuid, device=device)


def _mim_name(device: Device, part: DevicePartition, problems: Problems) -> str | None:
    name = resource_name(part.profile.replace("+", "-"), f"{MLU}.mim-")
    if name is None:
        text = f"{device.key}: profile {part.profile[:63]!r} makes no resource name"
        problems.append(Problem(reason="BadResourceName", message=text))
    return name


def _rdma(
    devices: Sequence[Device], device_plugin: DevicePluginSettings, _problems: Problems
) -> Found:
    """Yield NICs by address; of one with virtual functions those and not the NIC itself."""
    for device in devices:
        info = device.info
        address = info.bus_id or info.uuid
        if not address or not info.managed or not info.resources:
            continue
        functions = [vf.bus_id for group in info.vf_groups for vf in group.vfs]
        if not functions:
            yield device_plugin.rdma_resource, Unit(id=address, device=device)
        for function in functions:
            yield device_plugin.rdma_resource, Unit(id=function, device=device, function=function)


RULES: Mapping[str, Rule] = {
    "nvidia": _nvidia,
    "ascend": _ascend,
    "cambricon": _cambricon,
    "rdma": _rdma,
}
