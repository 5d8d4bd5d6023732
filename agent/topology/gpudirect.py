"""Checks for each GPU and NIC whether they exchange data directly, and if not, why. Pure.

The checks cover memory, distance, redirection, translation and link width. Bits of the ACS control
word are those of the PCI Express specification. A request of the NIC turns round in the last bridge
that both paths share: only the two ports below it can redirect requests of the NIC and completions
of the GPU to the root.

Where the NIC translates addresses itself (ATS), as for virtual machines, the port above it may
pass translated requests directly (DT). Only that port needs the bit; the others still redirect
all requests, which isolates virtual machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agent.snapshot.device import Device, DeviceKind
from agent.snapshot.node import DeviceView, GpuDirectCheck, GpuDirectHost, GpuDirectPair
from agent.snapshot.pci import PciFunction, PciTree
from agent.topology.distance import NODE, PHB, PIX, PXB, PciPosition, pci_level, position_of
from agent.wire_formats.device_info import is_cuda_device

OK, SLOW, NO, UNKNOWN = "ok", "slow", "no", "unknown"
REQUEST_REDIRECT, COMPLETION_REDIRECT, UPSTREAM_FORWARDING = 1 << 2, 1 << 3, 1 << 4
DIRECT_TRANSLATED = 1 << 6
DMABUF_KERNEL = (5, 12)
DMABUF_DRIVER = 515
PASSTHROUGH = "identity"
DMABUF_UNKNOWN, NOTHING_READABLE = "DmaBufUnknown", "NothingReadable"

# without these facts, slow is not a conclusion
INCONCLUSIVE = frozenset((DMABUF_UNKNOWN, NOTHING_READABLE))


def memory_check(host: GpuDirectHost) -> GpuDirectCheck | None:
    """Return why a NIC cannot reach GPU memory at all; `None` if it can."""
    if host.peer_memory is not None:
        return None
    if not host.driver:
        return _check("DriverMissing", NO, "NVIDIA's kernel module is not loaded")
    if not host.open_modules:
        detail = "load nvidia_peermem, or use the open kernel modules with dma-buf"
        return _check("PeerMemoryMissing", NO, detail)
    if host.kernel is None or host.driver_major is None:
        return _check(DMABUF_UNKNOWN, UNKNOWN, "version of the kernel or the driver is unknown")
    if host.kernel < DMABUF_KERNEL or host.driver_major < DMABUF_DRIVER:
        kernel = ".".join(map(str, host.kernel))
        detail = f"dma-buf needs kernel 5.12 and driver 515, here {kernel} and {host.driver_major}"
        return _check("DmaBufTooOld", NO, f"{detail}; load nvidia_peermem")
    return None


def distance_check(level: str, *, coherent: bool) -> GpuDirectCheck | None:
    """Check the distance. `coherent`: the GPU is connected to its CPU by NVLink-C2C."""
    if level in (PIX, PXB) or (coherent and level in (PHB, NODE)):
        return None
    if level in (PHB, NODE):
        return _check("ThroughHostBridge", SLOW, f"{level}: the data passes the CPU's root complex")
    return _check("FarApart", SLOW, f"{level}: NCCL does not use it unless it is told to")


def acs_checks(tree: PciTree, gpu: PciFunction, nic: PciFunction) -> Iterator[GpuDirectCheck]:
    """Yield the redirections by access control between two functions."""
    shared = 0
    while gpu.bridges[shared : shared + 1] == nic.bridges[shared : shared + 1] != ():
        shared += 1
    gpu_ports, nic_ports = gpu.bridges[shared : shared + 1], nic.bridges[shared : shared + 1]
    if shared == 0:  # they share nothing below a root port
        for port in dict.fromkeys((*nic_ports, *gpu_ports)):
            bits = REQUEST_REDIRECT | COMPLETION_REDIRECT | UPSTREAM_FORWARDING
            yield from _redirect_checks(tree, port, bits)
        return
    has_ats = nic.ats_enabled is True and bool(nic_ports)
    if has_ats and all(_acs_word(tree, port) & DIRECT_TRANSLATED for port in nic_ports):
        return
    for port in nic_ports:
        yield from _redirect_checks(tree, port, REQUEST_REDIRECT)
    for port in gpu_ports:
        yield from _redirect_checks(tree, port, COMPLETION_REDIRECT)


def _acs_word(tree: PciTree, address: str) -> int:
    port = tree.get(address)
    return (port.acs_control if port is not None else None) or 0


def _redirect_checks(tree: PciTree, address: str, bits: int) -> Iterator[GpuDirectCheck]:
    port = tree.get(address)
    if port is None or port.port_type is None:  # only a part of its configuration is readable
        yield _check("AcsUnreadable", UNKNOWN, f"{address}: the configuration is not readable")
        return
    word = port.acs_control
    if word is None or not word & bits:
        return
    yield _check("AcsRedirect", SLOW, f"{address}: ACS control word 0x{word:04x}")


def iommu_checks(tree: PciTree, gpu: PciFunction, nic: PciFunction) -> Iterator[GpuDirectCheck]:
    """Yield functions whose addresses are translated; without any group the IOMMU is off."""
    if all(function.iommu_group is None for function in tree.functions.values()):
        words = (f.acs_control for f in tree.functions.values() if f.port_type is not None)
        if all(word is None for word in words):
            detail = (
                "neither access control nor IOMMU groups: a virtual machine, or no right to read"
            )
            yield _check(NOTHING_READABLE, UNKNOWN, detail)
        return
    types = dict(tree.iommu_types)
    for function in (gpu, nic):
        group = function.iommu_group
        kind = types.get(group) if group is not None else PASSTHROUGH
        if kind is None:
            yield _check("IommuUnknown", UNKNOWN, f"{function.address}: type of group {group}")
        elif kind != PASSTHROUGH:
            detail = f"{function.address}: group {group} is {kind}; boot with iommu=pt"
            yield _check("IommuTranslating", SLOW, detail)


def width_checks(gpu: Device, nic: Device) -> Iterator[GpuDirectCheck]:
    """Yield links that lost lanes."""
    for device in (gpu, nic):
        if device.place.link_degraded == "width":
            link = device.place.link
            detail = f"{device.key}: {link.width} of {link.max_width} lanes"
            yield _check("LinkWidthDegraded", SLOW, detail)


def _check(name: str, verdict: str, detail: str) -> GpuDirectCheck:
    return GpuDirectCheck(name=name, verdict=verdict, detail=detail)


C2C = "C2C"

MAX_PAIRS = 1024


def candidates(devices: Iterable[Device]) -> tuple[tuple[Device, ...], tuple[Device, ...]]:
    """Return the GPUs and the NICs for pairs: managed devices on PCI."""
    managed_devices = [device for device in devices if device.info.managed and device.info.bus_id]
    gpus = (d for d in managed_devices if is_cuda_device(d.info))
    return tuple(gpus), tuple(d for d in managed_devices if d.info.kind is DeviceKind.RDMA)


def check_pairs(view: DeviceView, tree: PciTree, host: GpuDirectHost) -> tuple[GpuDirectPair, ...]:
    """Check every pair, at most `MAX_PAIRS`, in the order of devices."""
    gpus, nics = candidates(view.devices)
    coherent = {end for link in view.links if link.type == C2C for end in (link.a, link.b)}
    positions = {device.key: _position(device, tree) for device in (*gpus, *nics)}
    memory = memory_check(host)
    pairs = []
    for gpu, nic in [(gpu, nic) for gpu in gpus for nic in nics][:MAX_PAIRS]:
        level = pci_level(positions[gpu.key], positions[nic.key], tree.switch_links, by_chip=True)
        distance = distance_check(level, coherent=gpu.info.bus_id in coherent)
        a, b = _pci_function(gpu, tree), _pci_function(nic, tree)
        checks = (
            *(check for check in (memory, distance) if check is not None),
            *acs_checks(tree, a, b),
            *iommu_checks(tree, a, b),
            *width_checks(gpu, nic),
        )
        pairs.append(
            GpuDirectPair(
                gpu=gpu.key, nic=nic.key, level=level, verdict=worst_verdict(checks), checks=checks
            )
        )
    return tuple(pairs)


def worst_verdict(checks: Iterable[GpuDirectCheck]) -> str:
    """Return the worst verdict: not possible, then slow, then unknown.

    If it is unknown whether GPU memory can be reached at all, or what a hypervisor hides, slow is
    not a conclusion.
    """
    checks = tuple(checks)
    verdicts = {check.verdict for check in checks}
    if NO in verdicts:
        return NO
    if any(check.name in INCONCLUSIVE for check in checks):
        return UNKNOWN
    return next((verdict for verdict in (SLOW, UNKNOWN) if verdict in verdicts), OK)


def _pci_function(device: Device, tree: PciTree) -> PciFunction:
    address = device.place.path[-1] if device.place.path else (device.info.bus_id or "")
    return tree.get(address) or PciFunction(address=address)


def _position(device: Device, tree: PciTree) -> PciPosition:
    return position_of(
        tree, _pci_function(device, tree), device.place.numa_node, device.place.virtual
    )
