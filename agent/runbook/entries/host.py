"""Entries of the machine: PCI, NUMA, topology, and GPUDirect between GPUs and NICs."""

from __future__ import annotations

from agent.runbook.entry import FaultCategory, RecommendedAction, RunbookEntry

_PLACE_UNKNOWN = "Placement near a CPU or a NIC is not possible for these devices."
_INCOMPLETE = "Devices may be missing. No device is published as gone because of it."
_SLOW = "GPU and NIC exchange data slower than they could."
_NOT_DIRECT = "GPU and NIC exchange data through the host's memory."
_VERDICT_UNKNOWN = "Whether GPU and NIC exchange data directly is not known."

HOST_ENTRIES = (
    RunbookEntry(
        "PciLimit",
        "more PCI functions than the agent reads",
        "The list of PCI functions is longer than the agent's limit.",
        _INCOMPLETE,
        "see `xpu-agent topology`; report the machine if all these functions are real",
    ),
    RunbookEntry(
        "PciUnreadable",
        "the PCI functions cannot be listed",
        "The kernel refuses the agent /sys/bus/pci/devices.",
        _INCOMPLETE,
        "mount /sys into the agent's container",
    ),
    RunbookEntry(
        "PciVanished",
        "PCI functions went away while they were read",
        "Functions were removed between the list and the reading of their files.",
        _INCOMPLETE,
        "nothing: the next reading is complete, unless a card comes and goes",
        RecommendedAction.NONE,
        FaultCategory.PCIE,
    ),
    RunbookEntry(
        "UeventsUnavailable",
        "changes of hardware are noticed late",
        "The kernel's events of added and removed hardware cannot be received. The agent reads "
        "sysfs again and again in their place.",
        "An added or removed device is noticed some seconds later.",
        "give the agent the network namespace of the host (hostNetwork)",
    ),
    RunbookEntry(
        "FlatPCITopology",
        "the PCIe topology is not that of the machine",
        "All cards are below one root without a switch, as in a virtual machine whose host hides "
        "its PCIe switches.",
        "Distances between devices are all the same, so placement cannot use them.",
        "name the provider's file in discovery.topology_file, or nothing",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "NumaNodeMissing",
        "a device names a NUMA node that is not there",
        "The firmware gives a PCI function a NUMA node that the kernel does not have.",
        _PLACE_UNKNOWN,
        "update the firmware, or set discovery.numa_overrides",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "UnknownNumaNode",
        "the NUMA node of devices is unknown",
        "numa_node of the devices is -1 on a machine with several NUMA nodes.",
        _PLACE_UNKNOWN,
        "update the firmware, or set discovery.numa_overrides",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "NumaOverrideUnused",
        "a NUMA override has no effect",
        "An entry of discovery.numa_overrides fits no PCI function, or names no NUMA node.",
        "Devices keep the NUMA node of sysfs.",
        "correct discovery.numa_overrides",
    ),
    RunbookEntry(
        "TopologyFileRefused",
        "the topology file is not used",
        "The file with the provider's topology is not valid, or not that of this machine.",
        "Distances are those of sysfs.",
        "correct the file as the message says, or take it out of the settings",
    ),
    RunbookEntry(
        "TopologyFileOdd",
        "a part of the topology file is ignored",
        "The file with the provider's topology has a part that the agent does not understand.",
        "That part is ignored, the rest is used.",
        "see the message",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "HostPartUnread",
        "facts of the machine cannot be read",
        "CPUs, NUMA nodes, PCI functions or devices could not be read, or were never read.",
        "The agent is not ready. What was read earlier stays published.",
        "see the message and the agent's log; /proc and /sys have to be mounted",
    ),
    RunbookEntry(
        "SlowLink",
        "a PCIe link is slower or narrower than it could be",
        "The link of a device has fewer lanes or a lower speed than both ends support.",
        "Copies between host and device are slower.",
        "reseat the card; look at the riser, the slot and the firmware's settings",
        RecommendedAction.LOOK,
        FaultCategory.PCIE,
    ),
    RunbookEntry(
        "PeerMemoryMissing",
        "no kernel module registers GPU memory for RDMA",
        "Neither nvidia_peermem nor dma-buf of the open kernel modules is available.",
        _NOT_DIRECT,
        "load nvidia_peermem, or use the open kernel modules",
    ),
    RunbookEntry(
        "DmaBufTooOld",
        "the kernel or the driver is too old for dma-buf",
        "GPU memory reaches RDMA drivers by dma-buf only from a certain kernel and driver on.",
        _NOT_DIRECT,
        "load nvidia_peermem, or update kernel and driver",
    ),
    RunbookEntry(
        "DmaBufUnknown",
        "whether dma-buf works is not known",
        "The version of kernel or driver is unknown.",
        _VERDICT_UNKNOWN,
        "see `xpu-agent topology`",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "NothingReadable",
        "nothing about GPUDirect can be read",
        "The host does not show modules or configuration space.",
        _VERDICT_UNKNOWN,
        "run the agent privileged; a recording may lack these files",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "ThroughHostBridge",
        "GPU and NIC have no common PCIe switch",
        "The data passes the CPU's root complex.",
        _SLOW,
        "use a GPU and a NIC below one switch",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "FarApart",
        "GPU and NIC are far apart",
        "GPU and NIC are on different host bridges or sockets. NCCL does not use GPUDirect there.",
        _SLOW,
        "use a GPU and a NIC near each other",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "AcsRedirect",
        "PCIe access control redirects peer traffic",
        "ACS is on along the path, so data between GPU and NIC goes up to the root complex.",
        _SLOW,
        "switch ACS off in the firmware, or on the bridges with setpci, unless virtual machines "
        "need it",
    ),
    RunbookEntry(
        "AcsUnreadable",
        "the ACS setting cannot be read",
        "The configuration space of a bridge is readable for root only.",
        _VERDICT_UNKNOWN,
        "run the agent privileged",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "IommuTranslating",
        "the IOMMU translates addresses",
        "The functions are in an IOMMU group that translates, which slows peer traffic down.",
        _SLOW,
        "boot with iommu=pt",
    ),
    RunbookEntry(
        "IommuUnknown",
        "the type of an IOMMU group is unknown",
        "The kernel does not show the type of the group.",
        _VERDICT_UNKNOWN,
        "update the kernel",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "LinkWidthDegraded",
        "a link on the way has lost lanes",
        "A PCIe link between GPU and NIC has fewer lanes than both ends support.",
        _SLOW,
        "reseat the card; look at the riser and the slot",
        RecommendedAction.LOOK,
        FaultCategory.PCIE,
    ),
)
