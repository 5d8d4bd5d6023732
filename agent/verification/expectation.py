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
    """What a container is compared with. `problem`: why a part of it is not known."""

    edits: ContainerEdits = ContainerEdits()
    devices: tuple[DeviceNodes, ...] = ()  # those that the container may have
    problem: str = ""

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing that a container could have or lack."""
        edits = self.edits
        given = edits.nodes or edits.env or edits.mounts or edits.rlimits
        return not (given or self.devices or self.problem)


def expectation_of(hook: Hook, snapshot: NodeSnapshot, pod: PodSandbox, name: str) -> Expectation:
    """Return what a container of a pod with a grant must have.

    The container's own specification is not known here.
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
    """Return what the hook of devices gives such a container now, or why it gives nothing."""
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
    """Return all that a pod was granted, each with its own nodes; raise `GrantRefused`."""
    held = snapshot.grants.value.pods.get(uid)
    if held is None:
        return ()
    functions = {function.address: function for function in _functions(snapshot)}
    found = match_devices(held.grant, _devices(snapshot))
    every = chain.from_iterable(_match_nodes(match, functions) for match in found)
    return tuple(dict.fromkeys(every))


def _match_nodes(
    match: DeviceMatch, functions: Mapping[str, RdmaFunction]
) -> Iterator[DeviceNodes]:
    device, part = match.device, match.partition
    if match.entry.vfs:  # the physical function is not granted with them
        yield from (_function_nodes(address, functions) for address in match.entry.vfs)
    elif device.kind is DeviceKind.RDMA:
        verbs = tuple(node for node in device.nodes if "/uverbs" in node.path)
        now = functions.get(device.key)
        yield DeviceNodes(
            name=device.key, nodes=now.verbs if now and now.verbs else verbs, is_one_enough=True
        )
        # the other ports of a bond, which have no RDMA device, or one that serves as well
        yield from (DeviceNodes(name=address, is_optional=True) for address in _members(device))
    elif part is None and match.entry.template:  # the maker's runtime cuts the slice by itself
        yield DeviceNodes(name=f"{device.key} {match.entry.template}")
        yield from (DeviceNodes(name=one.uuid, is_optional=True) for one in device.partitions)
    else:
        if part is None or part.with_card:
            yield DeviceNodes(name=device.key, nodes=device.nodes)
        if part is not None:
            yield DeviceNodes(name=part.uuid, nodes=part.nodes)


def _function_nodes(address: str, functions: Mapping[str, RdmaFunction]) -> DeviceNodes:
    found = functions.get(address)
    return DeviceNodes(name=address, nodes=found.verbs if found else (), is_one_enough=True)


def _members(device: VendorDevice) -> tuple[str, ...]:
    listed = dict(device.facts).get("members", "").split(",")
    return tuple(address for address in listed if address and address != device.key)


def _devices(snapshot: NodeSnapshot) -> Iterable[VendorDevice]:
    return (device.info for device in snapshot.devices.value.devices)


def _functions(snapshot: NodeSnapshot) -> Iterator[RdmaFunction]:
    for means in snapshot.means.value.vendors.values():
        yield from means.functions


def card_names(snapshot: NodeSnapshot) -> CardNames:
    """Return what each device's own node belongs to; a node of several devices identifies none."""
    owned = tuple(dict.fromkeys(_named_numbers(snapshot)))
    holders = Counter(numbers for numbers, _ in owned)
    return {numbers: name for numbers, name in owned if holders[numbers] == 1}


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
    """Return which pod an accelerator, or a slice of one, was granted to, by its name.

    RDMA devices are left out: other plug-ins share them among pods.
    """
    devices = tuple(one for one in _devices(snapshot) if one.kind is not DeviceKind.RDMA)
    holders: dict[str, PodAllocation] = {}
    for pod in snapshot.grants.value.pods.values():
        try:
            found = match_devices(pod.grant, devices)
        except AllocationRefused:
            continue  # a slice that is gone belongs to nobody
        for match in found:
            name = match.partition.uuid if match.partition else match.device.key
            holders.setdefault(name, pod)
    return holders


def assigned_devices(
    snapshot: NodeSnapshot, given: KubeletAllocations, target: VerificationTarget
) -> tuple[DeviceNodes, ...]:
    """Return the devices that the kubelet has assigned to a pod, beside those of its grant.

    A container must have those that this agent's device plug-in brought it. Of a type that the pod
    was granted, the grant counts and not the kubelet's choice.
    """
    held = snapshot.grants.value.pods.get(target.pod.uid)
    types = {entry.type for entry in held.grant.devices} if held is not None else set()
    ours = {one.name for one in snapshot.served.value.resources if one.state != "conflict"}
    functions = {function.address: function for function in _functions(snapshot)}
    devices = {device.key: device for device in _devices(snapshot)}
    found: dict[str, DeviceNodes] = {}
    for one in chain.from_iterable(given.values()):
        device = devices.get(one.share.device_key)
        if one.uid != target.pod.uid or one.type in types or device is None:
            continue
        required = one.resource in ours and one.container == target.name
        for nodes in _match_nodes(_allocation_match(one, device), functions):
            optional = nodes.is_optional or not required
            if nodes.name not in found or not optional:
                found[nodes.name] = replace(nodes, is_optional=optional)
    return tuple(found.values())


def _allocation_match(one: KubeletShare, device: VendorDevice) -> DeviceMatch:
    piece = one.share.part_id.partition(REPLICA_SEPARATOR)[0]
    part = next((part for part in device.partitions if part.uuid == piece), None)
    entry = AllocatedDevice(type=one.type, vfs=one.share.functions)
    return DeviceMatch(entry=entry, device=device, partition=part)
