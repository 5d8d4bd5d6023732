"""Each GPU with each NIC: can they exchange data without the host's memory, and if not, why."""

from __future__ import annotations

from collections.abc import Iterable

from agent.gpudirect.checks import (
    BLIND,
    NO,
    OK,
    SLOW,
    UNKNOWN,
    acs_checks,
    distance_check,
    iommu_checks,
    memory_check,
    width_checks,
)
from agent.gpudirect.means import DirectMeans
from agent.model.device import Device, DeviceKind
from agent.model.snapshot import DeviceView, DirectCheck, DirectPair
from agent.topology.distance import Seat, pci_level, seat_of
from agent.topology.pci import PciFunction, PciTree

NVIDIA = "nvidia"
C2C = "C2C"
MAX_PAIRS = 1024


def candidates(devices: Iterable[Device]) -> tuple[tuple[Device, ...], tuple[Device, ...]]:
    """Return the GPUs and the NICs that a pair can be made of: ours, and on PCI."""
    ours = [device for device in devices if device.info.managed and device.info.bus_id]
    gpus = (d for d in ours if d.info.kind is DeviceKind.GPU and d.info.vendor == NVIDIA)
    return tuple(gpus), tuple(d for d in ours if d.info.kind is DeviceKind.RDMA)


def judge(view: DeviceView, tree: PciTree, means: DirectMeans) -> tuple[DirectPair, ...]:
    """Judge every pair, at most `MAX_PAIRS`, in the order of devices."""
    gpus, nics = candidates(view.devices)
    coherent = {end for link in view.links if link.type == C2C for end in (link.a, link.b)}
    seats = {device.key: _seat(device, tree) for device in (*gpus, *nics)}
    memory = memory_check(means)
    found = []
    for gpu, nic in [(gpu, nic) for gpu in gpus for nic in nics][:MAX_PAIRS]:
        level = pci_level(seats[gpu.key], seats[nic.key], tree.switch_links, by_chip=True)
        distance = distance_check(level, coherent=gpu.info.bus_id in coherent)
        a, b = _function(gpu, tree), _function(nic, tree)
        checks = (
            *(check for check in (memory, distance) if check is not None),
            *acs_checks(tree, a, b),
            *iommu_checks(tree, a, b),
            *width_checks(gpu, nic),
        )
        found.append(
            DirectPair(
                gpu=gpu.key, nic=nic.key, level=level, verdict=verdict_of(checks), checks=checks
            )
        )
    return tuple(found)


def verdict_of(checks: Iterable[DirectCheck]) -> str:
    """Return the worst verdict: what cannot work, then what is slow, then what nobody can tell.

    Where nobody can tell whether GPU memory can be reached at all, or what a hypervisor hides,
    being slow says nothing.
    """
    checks = tuple(checks)
    verdicts = {check.verdict for check in checks}
    if NO in verdicts:
        return NO
    if any(check.name in BLIND for check in checks):
        return UNKNOWN
    return next((verdict for verdict in (SLOW, UNKNOWN) if verdict in verdicts), OK)


def _function(device: Device, tree: PciTree) -> PciFunction:
    address = device.place.path[-1] if device.place.path else (device.info.bus_id or "")
    return tree.get(address) or PciFunction(address=address)


def _seat(device: Device, tree: PciTree) -> Seat:
    return seat_of(tree, _function(device, tree), device.place.numa_node, device.place.virtual)
