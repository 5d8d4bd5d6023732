"""Decides what a container gets: the devices that a scheduler allocated, else the kubelet's. Pure.

`Allocator` combines the decisions of this package and caches what depends on devices only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from agent.allocation.check import current_allocations
from agent.allocation.device_scores import PairScores, score_pairs
from agent.allocation.index import AllocationIndex
from agent.allocation.injection_mode import AUTO, with_injection_mode
from agent.allocation.preferred_devices import TooFewDevices
from agent.config.containers import DevicePluginSettings
from agent.deviceplugin.occupancy import check_occupancy, check_stored_nodes
from agent.deviceplugin.pod_devices import CandidatePod, DeviceAccounting, find_candidates
from agent.deviceplugin.preferred import PreferenceRequest, select_preferred
from agent.deviceplugin.resource_builder import (
    ResourceBuilder,
    VendorProblems,
)
from agent.deviceplugin.resources import (
    POD_UNKNOWN,
    AllocationError,
    ContainerAllocation,
    KubeletResource,
    ResourceUnits,
    UnknownPodError,
    allocation_of_units,
)
from agent.errors import BadConfig
from agent.snapshot.allocation import AllocationRefused, DeviceAllocation, RefusalReason
from agent.snapshot.container import ContainerSpec
from agent.snapshot.device import Pairs, VendorDevice
from agent.snapshot.device_plugin import DeviceUnit
from agent.snapshot.edits import ContainerEdits, ContainerNote
from agent.snapshot.host_devices import HostDevices
from agent.snapshot.node import NodeSnapshot, SnapshotMemo
from agent.snapshot.vendor import DeviceVendor, injecting_vendors, kubelet_vendors, slicing_vendors
from agent.wire_formats.device_checkpoint import EXCHANGE_ANNOTATION

EditFunction = Callable[
    [Sequence[VendorDevice], DeviceAllocation, ContainerSpec, HostDevices], ContainerEdits
]

AMBIGUOUS_POD = "AmbiguousPod"
UNKNOWN_DEVICE = "UnknownDevice"
DEVICE_EXCHANGED = "DeviceExchanged"
TOO_MANY_REPLICAS = "TooManyReplicas"
CDI_ANNOTATION = "cdi.k8s.io/xpu-agent_"  # for runtimes whose kubelet does not support CDI names
MAX_ANNOTATION = 63  # characters after the slash
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]")


class AllocationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One container's request and the settings for injection."""

    ids: tuple[str, ...]
    injection: str = "auto"  # auto, cdi, nodes, env
    is_single_replica: bool = False  # one replica at most
    is_last_try: bool = False  # the caller does not retry with a newer snapshot


def allocate_container(
    request: AllocationRequest,
    resource_units: ResourceUnits,
    offered: Mapping[str, ResourceUnits],
    snapshot: NodeSnapshot,
    edits: EditFunction,
    index: AllocationIndex | None = None,
) -> ContainerAllocation:
    """Return what the container gets; raises `AllocationError` or `AllocationRefused`.

    The scheduler's allocation to the only candidate pod overrides the kubelet's choice. With
    several candidates, the container gets what all of them have in common while the NRI plug-in
    adds the rest by pod uid; without NRI the request is refused. A pod without an allocation whose
    id stands for a device in use gets a free device that the kubelet counts as used; `offered` are
    all resources. `UnknownPodError` asks for a retry with a newer snapshot. `index` is a cache.
    """
    units = _requested_units(request, resource_units)
    builder = _AnswerBuilder(request, resource_units, snapshot, edits)
    candidates = find_candidates(
        resource_units.name, len(request.ids), resource_units.devices, snapshot, index
    )
    if not candidates:
        _refuse_unknown_pod(request, resource_units, snapshot)
    elif any(candidate.has_allocation for candidate in candidates):
        return _answer_from_allocations(
            candidates, resource_units, snapshot, builder, last=request.is_last_try
        )
    uids = [candidate.pod.uid for candidate in candidates]
    exchange = DeviceAccounting(
        resource_units, offered, snapshot, request.ids, uids
    ).exchange_units(units)
    if exchange is None:
        text = f"of {', '.join(request.ids)[:200]} a device is in use by a pod that was granted "
        text += "it, or got it in exchange, and no other is free"
        raise _refusal(RefusalReason.DEVICE_TAKEN.value, text, last=request.is_last_try)
    given_units = [resource_units.units[exchange[unit.id]] for unit in units]
    answer = builder.answer(
        builder.edits(allocation_of_units(given_units)), uids[0] if len(uids) == 1 else ""
    )
    pairs = tuple(
        sorted((name, given_id) for name, given_id in exchange.items() if name != given_id)
    )
    return _add_exchange(answer, resource_units, candidates, pairs) if pairs else answer


