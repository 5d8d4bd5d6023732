"""Admission of a container, for its devices: choose, ask, allocate, merge, ask before the start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from grpc import aio

from proto.gen import deviceplugin_v1beta1_pb2 as pb
from tests.kubelet.checkpoint import Allocation
from tests.kubelet.endpoint import Endpoint
from tests.kubelet.rules import Nodes, hints, split, taken

START_S = 30.0


class NotAdmitted(Exception):
    """The pod fails; the text is the kubelet's."""


@dataclass(slots=True)
class Admitted:
    """What the runtime is told of the container, after all resources were merged."""

    envs: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, pb.Mount] = field(default_factory=dict)
    devices: dict[str, pb.DeviceSpec] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    cdi: list[str] = field(default_factory=list)
    ids: dict[str, list[str]] = field(default_factory=dict)  # by resource

    def merge(self, response: pb.ContainerAllocateResponse) -> list[str]:
        """Add one resource's answer; the first word counts. Return where two differ."""
        pairs: list[tuple[dict[str, object], Mapping[str, object]]] = [
            (_any(self.envs), dict(response.envs)),
            (_any(self.annotations), dict(response.annotations)),
            (_any(self.mounts), {one.container_path: one for one in response.mounts}),
            (_any(self.devices), {one.container_path: one for one in response.devices}),
        ]
        differ = []
        for ours, theirs in pairs:
            differ += [key for key, value in theirs.items() if ours.get(key, value) != value]
            for key, value in theirs.items():
                ours.setdefault(key, value)
        self.cdi += [one.name for one in response.cdi_devices if one.name not in self.cdi]
        return differ


def _any(
    known: dict[str, str] | dict[str, pb.Mount] | dict[str, pb.DeviceSpec],
) -> dict[str, object]:
    return known  # type: ignore[return-value] # only values of its own kind are put into it


def available(endpoint: Endpoint | None, resource: str, used: set[str], needed: int) -> set[str]:
    """Return the devices that are free; raise `NotAdmitted` in the kubelet's words."""
    if endpoint is None:
        raise NotAdmitted(f"cannot allocate unregistered device {resource}")
    healthy = endpoint.healthy()
    if not healthy:
        raise NotAdmitted(
            f"no healthy devices present; cannot allocate unhealthy devices {resource}"
        )
    free = healthy - used
    if len(free) < needed:
        raise NotAdmitted(
            f"requested number of devices unavailable for {resource}. "
            f"Requested: {needed}, Available: {len(free)}"
        )
    return free


def best_mask(nodes: Nodes, free: set[str], needed: int) -> frozenset[int] | None:
    """Return the affinity that a policy of `best-effort` settles on for one resource."""
    found = hints(nodes, free, needed)
    if not found:
        return None
    return min(found, key=lambda hint: (not hint[1], len(hint[0]), sorted(hint[0])))[0]


async def choose(
    endpoint: Endpoint, free: set[str], needed: int, mask: frozenset[int] | None
) -> list[str]:
    """Return the devices that are taken, after the plug-in was asked which it prefers."""
    advice: dict[frozenset[str], set[str]] = {}
    parts = split(endpoint.nodes(), free, mask)
    questions = [parts[0]] if needed < len(parts[0]) else [free]
    for some in questions:
        if endpoint.options.get_preferred_allocation_available:
            advice[frozenset(some)] = await _preferred(endpoint, some, needed)
    return taken(parts, needed, lambda some: advice.get(frozenset(some), set()))


async def _preferred(endpoint: Endpoint, some: set[str], needed: int) -> set[str]:
    request = pb.PreferredAllocationRequest()
    request.container_requests.add(available_deviceIDs=some, allocation_size=needed)
    try:
        answer = await endpoint.call("GetPreferredAllocation", request.SerializeToString())
    except aio.AioRpcError as error:
        raise NotAdmitted(f"device plugin GetPreferredAllocation rpc failed: {error}") from error
    responses = pb.PreferredAllocationResponse.FromString(answer).container_responses
    return set(responses[0].deviceIDs) if responses else set()


async def allocate(endpoint: Endpoint, pod_uid: str, container: str, ids: list[str]) -> Allocation:
    """Have the plug-in allocate these for one container."""
    request = pb.AllocateRequest()
    request.container_requests.add(devices_ids=ids)
    try:
        answer = await endpoint.call("Allocate", request.SerializeToString())
    except aio.AioRpcError as error:
        code = error.code().name
        raise NotAdmitted(f"Allocate failed due to rpc error: {code} {error.details()}") from error
    responses = pb.AllocateResponse.FromString(answer).container_responses
    if not responses:
        raise NotAdmitted("No containers return in allocation response")
    nodes = endpoint.nodes()
    return Allocation(
        pod_uid, container, endpoint.resource, {one: nodes[one] for one in ids}, responses[0]
    )


async def before_start(endpoint: Endpoint, ids: list[str]) -> None:
    """Ask the plug-in before the start, if it wants to be asked; raise `NotAdmitted`."""
    if not endpoint.options.pre_start_required:
        return
    request = pb.PreStartContainerRequest(devices_ids=ids).SerializeToString()
    try:
        await endpoint.call("PreStartContainer", request, START_S)
    except aio.AioRpcError as error:
        raise NotAdmitted(f"PreStartContainer rpc failed: {error.details()}") from error
