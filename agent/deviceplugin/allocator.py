"""What an allocation gives: the devices a scheduler granted, else those the kubelet chose. Pure.

What the kubelet is told of devices, put together from the decisions of this package.
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
from agent.deviceplugin.occupancy import check_occupancy
from agent.deviceplugin.pod_devices import CandidatePod, DeviceAccounting, find_candidates
from agent.deviceplugin.preferred import PreferenceRequest, select_preferred
from agent.deviceplugin.resource_builder import (
    ResourceBuilder,
    ResourceTable,
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
from agent.snapshot.node import DeviceView, NodeSnapshot, SnapshotMemo
from agent.snapshot.pci import PciTree
from agent.snapshot.vendor import DeviceVendor, injecting_vendors, kubelet_vendors, slicing_vendors
from agent.wire_formats.device_checkpoint import EXCHANGE_ANNOTATION

EditFunction = Callable[
    [Sequence[VendorDevice], DeviceAllocation, ContainerSpec, HostDevices], ContainerEdits
]

AMBIGUOUS_POD = "AmbiguousPod"

UNKNOWN_DEVICE = "UnknownDevice"

DEVICE_EXCHANGED = "DeviceExchanged"

TOO_MANY_REPLICAS = "TooManyReplicas"

CDI_ANNOTATION = "cdi.k8s.io/xpu-agent_"  # read by runtimes below kubelets that know no CDI names

MAX_ANNOTATION = 63  # characters behind the slash

_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]")


class AllocationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One container's request, and by which way devices get into containers."""

    ids: tuple[str, ...]
    injection: str = "auto"  # auto, cdi, nodes, env
    is_single_replica: bool = False  # no more than one replica
    is_last_try: bool = False  # there is no new try with a newer snapshot


def allocate_container(
    request: AllocationRequest,
    one: ResourceUnits,
    offered: Mapping[str, ResourceUnits],
    snapshot: NodeSnapshot,
    edits: EditFunction,
    kept: AllocationIndex | None = None,
) -> ContainerAllocation:
    """Return what the container gets; raise `NotAllocated` or `GrantRefused`.

    The grant of the one pod that can be meant wins over the kubelet's choice. Where several can,
    what all of them get alike is given while the runtime's plug-in gives the rest to each pod by
    its uid; without it nothing is guessed. A pod without a grant that is sent a device in use gets
    one that the kubelet holds for used and that nobody has; `offered` are all resources.
    `PodNotSeen` is worth a new try with a newer snapshot. `kept` saves time and changes nothing.
    """
    units = _requested_units(request, one)
    giving = _AnswerBuilder(request, one, snapshot, edits)
    found = find_candidates(one.name, len(request.ids), one.devices, snapshot, kept)
    if not found:
        _refuse_unknown_pod(request, one, snapshot)
    elif any(asker.has_allocation for asker in found):
        return _allocate_granted_devices(found, one, snapshot, giving, last=request.is_last_try)
    uids = [asker.pod.uid for asker in found]
    exchange = DeviceAccounting(one, offered, snapshot, request.ids, uids).exchange_units(units)
    if exchange is None:
        text = f"of {', '.join(request.ids)[:200]} a device is in use by a pod that was granted "
        text += "it, or got it in exchange, and no other is free"
        raise _refusal(RefusalReason.DEVICE_TAKEN.value, text, last=request.is_last_try)
    given = [one.units[exchange[unit.id]] for unit in units]
    answer = giving.answer(
        giving.edits(allocation_of_units(given)), uids[0] if len(uids) == 1 else ""
    )
    pairs = tuple(sorted((name, other) for name, other in exchange.items() if name != other))
    return _add_exchange(answer, one, found, pairs) if pairs else answer