def _add_exchange(
    answer: ContainerAllocation,
    resource_units: ResourceUnits,
    candidates: Sequence[CandidatePod],
    pairs: Pairs,
) -> ContainerAllocation:
    """Return the answer with its exchanges, for the kubelet's checkpoint and as an event."""
    pods = [candidate.pod for candidate in candidates[:4]]
    names = ", ".join(f"{pod.namespace}/{pod.name}" for pod in pods)
    exchanges = ", ".join(f"{given_id} in place of {name}" for name, given_id in pairs)
    text = f"{resource_units.name}: {names or 'a pod'} was given {exchanges}, which another pod "
    text += "has: the kubelet accounts the device that it chose"
    value = msgspec.json.encode(dict(pairs)).decode()
    return replace(
        answer,
        edits=replace(
            answer.edits,
            notes=(*answer.edits.notes, ContainerNote(reason=DEVICE_EXCHANGED, message=text)),
        ),
        annotations=(
            *answer.annotations,
            (_annotation_key(EXCHANGE_ANNOTATION, resource_units.name), value),
        ),
        exchanges=pairs,
    )


def _annotation_key(prefix: str, resource: str) -> str:
    """Return an annotation key that no two resources of a container share."""
    domain, _, start = prefix.partition("/")
    return (
        f"{domain}/{_UNSAFE_CHARACTERS.sub('-', start + resource)[:MAX_ANNOTATION].rstrip('._-')}"
    )


def _requested_units(
    request: AllocationRequest, resource_units: ResourceUnits
) -> tuple[DeviceUnit, ...]:
    unknown = [name for name in request.ids if name not in resource_units.units]
    if unknown:
        raise AllocationError(
            UNKNOWN_DEVICE, f"{resource_units.name} has no device {unknown[0][:80]!r}"
        )
    units = tuple(resource_units.units[name] for name in dict.fromkeys(request.ids))
    if (
        request.is_single_replica
        and len(units) > 1
        and any(unit.replica is not None for unit in units)
    ):
        text = f"maximum request size for shared resources is 1; found {len(units)}"
        raise AllocationError(TOO_MANY_REPLICAS, text)
    return units


def _refuse_unknown_pod(
    request: AllocationRequest, resource_units: ResourceUnits, snapshot: NodeSnapshot
) -> None:
    """Refuse a request for an unknown pod; without a cluster there are no other pods."""
    if not snapshot.cluster.is_clustered:
        return
    text = (
        f"no pod that waits for {len(request.ids)} of {resource_units.name} is known on this node"
    )
    if not request.is_last_try:
        raise UnknownPodError(POD_UNKNOWN, text)
    if not snapshot.runtime.value.is_synchronized:
        advice = "let the agent reach the API server or the kubelet, or turn NRI on"
        raise AllocationError(
            POD_UNKNOWN, f"{text}, and it may have been granted other devices: {advice}"
        )


