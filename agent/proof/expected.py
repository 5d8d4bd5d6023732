"""What a container must have, and which pod has which device, by the snapshot. Pure.

The devices come from the grant and from the devices' own nodes. The hook's answer adds paths,
variables, mounts and limits. So a hook that names the wrong card is noticed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import msgspec
from msgspec.structs import replace

from agent.grants.allocations import Allocation
from agent.hooks.base import Hook
from agent.model.device import DeviceKind, DeviceNode, VendorDevice
from agent.model.grant.checked import PodGrant
from agent.model.grant.container import Container
from agent.model.grant.edits import ContainerEdits
from agent.model.grant.granted import REPLICA, GrantedDevice, Match, matches
from agent.model.grant.host import RdmaFunction
from agent.model.grant.refusal import GrantRefused
from agent.model.runtime.request import HookRequest, Stage
from agent.model.runtime.seen import SandboxSeen
from agent.model.snapshot import NodeSnapshot
from agent.proof.judge import Cards, DeviceNodes, Numbers
from agent.proof.watching import Target

Allocations = Mapping[str, tuple[Allocation, ...]]


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a container is compared with. `problem`: why a part of it is not known."""

    edits: ContainerEdits = ContainerEdits()
    devices: tuple[DeviceNodes, ...] = ()  # those that the container may have
    problem: str = ""

    @property
    def nothing(self) -> bool:
        """Return whether there is nothing that a container could have or lack."""
        edits = self.edits
        given = edits.nodes or edits.env or edits.mounts or edits.rlimits
        return not (given or self.devices or self.problem)


def expected_of(hook: Hook, snapshot: NodeSnapshot, pod: SandboxSeen, name: str) -> Expected:
    """Return what a container of a pod with a grant must have.

    The container's own specification is not known here.
    """
    edits, problem = _edits(hook, snapshot, pod, name)
    try:
        devices = granted_devices(snapshot, pod.uid)
    except GrantRefused as refused:
        return Expected(edits=edits, problem=problem or str(refused))
    return Expected(edits=edits, devices=devices, problem=problem)


def _edits(
    hook: Hook, snapshot: NodeSnapshot, pod: SandboxSeen, name: str
) -> tuple[ContainerEdits, str]:
    """Return what the hook of devices gives such a container now, or why it gives nothing."""
    container = Container(
        name=name,
        pod_uid=pod.uid,
        runtime_handler=pod.runtime_handler,
        host_network=pod.host_network,
        labels=pod.labels,
        annotations=pod.annotations,
    )
    request = HookRequest(stage=Stage.RECONCILE, pod=pod, container=container)
    try:
        answer = hook.adjust(request, snapshot)
    except GrantRefused as refused:
        return ContainerEdits(), str(refused)
    return answer.edits, answer.failed


def granted_devices(snapshot: NodeSnapshot, uid: str) -> tuple[DeviceNodes, ...]:
    """Return all that a pod was granted, each with its own nodes; raise `GrantRefused`."""
    held = snapshot.grants.value.pods.get(uid)
    if held is None:
        return ()
    functions = {function.address: function for function in _functions(snapshot)}
    found = matches(held.grant, _devices(snapshot))
    every = chain.from_iterable(_of_match(match, functions) for match in found)
    return tuple(dict.fromkeys(every))


def _of_match(match: Match, functions: Mapping[str, RdmaFunction]) -> Iterator[DeviceNodes]:
    device, part = match.device, match.partition
    if match.entry.vfs:  # the physical function is not granted with them
        yield from (_function(address, functions) for address in match.entry.vfs)
    elif device.kind is DeviceKind.RDMA:
        verbs = tuple(node for node in device.nodes if "/uverbs" in node.path)
        now = functions.get(device.key)
        yield DeviceNodes(
            name=device.key, nodes=now.verbs if now and now.verbs else verbs, one_of=True
        )
        # the other ports of a bond, which have no RDMA device, or one that serves as well
        yield from (DeviceNodes(name=address, optional=True) for address in _members(device))
    elif part is None and match.entry.template:  # the maker's runtime cuts the slice by itself
        yield DeviceNodes(name=f"{device.key} {match.entry.template}")
        yield from (DeviceNodes(name=one.uuid, optional=True) for one in device.partitions)
    else:
        if part is None or part.with_card:
            yield DeviceNodes(name=device.key, nodes=device.nodes)
        if part is not None:
            yield DeviceNodes(name=part.uuid, nodes=part.nodes)


def _function(address: str, functions: Mapping[str, RdmaFunction]) -> DeviceNodes:
    found = functions.get(address)
    return DeviceNodes(name=address, nodes=found.verbs if found else (), one_of=True)


def _members(device: VendorDevice) -> tuple[str, ...]:
    listed = dict(device.facts).get("members", "").split(",")
    return tuple(address for address in listed if address and address != device.key)


def _devices(snapshot: NodeSnapshot) -> Iterable[VendorDevice]:
    return (device.info for device in snapshot.devices.value.devices)


def _functions(snapshot: NodeSnapshot) -> Iterator[RdmaFunction]:
    for means in snapshot.means.value.vendors.values():
        yield from means.functions


def cards_of(snapshot: NodeSnapshot) -> Cards:
    """Return what each device's own node belongs to; a node of several devices identifies none."""
    owned = tuple(dict.fromkeys(_owned(snapshot)))
    holders = Counter(numbers for numbers, _ in owned)
    return {numbers: name for numbers, name in owned if holders[numbers] == 1}


def _owned(snapshot: NodeSnapshot) -> Iterator[tuple[Numbers, str]]:
    for device in _devices(snapshot):
        yield from ((numbers, device.key) for numbers in _numbers(device.nodes))
        for part in device.partitions:
            yield from ((numbers, part.uuid) for numbers in _numbers(part.nodes))
    for function in _functions(snapshot):
        yield from ((numbers, function.address) for numbers in _numbers(function.verbs))


def _numbers(nodes: Iterable[DeviceNode]) -> Iterator[Numbers]:
    return ((node.major, node.minor) for node in nodes)


def pods_with_cards(snapshot: NodeSnapshot) -> Mapping[str, PodGrant]:
    """Return which pod an accelerator, or a slice of one, was granted to, by its name.

    RDMA devices are left out: other plug-ins share them among pods.
    """
    devices = tuple(one for one in _devices(snapshot) if one.kind is not DeviceKind.RDMA)
    holders: dict[str, PodGrant] = {}
    for pod in snapshot.grants.value.pods.values():
        try:
            found = matches(pod.grant, devices)
        except GrantRefused:
            continue  # a slice that is gone belongs to nobody
        for match in found:
            name = match.partition.uuid if match.partition else match.device.key
            holders.setdefault(name, pod)
    return holders


def assigned_devices(
    snapshot: NodeSnapshot, given: Allocations, target: Target
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
        device = devices.get(one.hold.key)
        if one.uid != target.pod.uid or one.type in types or device is None:
            continue
        required = one.resource in ours and one.container == target.name
        for nodes in _of_match(_match(one, device), functions):
            optional = nodes.optional or not required
            if nodes.name not in found or not optional:
                found[nodes.name] = replace(nodes, optional=optional)
    return tuple(found.values())


def _match(one: Allocation, device: VendorDevice) -> Match:
    piece = one.hold.piece.partition(REPLICA)[0]
    part = next((part for part in device.partitions if part.uuid == piece), None)
    entry = GrantedDevice(type=one.type, vfs=one.hold.functions)
    return Match(entry=entry, device=device, partition=part)
