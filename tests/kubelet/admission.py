"""Admission of a container, for its devices: choose, ask, allocate, merge, ask before the start."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from grpc import aio

from proto.gen import deviceplugin_v1beta1_pb2 as pb
from tests.kubelet.checkpoint import Allocation
from tests.kubelet.endpoint import Endpoint
from tests.kubelet.rules import Nodes, choose_devices, hints, split

START_S = 30.0


class NotAdmitted(Exception):
    """The pod fails for good: its phase is Failed, and nobody is asked for it again.

    The text is the kubelet's, the `reason` that of the pod's status.
    """

    reason = "UnexpectedAdmissionError"

    @classmethod
    def rejected(cls, why: str) -> NotAdmitted:
        """Return the rejection with the kubelet's words around the cause."""
        return cls(f"Pod was rejected: Allocate failed due to {why}, which is unexpected")


class NotStarted(Exception):
    """A container waits as `CreateContainerConfigError`, and is tried again."""


class Kind(enum.Enum):
    """When a container runs: that decides who has its devices after it."""

    INIT = "init"
    SIDECAR = "sidecar"  # an init container that goes on
    MAIN = "main"


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod, as far as devices are concerned."""

    name: str
    wanted: Mapping[str, int]  # by resource
    kind: Kind = Kind.MAIN


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
            (_any(self.mounts), {mount.container_path: mount for mount in response.mounts}),
            (_any(self.devices), {device.container_path: device for device in response.devices}),
        ]
        differ = []
        for own_values, theirs in pairs:
            differ += [key for key, value in theirs.items() if own_values.get(key, value) != value]
            for key, value in theirs.items():
                own_values.setdefault(key, value)
        self.cdi += [
            cdi_device.name
            for cdi_device in response.cdi_devices
            if cdi_device.name not in self.cdi
        ]
        return differ


def _any(
    entries: dict[str, str] | dict[str, pb.Mount] | dict[str, pb.DeviceSpec],
) -> dict[str, object]:
    return entries  # type: ignore[return-value] # only values of its own kind are put into it


def available(endpoint: Endpoint | None, resource: str, used: set[str], needed: int) -> set[str]:
    """Return the devices that are free; raise `NotAdmitted` in the kubelet's words."""
    if endpoint is None:
        raise NotAdmitted.rejected(f"cannot allocate unregistered device {resource}")
    healthy = endpoint.healthy()
    if not healthy:
        raise NotAdmitted.rejected(
            f"no healthy devices present; cannot allocate unhealthy devices {resource}"
        )
    free = healthy - used
    if len(free) < needed:
        raise NotAdmitted.rejected(
            f"requested number of devices unavailable for {resource}. "
            f"Requested: {needed}, Available: {len(free)}"
        )
    return free


def best_mask(nodes: Nodes, free: set[str], needed: int) -> frozenset[int] | None:
    """Return the affinity that a policy of `best-effort` settles on for one resource."""
    result = hints(nodes, free, needed)
    if not result:
        return None
    return min(result, key=lambda hint: (not hint[1], len(hint[0]), sorted(hint[0])))[0]


async def choose(
    endpoint: Endpoint,
    free: set[str],
    needed: int,
    mask: frozenset[int] | None,
    reused: frozenset[str] = frozenset(),
    own: Collection[str] = (),
) -> list[str]:
    """Return the devices that are taken beside those that are reused.

    The plug-in is asked which it prefers, unless the aligned devices are as many as needed. Its
    word is advice: with enough ids in `own` those are taken.
    """
    parts = split(endpoint.nodes(), free, mask)
    advice: set[str] = set()
    if endpoint.options.get_preferred_allocation_available and needed != len(parts[0]):
        some = parts[0] if needed < len(parts[0]) else free
        advice = await _preferred(endpoint, some | reused, reused, needed + len(reused))
    return choose_devices(parts, needed, lambda _: set(own) if len(own) >= needed else advice)


async def _preferred(
    endpoint: Endpoint, some: set[str], reused: frozenset[str], size: int
) -> set[str]:
    request = pb.PreferredAllocationRequest()
    request.container_requests.add(
        available_deviceIDs=some, must_include_deviceIDs=reused, allocation_size=size
    )
    try:
        answer = await endpoint.call("GetPreferredAllocation", request.SerializeToString())
    except aio.AioRpcError as error:
        text = f"device plugin GetPreferredAllocation rpc failed with err: {_described(error)}"
        raise NotAdmitted.rejected(text) from error
    responses = pb.PreferredAllocationResponse.FromString(answer).container_responses
    return set(responses[0].deviceIDs) if responses else set()


def _described(error: aio.AioRpcError) -> str:
    """Return an error as Go prints it."""
    code = "".join(word.capitalize() for word in error.code().name.split("_"))
    return f"rpc error: code = {code} desc = {error.details()}"


async def allocate(endpoint: Endpoint, pod_uid: str, container: str, ids: list[str]) -> Allocation:
    """Have the plug-in allocate these for one container."""
    request = pb.AllocateRequest()
    request.container_requests.add(devices_ids=ids)
    try:
        answer = await endpoint.call("Allocate", request.SerializeToString())
    except aio.AioRpcError as error:
        raise NotAdmitted.rejected(_described(error)) from error
    responses = pb.AllocateResponse.FromString(answer).container_responses
    if not responses:
        raise NotAdmitted.rejected("no containers return in allocation response ")
    nodes = endpoint.nodes()
    return Allocation(
        pod_uid, container, endpoint.resource, {one: nodes[one] for one in ids}, responses[0]
    )


async def before_start(endpoint: Endpoint, ids: list[str]) -> None:
    """Ask the plug-in before the start, if it wants to be asked; raise `NotStarted`."""
    if not endpoint.options.pre_start_required:
        return
    request = pb.PreStartContainerRequest(devices_ids=ids).SerializeToString()
    try:
        await endpoint.call("PreStartContainer", request, START_S)
    except aio.AioRpcError as error:
        text = f"device plugin PreStartContainer rpc failed with err: {_described(error)}"
        raise NotStarted(text) from error