def _refusal(reason: str, text: str, *, last: bool) -> AllocationError:
    """Return a refusal, which is final at the last try: the kubelet fails the pod.

    In a newer snapshot the user of a device may have ended, or another pod may have started.
    """
    return AllocationError(reason, text) if last else UnknownPodError(reason, text)


def _answer_from_allocations(
    candidates: Sequence[CandidatePod],
    resource_units: ResourceUnits,
    snapshot: NodeSnapshot,
    builder: _AnswerBuilder,
    *,
    last: bool,
) -> ContainerAllocation:
    pods = [candidate.pod for candidate in candidates[:4]]
    names = ", ".join(f"{pod.namespace}/{pod.name}" for pod in pods)
    if len(candidates) == 1:
        (candidate,) = candidates
        if candidate.refusal:
            raise _refusal(candidate.refusal, candidate.message, last=last)
        return builder.answer(builder.edits(candidate.allocation, candidate), candidate.pod.uid)
    if all(candidate.has_allocation and not candidate.refusal for candidate in candidates):
        answers = [builder.edits(candidate.allocation, candidate) for candidate in candidates]
        all_equal = all(answer == answers[0] for answer in answers)
        if all_equal or snapshot.runtime.value.is_synchronized:
            return builder.answer(common_edits(answers), "")
    advice = "turn NRI on, or let pods that ask for one resource start one after another"
    text = f"{resource_units.name} may be asked for by each of {names}: {advice}"
    raise _refusal(AMBIGUOUS_POD, text, last=last)


class _AnswerBuilder:
    """Builds the answer from the vendor's edits."""

    def __init__(
        self,
        request: AllocationRequest,
        resource_units: ResourceUnits,
        snapshot: NodeSnapshot,
        edits: EditFunction,
    ) -> None:
        self._units = resource_units
        self._edits = edits
        self._is_nri_active = snapshot.runtime.value.is_synchronized
        host_devices = snapshot.host_devices.value.vendors.get(resource_units.vendor)
        if host_devices is None:
            text = f"what this host has for containers of {resource_units.vendor} was not read yet"
            raise _refusal(RefusalReason.HOST_NOT_READ_YET.value, text, last=request.is_last_try)
        self._injection = request.injection
        self._host_devices = with_injection_mode(
            host_devices, resource_units.vendor, request.injection
        )

    def edits(
        self, allocation: DeviceAllocation, candidate: CandidatePod | None = None
    ) -> ContainerEdits:
        """Return the edits of an allocation; while NRI is active, hooks set limits of shares."""
        container = ContainerSpec()
        if candidate is not None and not self._is_nri_active:
            container = ContainerSpec(
                name=candidate.container,
                pod_uid=candidate.pod.uid,
                labels=candidate.pod.labels,
                annotations=candidate.pod.annotations,
                host_network=candidate.pod.host_network,
            )
        edits = self._edits(self._units.devices, allocation, container, self._host_devices)
        return self._with_cdi_names(edits, allocation, container) if edits.nodes else edits

    def _with_cdi_names(
        self, edits: ContainerEdits, allocation: DeviceAllocation, container: ContainerSpec
    ) -> ContainerEdits:
        """Add the vendor's CDI names to bare nodes, which bring no driver libraries.

        Whether the runtime supports CDI names is unknown. If it does, it replaces the nodes by
        those of the CDI file; otherwise it ignores the names.
        """
        if self._injection != AUTO:
            return edits
        try:
            cdi_edits = self._edits(
                self._units.devices,
                allocation,
                container,
                replace(self._host_devices, cdi_enabled=True),
            )
        except AllocationRefused:
            return edits
        return replace(edits, cdi=cdi_edits.cdi, notes=cdi_edits.notes) if cdi_edits.cdi else edits

    def answer(self, edits: ContainerEdits, pod_uid: str) -> ContainerAllocation:
        """Return the answer with CDI names both as field and annotation.

        Runtimes drop the second.
        """
        annotations: tuple[tuple[str, str], ...] = ()
        if edits.cdi:
            key = _annotation_key(CDI_ANNOTATION, self._units.name)
            annotations = ((key, ",".join(edits.cdi)),)
        return ContainerAllocation(edits=edits, annotations=annotations, pod_uid=pod_uid)