def _add_exchange(
    answer: ContainerAllocation, one: ResourceUnits, found: Sequence[CandidatePod], pairs: Pairs
) -> ContainerAllocation:
    """Return the answer with what it exchanges, for the kubelet to keep and for people to read."""
    names = ", ".join(f"{asker.pod.namespace}/{asker.pod.name}" for asker in found[:4])
    told = ", ".join(f"{other} in place of {name}" for name, other in pairs)
    text = f"{one.name}: {names or 'a pod'} was given {told}, which another pod has: the kubelet "
    text += "accounts the device that it chose"
    value = msgspec.json.encode(dict(pairs)).decode()
    return replace(
        answer,
        edits=replace(
            answer.edits,
            notes=(*answer.edits.notes, ContainerNote(reason=DEVICE_EXCHANGED, message=text)),
        ),
        annotations=(*answer.annotations, (_annotation_key(EXCHANGE_ANNOTATION, one.name), value)),
        exchanges=pairs,
    )


def _annotation_key(prefix: str, resource: str) -> str:
    """Return a key of an annotation that no two resources of a container have in common."""
    domain, _, start = prefix.partition("/")
    return (
        f"{domain}/{_UNSAFE_CHARACTERS.sub('-', start + resource)[:MAX_ANNOTATION].rstrip('._-')}"
    )


def _requested_units(request: AllocationRequest, one: ResourceUnits) -> tuple[DeviceUnit, ...]:
    unknown = [name for name in request.ids if name not in one.units]
    if unknown:
        raise AllocationError(UNKNOWN_DEVICE, f"{one.name} has no device {unknown[0][:80]!r}")
    units = tuple(one.units[name] for name in dict.fromkeys(request.ids))
    if (
        request.is_single_replica
        and len(units) > 1
        and any(unit.replica is not None for unit in units)
    ):
        text = f"maximum request size for shared resources is 1; found {len(units)}"
        raise AllocationError(TOO_MANY_REPLICAS, text)
    return units


def _refuse_unknown_pod(
    request: AllocationRequest, one: ResourceUnits, snapshot: NodeSnapshot
) -> None:
    """Judge a request of a pod that nobody told of: without a cluster there are no others."""
    if not snapshot.cluster.is_clustered:
        return
    text = f"no pod that waits for {len(request.ids)} of {one.name} is known on this node"
    if not request.is_last_try:
        raise UnknownPodError(POD_UNKNOWN, text)
    if not snapshot.runtime.value.is_synchronized:
        do = "let the agent reach the API server or the kubelet, or turn NRI on"
        raise AllocationError(
            POD_UNKNOWN, f"{text}, and it may have been granted other devices: {do}"
        )


def _refusal(reason: str, text: str, *, last: bool) -> AllocationError:
    """Return a refusal, for good if it is the last try: a pod that is refused never runs.

    A newer snapshot may know that who had a device has ended, or that another pod has begun.
    """
    return AllocationError(reason, text) if last else UnknownPodError(reason, text)


def _allocate_granted_devices(
    found: Sequence[CandidatePod],
    one: ResourceUnits,
    snapshot: NodeSnapshot,
    giving: _AnswerBuilder,
    *,
    last: bool,
) -> ContainerAllocation:
    names = ", ".join(f"{asker.pod.namespace}/{asker.pod.name}" for asker in found[:4])
    if len(found) == 1:
        (asker,) = found
        if asker.refusal:
            raise _refusal(asker.refusal, asker.message, last=last)
        return giving.answer(giving.edits(asker.allocation, asker), asker.pod.uid)
    if all(asker.has_allocation and not asker.refusal for asker in found):
        answers = [giving.edits(asker.allocation, asker) for asker in found]
        alike = all(answer == answers[0] for answer in answers)
        if alike or snapshot.runtime.value.is_synchronized:
            return giving.answer(common_edits(answers), "")
    do = "turn NRI on, or let pods that ask for one resource start one after another"
    raise _refusal(
        AMBIGUOUS_POD, f"{one.name} may be asked for by each of {names}: {do}", last=last
    )


