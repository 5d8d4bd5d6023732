"""The checks behind a pair's verdict: memory, distance, redirection, translation, width. Pure.

Bits of the ACS control word are those of the PCI Express specification. A request of the NIC
turns round in the last bridge that both paths share: only the two ports below it can redirect it
to the root, the NIC's side its requests, the GPU's side its completions.

Where the NIC translates addresses itself (ATS), as for virtual machines, the port above it may
pass translated requests directly (DT). That port alone needs the bit: the others go on redirecting
everything, which is what keeps virtual machines apart.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.gpudirect.means import DirectMeans
from agent.model.device import Device
from agent.model.snapshot import DirectCheck
from agent.topology.distance import NODE, PHB, PIX, PXB
from agent.topology.pci import PciFunction, PciTree

OK, SLOW, NO, UNKNOWN = "ok", "slow", "no", "unknown"

REQUEST_REDIRECT, COMPLETION_REDIRECT, UPSTREAM_FORWARDING = 1 << 2, 1 << 3, 1 << 4
DIRECT_TRANSLATED = 1 << 6
DMABUF_KERNEL = (5, 12)
DMABUF_DRIVER = 515
PASSTHROUGH = "identity"

DMABUF_UNKNOWN, NOTHING_READABLE = "DmaBufUnknown", "NothingReadable"
BLIND = frozenset((DMABUF_UNKNOWN, NOTHING_READABLE))  # without these facts, slow says nothing


def memory_check(means: DirectMeans) -> DirectCheck | None:
    """Say why a NIC cannot reach GPU memory at all; `None` if it can."""
    if means.peer_memory is not None:
        return None
    if not means.driver:
        return _said("DriverMissing", NO, "NVIDIA's kernel module is not loaded")
    if not means.open_modules:
        detail = "load nvidia_peermem, or use the open kernel modules with dma-buf"
        return _said("PeerMemoryMissing", NO, detail)
    if means.kernel is None or means.driver_major is None:
        return _said(DMABUF_UNKNOWN, UNKNOWN, "version of the kernel or the driver is unknown")
    if means.kernel < DMABUF_KERNEL or means.driver_major < DMABUF_DRIVER:
        kernel = ".".join(map(str, means.kernel))
        detail = f"dma-buf needs kernel 5.12 and driver 515, here {kernel} and {means.driver_major}"
        return _said("DmaBufTooOld", NO, f"{detail}; load nvidia_peermem")
    return None


def distance_check(level: str, *, coherent: bool) -> DirectCheck | None:
    """Judge the way's length. `coherent`: the GPU hangs on its CPU by NVLink-C2C."""
    if level in (PIX, PXB) or (coherent and level in (PHB, NODE)):
        return None
    if level in (PHB, NODE):
        return _said("ThroughHostBridge", SLOW, f"{level}: the data passes the CPU's root complex")
    return _said("FarApart", SLOW, f"{level}: NCCL does not use it unless it is told to")


def acs_checks(tree: PciTree, gpu: PciFunction, nic: PciFunction) -> Iterator[DirectCheck]:
    """Yield what access control redirects on the way between two functions."""
    shared = 0
    while gpu.bridges[shared : shared + 1] == nic.bridges[shared : shared + 1] != ():
        shared += 1
    ours, theirs = gpu.bridges[shared : shared + 1], nic.bridges[shared : shared + 1]
    if shared == 0:  # nothing below a root port in common
        for port in dict.fromkeys((*theirs, *ours)):
            bits = REQUEST_REDIRECT | COMPLETION_REDIRECT | UPSTREAM_FORWARDING
            yield from _redirected(tree, port, bits)
        return
    translated = nic.ats_enabled is True and bool(theirs)
    if translated and all(_word(tree, port) & DIRECT_TRANSLATED for port in theirs):
        return
    for port in theirs:
        yield from _redirected(tree, port, REQUEST_REDIRECT)
    for port in ours:
        yield from _redirected(tree, port, COMPLETION_REDIRECT)


def _word(tree: PciTree, address: str) -> int:
    port = tree.get(address)
    return (port.acs_control if port is not None else None) or 0


def _redirected(tree: PciTree, address: str, bits: int) -> Iterator[DirectCheck]:
    port = tree.get(address)
    if port is None or port.port_type is None:  # less than its whole configuration is readable
        yield _said("AcsUnreadable", UNKNOWN, f"{address}: the configuration is not readable")
        return
    word = port.acs_control
    if word is None or not word & bits:
        return
    yield _said("AcsRedirect", SLOW, f"{address}: ACS control word 0x{word:04x}")


def iommu_checks(tree: PciTree, gpu: PciFunction, nic: PciFunction) -> Iterator[DirectCheck]:
    """Yield whose addresses are translated; no group anywhere is an IOMMU that is off."""
    if all(function.iommu_group is None for function in tree.functions.values()):
        words = (f.acs_control for f in tree.functions.values() if f.port_type is not None)
        if all(word is None for word in words):
            detail = (
                "neither access control nor IOMMU groups: a virtual machine, or no right to read"
            )
            yield _said(NOTHING_READABLE, UNKNOWN, detail)
        return
    types = dict(tree.iommu_types)
    for function in (gpu, nic):
        group = function.iommu_group
        kind = types.get(group) if group is not None else PASSTHROUGH
        if kind is None:
            yield _said("IommuUnknown", UNKNOWN, f"{function.address}: type of group {group}")
        elif kind != PASSTHROUGH:
            detail = f"{function.address}: group {group} is {kind}; boot with iommu=pt"
            yield _said("IommuTranslating", SLOW, detail)


def width_checks(gpu: Device, nic: Device) -> Iterator[DirectCheck]:
    """Yield which link lost lanes."""
    for device in (gpu, nic):
        if device.place.link_degraded == "width":
            link = device.place.link
            detail = f"{device.key}: {link.width} of {link.max_width} lanes"
            yield _said("LinkWidthDegraded", SLOW, detail)


def _said(name: str, verdict: str, detail: str) -> DirectCheck:
    return DirectCheck(name=name, verdict=verdict, detail=detail)
