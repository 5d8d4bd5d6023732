"""Checks of places and paths: NUMA nodes, PCIe links, IOMMU and access control, GPUDirect."""

from __future__ import annotations

from collections.abc import Iterator

from agent.doctor.check import (
    Check,
    CheckGroup,
    CheckInputs,
    CheckResult,
    join_names,
    ok,
    skip,
    warn,
)
from agent.snapshot.device import Device
from agent.snapshot.node import GpuDirectCheck

NO_DEVICE = "no device here has a place on PCI"
NO_PAIR = "no pair of a GPU and a NIC that could exchange data"
_MEMORY_CHECKS = ("DriverMissing", "PeerMemoryMissing", "DmaBufTooOld", "DmaBufUnknown")
_UNKNOWN = "unknown"


def _placed(facts: CheckInputs) -> list[Device]:
    devices = facts.snapshot.devices.value.devices
    return [device for device in devices if device.info.managed and device.info.bus_id]


def check_numa_nodes(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether each device has a NUMA node."""
    devices = _placed(facts)
    if not devices:
        return
    nodes = [node for node in facts.snapshot.numa.value.nodes if node.cpus]
    if not nodes:
        yield skip("numa", "memory nodes cannot be read")
        return
    lost = [device.key for device in devices if device.place.numa_node < 0]
    if lost and len(nodes) > 1:
        yield warn(
            "numa",
            f"numa_node is -1 for {join_names(lost)}",
            impact="schedulers and the kubelet cannot place CPUs and memory near these devices",
            remedy="update the firmware (ACPI _PXM), or set discovery.numa_overrides; in a virtual "
            "machine let the provider pass the topology, or set discovery.topology_file",
        )
    else:
        yield ok("numa", f"{len(devices)} devices on {len(nodes)} memory nodes")


def check_numa_memory(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether each memory node with CPUs has memory."""
    nodes = facts.snapshot.numa.value.nodes
    if not nodes:
        return
    empty = [str(node.id) for node in nodes if node.cpus and node.memory_bytes == 0]
    warnings = [*facts.snapshot.numa.value.warnings, *facts.snapshot.cpus.value.warnings]
    if empty:
        yield warn(
            "numa-memory",
            f"nodes {join_names(empty)} have CPUs and no memory",
            impact="all memory of pods on these CPUs is remote",
            remedy="fill the memory slots of each socket evenly, and see the firmware's NUMA "
            "settings",
        )
    elif warnings:
        yield warn(
            "numa-memory",
            join_names(warnings, 4),
            impact="the topology that is published may be incomplete",
            remedy="see the firmware's tables (ACPI SRAT, SLIT), and whether /sys and /proc are "
            "those of the host",
        )
    else:
        yield ok("numa-memory", f"{len(nodes)} with memory")


def check_links(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the PCIe links of devices have all their lanes and their speed."""
    devices = _placed(facts)
    slow = [device for device in devices if device.place.link_degraded is not None]
    for device in slow:
        link = device.place.link
        text = f"{link.width} of {link.max_width} lanes"
        if device.place.link_degraded == "speed":
            text = f"{_speed(link.speed)} of {_speed(link.max_speed)} GT/s"
        yield warn(
            f"pcie-links:{device.key}",
            text,
            impact="copies between host and device take a multiple of the time",
            remedy="reseat card and riser, see the slot's settings in the firmware; replace the "
            "card if the link stays so",
        )
    known = [device for device in devices if device.place.link.width is not None]
    if devices and not known:
        yield skip("pcie-links", "no link can be read: a virtual machine")
    elif devices and not slow:
        yield ok("pcie-links", f"{len(known)} links have their full width")


def _speed(tenths: int | None) -> str:
    return "?" if tenths is None else f"{tenths / 10:g}"


def check_pci_rights(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the configuration of PCI functions can be read whole."""
    devices = _placed(facts)
    bridges = {address for device in devices for address in device.place.path[1:-1]}
    tree = facts.snapshot.pci.value
    functions = [one for address in bridges if (one := tree.get(address)) is not None]
    if not functions:
        return
    hidden = sorted(one.address for one in functions if one.port_type is None)
    if len(hidden) == len(functions):
        why = "run as root, with CAP_SYS_ADMIN" if facts.is_live else "record it as root"
        yield skip("pci-config", f"access control of ports cannot be read: {why}")
    elif hidden:
        yield warn(
            "pci-config",
            f"the configuration of {join_names(hidden)} cannot be read whole",
            impact="whether requests of NICs are redirected there is not known",
            remedy="run the agent with CAP_SYS_ADMIN, as daemonset/base does",
        )
    else:
        yield ok("pci-config", f"{len(functions)} ports are readable")


def check_topology_file(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the provider's topology file was accepted."""
    part = facts.snapshot.topology_file
    if part.error:
        yield warn(
            "topology-file",
            part.error,
            impact="devices of this virtual machine have no place in the topology",
            remedy="correct the file, or set discovery.topology_file to an empty text",
        )
    elif part.value is None:
        return
    elif part.value.ignored or part.value.warnings:
        text = next(iter(part.value.warnings), f"{part.value.ignored} of its functions are absent")
        yield warn(
            "topology-file",
            f"{part.value.label}: {text}",
            impact="the file may be of another type of machine",
            remedy="use the provider's file for this type of machine",
        )
    else:
        yield ok("topology-file", f"{part.value.label}: {len(part.value.places)} places")


def check_peer_memory(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether NICs can reach GPU memory at all: nvidia-peermem or dma-buf."""
    yield from _pair_results(
        facts,
        "peer-memory",
        _MEMORY_CHECKS,
        "NICs can reach GPU memory",
        impact="GPUDirect RDMA is not possible: all traffic is copied through the host's memory",
        remedy="load nvidia_peermem, or use the open kernel modules (driver 515, kernel 5.12)",
    )


def check_access_control(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether ports redirect requests between GPUs and NICs to the root complex."""
    yield from _pair_results(
        facts,
        "access-control",
        ("AcsRedirect", "AcsUnreadable"),
        "no port redirects requests of NICs",
        impact="traffic between GPU and NIC passes the root complex: a half of the bandwidth or "
        "less",
        remedy="switch ACS redirection of the switch's ports off (setpci), unless virtual "
        "machines need it",
    )


def check_iommu(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the IOMMU translates addresses of GPUs and NICs."""
    yield from _pair_results(
        facts,
        "iommu",
        ("IommuTranslating", "IommuUnknown", "NothingReadable"),
        "off, or passes addresses through",
        impact="traffic between GPU and NIC passes the root complex and the IOMMU",
        remedy="boot with iommu=pt, or switch the IOMMU off in the firmware",
    )


def check_distances(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether each GPU has a NIC below the same PCIe switches."""
    pairs = facts.snapshot.devices.value.direct
    if not pairs:
        return
    near = {pair.gpu for pair in pairs if pair.level in ("PIX", "PXB")}
    far = sorted({pair.gpu for pair in pairs} - near)
    # C2C: the GPU is attached to its CPU, and a NIC near the CPU is near the GPU
    far = [
        gpu
        for gpu in far
        if all(
            any(check.name in ("ThroughHostBridge", "FarApart") for check in pair.checks)
            for pair in pairs
            if pair.gpu == gpu
        )
    ]
    if far:
        yield warn(
            "nic-distance",
            f"no NIC below the switches of {join_names(far)}",
            impact="NCCL sends their data through the CPU, or through another GPU (PXN)",
            remedy="move NICs to the slots near these GPUs; nothing, if the machine is built so",
        )
    else:
        yield ok("nic-distance", f"each of {len(near)} GPUs has a NIC near it")


def _pair_results(
    facts: CheckInputs, check: str, names: tuple[str, ...], well: str, *, impact: str, remedy: str
) -> Iterator[CheckResult]:
    """Report the checks of these names, of all pairs of a GPU and a NIC."""
    pairs = facts.snapshot.devices.value.direct
    if not pairs:
        return
    # pairs that are far apart do not depend on access control
    checks: dict[str, GpuDirectCheck] = {}
    for pair in pairs:
        for one in pair.checks:
            if one.name in names:
                checks.setdefault(one.detail, one)
    bad = [one for one in checks.values() if one.verdict != _UNKNOWN]
    if bad:
        yield warn(check, join_names([one.detail for one in bad], 4), impact=impact, remedy=remedy)
    elif checks:
        yield skip(check, next(iter(checks)))
    else:
        yield ok(check, well)


CHECKS = (
    Check(
        id="numa",
        group=CheckGroup.TOPOLOGY,
        question="Has each device a NUMA node?",
        run=check_numa_nodes,
        absence=NO_DEVICE,
    ),
    Check(
        id="numa-memory",
        group=CheckGroup.TOPOLOGY,
        question="Has each memory node with CPUs memory?",
        run=check_numa_memory,
        absence="memory nodes cannot be read",
    ),
    Check(
        id="pcie-links",
        group=CheckGroup.TOPOLOGY,
        question="Have the PCIe links of devices their full width and speed?",
        run=check_links,
        absence=NO_DEVICE,
    ),
    Check(
        id="pci-config",
        group=CheckGroup.TOPOLOGY,
        question="Can the configuration of PCI ports be read whole?",
        run=check_pci_rights,
        absence="no device is below a PCI port",
    ),
    Check(
        id="topology-file",
        group=CheckGroup.TOPOLOGY,
        question="Is the provider's topology file accepted, and of this machine?",
        run=check_topology_file,
        absence="no provider's topology file",
    ),
    Check(
        id="peer-memory",
        group=CheckGroup.GPUDIRECT,
        question="Can NICs reach GPU memory (nvidia-peermem or dma-buf)?",
        run=check_peer_memory,
        absence=NO_PAIR,
    ),
    Check(
        id="access-control",
        group=CheckGroup.GPUDIRECT,
        question="Do PCIe ports pass requests between GPUs and NICs directly (ACS)?",
        run=check_access_control,
        absence=NO_PAIR,
    ),
    Check(
        id="iommu",
        group=CheckGroup.GPUDIRECT,
        question="Is the IOMMU off, or does it pass addresses through?",
        run=check_iommu,
        absence=NO_PAIR,
    ),
    Check(
        id="nic-distance",
        group=CheckGroup.GPUDIRECT,
        question="Has each GPU a NIC below the same switches?",
        run=check_distances,
        absence=NO_PAIR,
    ),
)