class _AnswerBuilder:
    """Asks the vendor what a container gets by way of the kubelet."""

    def __init__(
        self,
        request: AllocationRequest,
        one: ResourceUnits,
        snapshot: NodeSnapshot,
        edits: EditFunction,
    ) -> None:
        self._units = one
        self._edits = edits
        self._is_nri_active = snapshot.runtime.value.is_synchronized
        means = snapshot.means.value.vendors.get(one.vendor)
        if means is None:
            text = f"what this host has for containers of {one.vendor} was not read yet"
            raise _refusal(RefusalReason.HOST_NOT_READ_YET.value, text, last=request.is_last_try)
        self._injection = request.injection
        self._host_devices = with_injection_mode(means, one.vendor, request.injection)

    def edits(self, grant: DeviceAllocation, asker: CandidatePod | None = None) -> ContainerEdits:
        """Return what a grant gives; limits of shares are the hooks' while these are in force."""
        container = ContainerSpec()
        if asker is not None and not self._is_nri_active:
            container = ContainerSpec(
                name=asker.container,
                pod_uid=asker.pod.uid,
                labels=asker.pod.labels,
                annotations=asker.pod.annotations,
                host_network=asker.pod.host_network,
            )
        edits = self._edits(self._units.devices, grant, container, self._host_devices)
        return self._with_cdi_names(edits, grant, container) if edits.nodes else edits

    def _with_cdi_names(
        self, edits: ContainerEdits, grant: DeviceAllocation, container: ContainerSpec
    ) -> ContainerEdits:
        """Add the vendor's CDI names to bare nodes, which bring no libraries of the driver.

        The kubelet does not say whether the runtime takes CDI names. One that does replaces the
        nodes of a name by those of its file; one that does not passes the names over.
        """
        if self._injection != AUTO:
            return edits
        try:
            by_name = self._edits(
                self._units.devices, grant, container, replace(self._host_devices, cdi_enabled=True)
            )
        except AllocationRefused:
            return edits
        return replace(edits, cdi=by_name.cdi, notes=by_name.notes) if by_name.cdi else edits

    def answer(self, edits: ContainerEdits, pod_uid: str) -> ContainerAllocation:
        """Return the answer, CDI names in both ways that there are: runtimes drop the second."""
        annotations: tuple[tuple[str, str], ...] = ()
        if edits.cdi:
            key = _annotation_key(CDI_ANNOTATION, self._units.name)
            annotations = ((key, ",".join(edits.cdi)),)
        return ContainerAllocation(edits=edits, annotations=annotations, pod_uid=pod_uid)


def common_edits(answers: Sequence[ContainerEdits]) -> ContainerEdits:
    """Return what all answers have alike, in the order of the first."""
    first, *others = answers

    def alike(name: str) -> tuple[object, ...]:
        rest = [getattr(other, name) for other in others]
        return tuple(item for item in getattr(first, name) if all(item in one for one in rest))

    fields = {name: alike(name) for name in first.__struct_fields__}
    return replace(first, **fields)


UNKNOWN_RESOURCE = "UnknownResource"


