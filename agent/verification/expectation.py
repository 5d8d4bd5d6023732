"""Computes what a container must have according to the snapshot. Pure.

Devices come from the allocation and from the nodes of the devices. The hook's answer adds paths,
variables, mounts and limits. Verification therefore detects a hook that names the wrong card.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import msgspec
from msgspec.structs import replace

from agent.allocation.device_shares import KubeletShare
from agent.containers.hooks import Hook
from agent.snapshot.allocation import (
    REPLICA_SEPARATOR,
    AllocatedDevice,
    AllocationRefused,
    DeviceMatch,
    PodAllocation,
    match_devices,
)
from agent.snapshot.container import ContainerSpec, HookRequest, HookStage, PodSandbox
from agent.snapshot.device import DeviceKind, DeviceNode, VendorDevice
from agent.snapshot.edits import ContainerEdits
from agent.snapshot.host_devices import RdmaFunction
from agent.snapshot.node import NodeSnapshot
from agent.verification.container_check import CardNames, DeviceNodes, DeviceNumbers
from agent.verification.schedule import VerificationTarget

KubeletAllocations = Mapping[str, tuple[KubeletShare, ...]]


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """What a container is compared with. `problem`: why a part of the expectation is unknown."""

    edits: ContainerEdits = ContainerEdits()
    devices: tuple[DeviceNodes, ...] = ()  # those that the container may have
    problem: str = ""

    @property
    def is_empty(self) -> bool:
        """Return whether the container is expected to have nothing."""
        edits = self.edits
        injected = edits.nodes or edits.env or edits.mounts or edits.rlimits
        return not (injected or self.devices or self.problem)


def expectation_of(hook: Hook, snapshot: NodeSnapshot, pod: PodSandbox, name: str) -> Expectation:
    """Return what a container of a pod with an allocation must have.

    The container's own specification is not read.
    """
    edits, problem = _hook_edits(hook, snapshot, pod, name)
    try:
        devices = allocated_devices(snapshot, pod.uid)
    except AllocationRefused as refused:
        return Expectation(edits=edits, problem=problem or str(refused))
    return Expectation(edits=edits, devices=devices, problem=problem)


def _hook_edits(
    hook: Hook, snapshot: NodeSnapshot, pod: PodSandbox, name: str
) -> tuple[ContainerEdits, str]:
    """Return the edits that the device hook makes now, or why it makes none."""
    container = ContainerSpec(
        name=name,
        pod_uid=pod.uid,
        runtime_handler=pod.runtime_handler,
        host_network=pod.host_network,
        labels=pod.labels,
        annotations=pod.annotations,
    )
    request = HookRequest(stage=HookStage.RECONCILE, pod=pod, container=container)
    try:
        answer = hook.adjust(request, snapshot)
    except AllocationRefused as refused:
        return ContainerEdits(), str(refused)
    return answer.edits, answer.failed


def allocated_devices(snapshot: NodeSnapshot, uid: str) -> tuple[DeviceNodes, ...]:
    """Return the allocated devices of a pod with their nodes; raise `AllocationRefused`."""
    allocation = snapshot.allocations.value.pods.get(uid)
    if allocation is None:
        return ()
    functions = {function.address: function for function in _functions(snapshot)}
    matches = match_devices(allocation.grant, _devices(snapshot))
    every = chain.from_iterable(_match_nodes(match, functions) for match in matches)
    return tuple(dict.fromkeys(every))


def _match_nodes(
    match: DeviceMatch, functions: Mapping[str, RdmaFunction]
) -> Iterator[DeviceNodes]:
    device, part = match.device, match.partition
    if match.entry.vfs:  # the physical function is not part of the allocation
        yield from (_function_nodes(address, functions) for address in match.entry.vfs)
    elif device.kind is DeviceKind.RDMA:
        verbs = tuple(node for node in device.nodes if "/uverbs" in node.path)
        now = functions.get(device.key)
        yield DeviceNodes(
            name=device.key, nodes=now.verbs if now and now.verbs else verbs, is_one_enough=True
        )
        # the other ports of a bond have no RDMA device, or one that may be used instead
        yield from (DeviceNodes(name=address, is_optional=True) for address in _members(device))
    elif part is None and match.entry.template:  # the vendor's runtime creates the slice itself
        yield DeviceNodes(name=f"{device.key} {match.entry.template}")
        yield from (
            DeviceNodes(name=partition.uuid, is_optional=True) for partition in device.partitions
        )
    else:
        if part is None or part.with_card:
            yield DeviceNodes(name=device.key, nodes=device.nodes)
        if part is not None:
            yield DeviceNodes(name=part.uuid, nodes=part.nodes)


def _function_nodes(address: str, functions: Mapping[str, RdmaFunction]) -> DeviceNodes:
    function = functions.get(address)
    return DeviceNodes(name=address, nodes=function.verbs if function else (), is_one_enough=True)


def _members(device: VendorDevice) -> tuple[str, ...]:
    listed = dict(device.facts).get("members", "").split(",")
    return tuple(address for address in listed if address and address != device.key)


def _devices(snapshot: NodeSnapshot) -> Iterable[VendorDevice]:
    return (device.info for device in snapshot.devices.value.devices)


def _functions(snapshot: NodeSnapshot) -> Iterator[RdmaFunction]:
    for vendor_devices in snapshot.host_devices.value.vendors.values():
        yield from vendor_devices.functions


def card_names(snapshot: NodeSnapshot) -> CardNames:
    """Return the device of each device node; a node that several devices share is left out."""
    numbered = tuple(dict.fromkeys(_named_numbers(snapshot)))
    owners = Counter(numbers for numbers, _ in numbered)
    return {numbers: name for numbers, name in numbered if owners[numbers] == 1}


def _named_numbers(snapshot: NodeSnapshot) -> Iterator[tuple[DeviceNumbers, str]]:
    for device in _devices(snapshot):
        yield from ((numbers, device.key) for numbers in _numbers(device.nodes))
        for part in device.partitions:
            yield from ((numbers, part.uuid) for numbers in _numbers(part.nodes))
    for function in _functions(snapshot):
        yield from ((numbers, function.address) for numbers in _numbers(function.verbs))


def _numbers(nodes: Iterable[DeviceNode]) -> Iterator[DeviceNumbers]:
    return ((node.major, node.minor) for node in nodes)


def pods_with_cards(snapshot: NodeSnapshot) -> Mapping[str, PodAllocation]:
    """Return the pod of each allocated accelerator or slice, by the name of the device.

    RDMA devices are left out: other plug-ins share them among pods.
    """
    devices = tuple(one for one in _devices(snapshot) if one.kind is not DeviceKind.RDMA)
    holders: dict[str, PodAllocation] = {}
    for pod in snapshot.allocations.value.pods.values():
        try:
            matches = match_devices(pod.grant, devices)
        except AllocationRefused:
            continue  # a removed slice belongs to no pod
        for match in matches:
            name = match.partition.uuid if match.partition else match.device.key
            holders.setdefault(name, pod)
    return holders


def assigned_devices(
    snapshot: NodeSnapshot, kubelet_shares: KubeletAllocations, target: VerificationTarget
) -> tuple[DeviceNodes, ...]:
    """Return the devices that the kubelet has assigned to a pod, beside the allocated ones.

    A container must have the devices that this agent's device plug-in injected. For a device type
    that was allocated to the pod, the allocation counts and not the kubelet's choice.
    """
    allocation = snapshot.allocations.value.pods.get(target.pod.uid)
    types = {entry.type for entry in allocation.grant.devices} if allocation is not None else set()
    served_resources = {
        resource.name
        for resource in snapshot.served.value.resources
        if resource.state != "conflict"
    }
    functions = {function.address: function for function in _functions(snapshot)}
    devices = {device.key: device for device in _devices(snapshot)}
    nodes_by_name: dict[str, DeviceNodes] = {}
    for one in chain.from_iterable(kubelet_shares.values()):
        device = devices.get(one.share.device_key)
        if one.uid != target.pod.uid or one.type in types or device is None:
            continue
        required = one.resource in served_resources and one.container == target.name
        for nodes in _match_nodes(_allocation_match(one, device), functions):
            optional = nodes.is_optional or not required
            if nodes.name not in nodes_by_name or not optional:
                nodes_by_name[nodes.name] = replace(nodes, is_optional=optional)
    return tuple(nodes_by_name.values())


def _allocation_match(one: KubeletShare, device: VendorDevice) -> DeviceMatch:
    slice_id = one.share.part_id.partition(REPLICA_SEPARATOR)[0]
    part = next((part for part in device.partitions if part.uuid == slice_id), None)
    entry = AllocatedDevice(type=one.type, vfs=one.share.functions)
    return DeviceMatch(entry=entry, device=device, partition=part)
