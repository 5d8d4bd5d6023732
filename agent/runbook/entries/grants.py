"""Entries of device allocations: why an allocation is refused, and what becomes of slices."""

from __future__ import annotations

from agent.runbook.entry import FaultCategory, RecommendedAction, RunbookEntry

_NOT_STARTED = "The containers of the pod are not started."
_ANEW = "delete the pod, so that the scheduler grants anew"
_SCHEDULER = f"see why the scheduler wrote it; {_ANEW}"
_SOON = "nothing: the runtime tries again, and the agent then knows more"


def _refusal(
    reason: str,
    title: str,
    meaning: str,
    remedy: str = _ANEW,
    action: RecommendedAction = RecommendedAction.LOOK,
    category: FaultCategory = FaultCategory.OTHER,
) -> RunbookEntry:
    return RunbookEntry(reason, title, meaning, _NOT_STARTED, remedy, action, category)


GRANT_ENTRIES = (
    _refusal(
        "GrantRefused",
        "an allocation is refused",
        "The event names the pod; its message begins with the reason.",
        "see the entry of the reason in the message",
    ),
    _refusal(
        "BadGrant",
        "the annotation of the allocation is not valid",
        "scheduling.koordinator.sh/device-allocated is not what a scheduler writes.",
        _SCHEDULER,
    ),
    _refusal(
        "BadDeviceId",
        "an allocation has a malformed device name",
        "A name in the allocation must not reach an environment variable or a path.",
        _SCHEDULER,
    ),
    _refusal(
        "CDINameMissing",
        "the CDI name of a device is missing",
        "No CDI file of the node describes the device of the allocation.",
        "see `cdi-files` in /healthz?verbose; for files of a vendor's tool generate them again",
    ),
    _refusal(
        "DeviceConflict",
        "two edits of a container contradict each other",
        "Image, pod and allocation set one path, variable or limit to different values.",
        "take the variable or mount that the message names out of the pod",
    ),
    _refusal(
        "DeviceNotGrantable",
        "the device cannot be allocated",
        "Another driver has the device, or it has no resources for pods.",
    ),
    _refusal(
        "DeviceOutOfService",
        "the allocated device is out of service",
        "The device failed between the scheduler's decision and the start of the pod.",
    ),
    _refusal(
        "DeviceTaken",
        "the device belongs to another pod",
        "Another pod has the device, or less of it is free than was allocated.",
        "see `xpu-agent explain device`: two schedulers may allocate the same devices; delete the "
        "pod",
    ),
    _refusal(
        "DeviceUnknown",
        "the allocated device is not on this node",
        "No device has the id or number of the allocation.",
    ),
    _refusal(
        "DevicesNotKnownYet",
        "the devices are not read yet",
        "The vendor of the allocated device has not answered yet.",
        f"{_SOON}; if it goes on, see the vendor",
    ),
    _refusal(
        "HAMiCoreMissing",
        "HAMi-core is not installed",
        "The pod shares a card by HAMi-core, and its library is not on the node.",
        "add daemonset/components/hami-core, or use cards without that isolation",
    ),
    _refusal(
        "HostNotReadYet",
        "the host's device nodes are not read yet",
        "The agent has just started.",
        _SOON,
        RecommendedAction.NONE,
    ),
    _refusal(
        "IncompleteGrant",
        "the allocation lacks an amount",
        "The isolation that the pod asks for needs an amount that the allocation does not have.",
        "let the pod ask for memory and cores, or for another isolation",
    ),
    _refusal(
        "MIGEnabled",
        "the whole card was allocated, and it is partitioned",
        "MIG is on, so a container can use slices of the card only.",
        "ask for a MIG slice, or switch MIG off while nothing runs on the card",
    ),
    _refusal(
        "MIGNodeMissing",
        "a MIG slice has no device node",
        "The node in /dev/nvidia-caps that gives access to the slice is missing.",
        "make the nodes: `nvidia-modprobe -c 0 -u -f`, or restart nvidia-persistenced",
        RecommendedAction.LOOK,
        FaultCategory.DRIVER,
    ),
    _refusal(
        "MixedGrant",
        "the allocation mixes slices and cards",
        "A container has a slice beside whole cards, or slices of several cards.",
        "give each container slices of one card, or whole cards",
    ),
    _refusal(
        "MPSDown",
        "the MPS daemon does not run",
        "The pod shares a card by MPS, and its control daemon does not answer.",
        "start nvidia-cuda-mps-control, or use another isolation",
    ),
    _refusal(
        "GrantNotAskedFor",
        "the allocation is more than the pod requests",
        "No scheduler allocates devices that a pod does not request: somebody else wrote it.",
        "delete the pod; daemonset/policy/grants lets only schedulers write grants",
    ),
    _refusal(
        "NodeMismatch",
        "a device node has other numbers than the driver's device",
        "A file below /dev has not the numbers of the allocated device, or is another device since "
        "the kubelet stored it.",
        "delete the pod if the message says so; else remove the node, and let udev or the driver's "
        "tool make it again",
        RecommendedAction.LOOK,
        FaultCategory.DRIVER,
    ),
    _refusal(
        "PartitionMissing",
        "the allocated slice does not exist",
        "The card does not have the slice that the allocation names.",
    ),
    _refusal(
        "PodRequestsUnknown",
        "the pod's requests are unknown",
        "Neither the API server nor the kubelet lists the pod yet, and anybody can write its "
        "annotation.",
        "let the agent reach the API server or the kubelet",
    ),
    _refusal(
        "TemplateUnknown",
        "the chip has no such template",
        "The allocation names a slice template that the chip does not have.",
        _SCHEDULER,
    ),
    _refusal(
        "UVMMissing",
        "/dev/nvidia-uvm is missing",
        "Without the unified memory module no CUDA program starts.",
        "load nvidia_uvm, and make its node: `nvidia-modprobe -c 0 -u`",
        RecommendedAction.LOOK,
        FaultCategory.DRIVER,
    ),
    _refusal(
        "VerbsMissing",
        "the NIC has no verbs device",
        "The node in /dev/infiniband that RDMA programs open is missing.",
        "load ib_uverbs, and let udev make its nodes",
        RecommendedAction.LOOK,
        FaultCategory.DRIVER,
    ),
    _refusal(
        "VirtualFunctionUnknown",
        "the allocated virtual function does not exist",
        "The NIC does not have the virtual function that the allocation names.",
    ),
    _refusal(
        "WrongNode",
        "the allocation is for another node",
        "The annotation names another node than this one.",
        _SCHEDULER,
    ),
    RunbookEntry(
        "SliceLost",
        "a pod has lost its slice",
        "A reset of the card, or another program, removed the slice that the pod uses.",
        "Programs of the pod fail.",
        "delete the pod",
    ),
    RunbookEntry(
        "SliceReclaimed",
        "a slice of an ended pod was deleted",
        "The agent made the slice for a pod that does not exist any more.",
        "The capacity of the slice is free again.",
        "nothing",
        RecommendedAction.NONE,
    ),
    RunbookEntry(
        "SliceNotReclaimed",
        "a slice of an ended pod cannot be deleted",
        "The driver refuses to delete the slice, often because a process still uses it.",
        "The capacity of the slice is not available.",
        "end the processes that use the card; the agent tries again",
    ),
)