class Allocator:
    """Decisions by the settings; `BadConfig` if they are wrong. `vendors` are those loaded.

    What follows from the devices alone is kept while these are the same objects.
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
        self._last_table: tuple[DeviceView, ResourceTable] | None = None
        self._resources = SnapshotMemo(
            lambda now: (now.devices.value,),
            lambda now, _: self._resource_table(now).kubelet_resources(
                check_start=settings.check_occupancy
            ),
        )
        self._resource_lists = SnapshotMemo(_list_inputs, lambda now, _: self._build_lists(now))
        self._allocations = SnapshotMemo(
            _allocation_inputs, lambda now, _: current_allocations(now, self._index)
        )
        self._last_board: tuple[DeviceView, PciTree, PairScores] | None = None

    def resources(self, snapshot: NodeSnapshot) -> tuple[KubeletResource, ...]:
        """Return what is offered now, by name; of vendors that have not answered yet nothing."""
        return self._resource_lists(self._with_current_allocations(snapshot))

    def problems(self, snapshot: NodeSnapshot) -> VendorProblems:
        """Return why something is not offered that the settings ask for, by vendor."""
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
        """Return the best `size` ids of those available, with all required ones."""
        snapshot = self._with_current_allocations(snapshot)
        wish = PreferenceRequest(
            available=available, required=required, size=size, is_last_try=last
        )
        packed = self._settings.replicas_policy == "packed"
        offered = self._resource_table(snapshot).units_by_resource
        one, board = self._units_of_resource(resource, snapshot), self._board(snapshot)
        try:
            return select_preferred(wish, one, offered, snapshot, board, self._index, packed=packed)
        except TooFewDevices as error:
            raise AllocationError("NotEnoughDevices", str(error)) from error

    def allocate(
        self, resource: str, ids: tuple[str, ...], snapshot: NodeSnapshot, *, last: bool = False
    ) -> ContainerAllocation:
        """Return what a container with these ids gets; raise `NotAllocated` or `GrantRefused`."""
        snapshot = self._with_current_allocations(snapshot)
        one = self._units_of_resource(resource, snapshot)
        device_plugin = self._settings
        request = AllocationRequest(
            ids=ids,
            injection=device_plugin.injection,
            is_single_replica=device_plugin.fail_requests_greater_than_one,
            is_last_try=last,
        )
        offered, edits = (
            self._resource_table(snapshot).units_by_resource,
            self._vendors[one.vendor].edits,
        )
        return allocate_container(request, one, offered, snapshot, edits, self._index)

    def check_start(self, resource: str, ids: tuple[str, ...], snapshot: NodeSnapshot) -> None:
        """Raise `NotAllocated` if another pod's process is on a whole card of these."""
        if self._settings.check_occupancy:
            check_occupancy(
                ids,
                self._units_of_resource(resource, snapshot),
                self._with_current_allocations(snapshot),
            )

    def _with_current_allocations(self, snapshot: NodeSnapshot) -> NodeSnapshot:
        """Return the snapshot with grants as of now, and not as of the last check."""
        view = self._allocations(snapshot)
        if view is snapshot.grants.value:
            return snapshot
        return replace(snapshot, grants=replace(snapshot.grants, value=view))

    def _build_lists(self, snapshot: NodeSnapshot) -> tuple[KubeletResource, ...]:
        offer = self._resource_table(snapshot)
        resources = self._resources(snapshot)
        held = snapshot.served.value.held
        if not snapshot.grants.value.held and not any(one.exchanges for one in held):
            return resources  # both accounts are the same
        return tuple(
            withdraw_ids(
                resource, DeviceAccounting(one, offer.units_by_resource, snapshot).ids_to_withdraw()
            )
            for resource, one in zip(resources, offer.units_by_resource.values(), strict=True)
        )

    def _units_of_resource(self, resource: str, snapshot: NodeSnapshot) -> ResourceUnits:
        one = self._resource_table(snapshot).units_by_resource.get(resource)
        if one is None:
            raise AllocationError(UNKNOWN_RESOURCE, f"{resource} is not offered by this agent now")
        return one

    def _resource_table(self, snapshot: NodeSnapshot) -> ResourceTable:
        view = snapshot.devices.value
        if self._last_table is None or self._last_table[0] is not view:
            self._last_table = view, self._builder.build(view)
        return self._last_table[1]

    def _board(self, snapshot: NodeSnapshot) -> PairScores:
        view, tree = snapshot.devices.value, snapshot.pci.value
        kept = self._last_board
        if kept is None or kept[0] is not view or kept[1] is not tree:
            # of those that pods can have from here: each pair costs something
            devices = self._builder.served_devices(view)
            kept = self._last_board = view, tree, score_pairs(replace(view, devices=devices), tree)
        return kept[2]


def withdraw_ids(resource: KubeletResource, ids: frozenset[str]) -> KubeletResource:
    """Return the resource with these ids as unhealthy: the kubelet gives them to no pod."""
    if not ids:
        return resource
    return replace(
        resource,
        devices=tuple(
            replace(one, healthy=False) if one.id in ids else one for one in resource.devices
        ),
        withdrawn_ids=tuple(one.id for one in resource.devices if one.id in ids),
    )


def _allocation_inputs(now: NodeSnapshot) -> tuple[object, ...]:
    """Return what grants are checked by."""
    cluster = now.cluster
    return (
        now.grants.value,
        now.devices.value,
        now.runtime.value,
        now.served.value.held,
        cluster.pods,
        cluster.has_pod_list,
        cluster.deleted_pods,
    )


def _list_inputs(now: NodeSnapshot) -> tuple[object, ...]:
    """Return what the lists for the kubelet are made of."""
    cluster = now.cluster
    return (
        now.devices.value,
        now.grants.value,
        now.served.value.held,
        cluster.pods,
        cluster.deleted_pods,
        cluster.kubelet.value,
    )
