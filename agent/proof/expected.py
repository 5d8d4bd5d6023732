"""What a container must have, and what nobody else's it may have: from the snapshot. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from agent.hooks.base import Hook
from agent.model.device import DeviceNode, VendorDevice
from agent.model.grant.container import Container
from agent.model.grant.edits import ContainerEdits, NodeEdit
from agent.model.grant.granted import matches
from agent.model.grant.host import RdmaFunction
from agent.model.grant.refusal import GrantRefused
from agent.model.runtime.adjustment import Adjustment
from agent.model.runtime.request import HookRequest, Stage
from agent.model.runtime.seen import SandboxSeen
from agent.model.snapshot import NodeSnapshot
from agent.proof.judge import Cards, Numbers


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for. `problem`: why it cannot be told.

    `own` are the nodes of the granted devices, by number: a maker's runtime, told by a variable
    alone, shows them too.
    """

    edits: ContainerEdits = ContainerEdits()
    own: frozenset[Numbers] = frozenset()
    problem: str = ""

    @property
    def nothing(self) -> bool:
        """Say whether there is nothing that a look could find or miss."""
        edits = self.edits
        return not (edits.nodes or edits.env or edits.mounts or edits.rlimits or self.problem)


def expected_of(hook: Hook, snapshot: NodeSnapshot, pod: SandboxSeen, name: str) -> Expected:
    """Return what the hook of devices gives such a container now.

    What the container's own specification has besides is not known here: nothing of it is asked.
    """
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
        answer: Adjustment = hook.adjust(request, snapshot)
        own = frozenset(_own(snapshot, pod.uid))
    except GrantRefused as refused:
        return Expected(problem=str(refused))
    if answer.failed:
        return Expected(problem=answer.failed)
    named, unknown = _behind_names(snapshot, answer.edits.cdi)
    if unknown:
        return Expected(problem=f"nobody describes the CDI name {unknown}")
    nodes = dict.fromkeys((*answer.edits.nodes, *named))
    return Expected(
        edits=msgspec.structs.replace(answer.edits, nodes=tuple(nodes)),
        own=own,
    )


def _own(snapshot: NodeSnapshot, uid: str) -> Iterator[Numbers]:
    """Yield the numbers of all nodes of what a pod was granted: cards, slices, functions."""
    held = snapshot.grants.value.pods.get(uid)
    if held is None:
        return
    functions = set(chain.from_iterable(entry.vfs for entry in held.grant.devices))
    for match in matches(held.grant, _devices(snapshot)):
        if match.entry.vfs:
            continue  # the card itself is another's
        part = match.partition
        yield from _numbers((*match.device.nodes, *(part.nodes if part else ())))
        functions.add(match.device.bus_id or "")
    for function in _functions(snapshot):
        if function.address in functions:
            yield from _numbers(function.verbs)


def _numbers(nodes: Iterable[DeviceNode]) -> Iterator[Numbers]:
    return ((node.major, node.minor) for node in nodes)


def _devices(snapshot: NodeSnapshot) -> Iterator[VendorDevice]:
    for state in snapshot.vendors:
        inventory = state.inventory.value
        yield from inventory.devices if inventory else ()


def _functions(snapshot: NodeSnapshot) -> Iterator[RdmaFunction]:
    for means in snapshot.means.value.vendors.values():
        yield from means.functions


def cards_of(snapshot: NodeSnapshot) -> Cards:
    """Return what each device's own node belongs to; a node of several devices tells nothing."""
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


def _behind_names(
    snapshot: NodeSnapshot, names: tuple[str, ...]
) -> tuple[tuple[NodeEdit, ...], str]:
    """Return the nodes that CDI names stand for, or the first name that no spec has."""
    found: list[NodeEdit] = []
    for name in names:
        nodes = _described(snapshot, name)
        if nodes is None:
            return (), name
        found += (
            NodeEdit(host_path=n.path, path=n.path, major=n.major, minor=n.minor) for n in nodes
        )
    return tuple(found), ""


def _described(snapshot: NodeSnapshot, name: str) -> tuple[DeviceNode, ...] | None:
    kind, _, device = name.partition("=")
    for means in snapshot.means.value.vendors.values():
        for spec in means.cdi:
            for one in spec.devices if spec.kind == kind else ():
                if one.name == device:
                    nodes = (means.node(path) for path in one.nodes)
                    return tuple(node for node in nodes if node is not None)
    return None