def common_edits(answers: Sequence[ContainerEdits]) -> ContainerEdits:
    """Return the edits that all answers have in common, in the order of the first."""
    first, *other_answers = answers

    def common_items(name: str) -> tuple[object, ...]:
        other_values = [getattr(answer, name) for answer in other_answers]
        return tuple(
            item for item in getattr(first, name) if all(item in values for values in other_values)
        )

    fields = {name: common_items(name) for name in first.__struct_fields__}
    return replace(first, **fields)


UNKNOWN_RESOURCE = "UnknownResource"


class Allocator:
    """Decides for the device plug-in by the settings; raises `BadConfig` if they are wrong.

    `vendors` are all loaded vendors. Results that depend on devices only are cached.
    """

    def __init__(self, settings: DevicePluginSettings, vendors: Mapping[str, DeviceVendor]) -> None:
        if absent := sorted(set(settings.vendors) - vendors.keys()):
            raise BadConfig(f"device_plugin.vendors: {absent[0]} is switched off in discovery")
        serving, injecting = kubelet_vendors(vendors), injecting_vendors(vendors)
        if absent := sorted(set(settings.vendors) - (serving.keys() & injecting.keys())):
            raise BadConfig(f"device_plugin.vendors: {absent[0]} offers nothing to the kubelet")
        self._settings = settings
        self._vendors = injecting
        self._builder = ResourceBuilder(settings, serving)
        self._index = AllocationIndex(slicing_vendors(vendors).values())
        self._resource_table = SnapshotMemo(
            lambda now: (now.devices.value,), lambda now: self._builder.build(now.devices.value)
        )
        self._resources = SnapshotMemo(
            lambda now: (now.devices.value,),
            lambda now: self._resource_table(now).kubelet_resources(
                check_start=settings.check_occupancy
            ),
        )
        self._resource_lists = SnapshotMemo(_list_inputs, self._build_lists)
        self._allocations = SnapshotMemo(
            _allocation_inputs, lambda now: current_allocations(now, self._index)
        )
        self._pair_scores = SnapshotMemo(
            lambda now: (now.devices.value, now.pci.value), self._score_pairs
        )

    def resources(self, snapshot: NodeSnapshot) -> tuple[KubeletResource, ...]:
        """Return the resources offered now, by name; none of vendors that have not answered yet."""
        return self._resource_lists(self._with_current_allocations(snapshot))

    def problems(self, snapshot: NodeSnapshot) -> VendorProblems:
        """Return why resources that the settings ask for are not offered, by vendor."""
        return self._resource_table(snapshot).problems

    def select_preferred(
        self,
        resource: str,
        available: tuple[str, ...],
        required: tuple[str, ...],
        size: int,
        snapshot: NodeSnapshot,
        *,
        last: bool = False,
    ) -> tuple[str, ...]:
        """Return the best `size` ids of those available, including all required ones."""
        snapshot = self._with_current_allocations(snapshot)
        request = PreferenceRequest(
            available=available, required=required, size=size, is_last_try=last
        )
        packed = self._settings.replicas_policy == "packed"
        offered = self._resource_table(snapshot).units_by_resource
        resource_units, scores = (
            self._units_of_resource(resource, snapshot),
            self._pair_scores(snapshot),
        )
        try:
            return select_preferred(
                request, resource_units, offered, snapshot, scores, self._index, packed=packed
            )
        except TooFewDevices as error:
            raise AllocationError("NotEnoughDevices", str(error)) from error

    def allocate(
        self, resource: str, ids: tuple[str, ...], snapshot: NodeSnapshot, *, last: bool = False
    ) -> ContainerAllocation:
        """Return what a container gets; raises `AllocationError` or `AllocationRefused`."""
        snapshot = self._with_current_allocations(snapshot)
        resource_units = self._units_of_resource(resource, snapshot)
        device_plugin = self._settings
        request = AllocationRequest(
            ids=ids,
            injection=device_plugin.injection,
            is_single_replica=device_plugin.fail_requests_greater_than_one,
            is_last_try=last,
        )
        offered, edits = (
            self._resource_table(snapshot).units_by_resource,
            self._vendors[resource_units.vendor].edits,
        )
        return allocate_container(request, resource_units, offered, snapshot, edits, self._index)

    def check_start(self, resource: str, ids: tuple[str, ...], snapshot: NodeSnapshot) -> None:
        """Raise a refusal if a container with these ids must not start.

        It has the node of another device, or another pod's process runs on a whole card of these.
        """
        if self._settings.check_occupancy:
            resource_units = self._units_of_resource(resource, snapshot)
            check_stored_nodes(ids, resource_units, snapshot)
            check_occupancy(ids, resource_units, self._with_current_allocations(snapshot))

    def _with_current_allocations(self, snapshot: NodeSnapshot) -> NodeSnapshot:
        """Return the snapshot with allocations of now instead of those of the last check."""
        view = self._allocations(snapshot)
        if view is snapshot.allocations.value:
            return snapshot
        return replace(snapshot, allocations=replace(snapshot.allocations, value=view))

    def _build_lists(self, snapshot: NodeSnapshot) -> tuple[KubeletResource, ...]:
        table = self._resource_table(snapshot)
        resources = self._resources(snapshot)
        allocations = snapshot.served.value.held
        if not snapshot.allocations.value.held and not any(
            allocation.exchanges for allocation in allocations
        ):
            return resources  # the kubelet's account equals the agent's
        return tuple(
            withdraw_ids(
                resource, DeviceAccounting(one, table.units_by_resource, snapshot).ids_to_withdraw()
            )
            for resource, one in zip(resources, table.units_by_resource.values(), strict=True)
        )

    def _units_of_resource(self, resource: str, snapshot: NodeSnapshot) -> ResourceUnits:
        resource_units = self._resource_table(snapshot).units_by_resource.get(resource)
        if resource_units is None:
            raise AllocationError(UNKNOWN_RESOURCE, f"{resource} is not offered by this agent now")
        return resource_units

    def _score_pairs(self, snapshot: NodeSnapshot) -> PairScores:
        view = snapshot.devices.value
        # only devices that pods can have from here: each pair costs time
        served = replace(view, devices=self._builder.served_devices(view))
        return score_pairs(served, snapshot.pci.value)


def withdraw_ids(resource: KubeletResource, ids: frozenset[str]) -> KubeletResource:
    """Return the resource with these ids unhealthy, so that the kubelet gives them to no pod."""
    if not ids:
        return resource
    return replace(
        resource,
        devices=tuple(
            replace(device, healthy=False) if device.id in ids else device
            for device in resource.devices
        ),
        withdrawn_ids=tuple(device.id for device in resource.devices if device.id in ids),
    )


def _allocation_inputs(now: NodeSnapshot) -> tuple[object, ...]:
    """Return the inputs of the check of allocations."""
    cluster = now.cluster
    return (
        now.allocations.value,
        now.devices.value,
        now.runtime.value,
        now.served.value.held,
        cluster.pods,
        cluster.has_pod_list,
        cluster.deleted_pods,
    )


def _list_inputs(now: NodeSnapshot) -> tuple[object, ...]:
    """Return the inputs of the lists for the kubelet."""
    cluster = now.cluster
    return (
        now.devices.value,
        now.allocations.value,
        now.served.value.held,
        cluster.pods,
        cluster.deleted_pods,
        cluster.kubelet.value,
    )
