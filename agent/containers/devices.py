"""The hook that gives containers the devices of their pod's allocation.

Variables that the runtime would keep as the container has them, whatever a hook answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from agent.allocation.check import POD_NOT_LISTED, pod_allocation
from agent.allocation.index import AllocationIndex, allocation_annotation
from agent.config.containers import HookSettings
from agent.snapshot.allocation import (
    REPLICA_SEPARATOR,
    AllocatedDevice,
    AllocationRefused,
    DeviceAllocation,
    PodAllocation,
    RefusalReason,
)
from agent.snapshot.container import (
    NO_ADJUSTMENT,
    Adjustment,
    ContainerSpec,
    HookRequest,
    HookStage,
    PodSandbox,
)
from agent.snapshot.device import VendorDevice
from agent.snapshot.edits import ContainerEdits, ContainerNote, merge_edits
from agent.snapshot.host_devices import HostDevices
from agent.snapshot.node import NodeSnapshot, SnapshotMemo, devices_by_vendor
from agent.snapshot.pod import PodView
from agent.snapshot.vendor import (
    DeviceVendor,
    InjectsDevices,
    WithholdsDevices,
    injecting_vendors,
    slicing_vendors,
)

_NO_ALLOCATION = DeviceAllocation()


class _VendorHost(msgspec.Struct, frozen=True):
    """A vendor with its devices, and what the host has of it: `None` while nobody has looked."""

    name: str
    vendor: InjectsDevices
    devices: tuple[VendorDevice, ...]
    host: HostDevices | None
    numbers: frozenset[tuple[int, int]]  # of the vendor's nodes on this host
    request_variables: frozenset[str]  # by which a container names devices itself


class _DeviceTables(msgspec.Struct, frozen=True, kw_only=True):
    """What each request needs of a snapshot."""

    hosts: tuple[_VendorHost, ...]
    # vendors of a device, by type and by uuid, bus id, minor, or uuid of a slice
    owners: Mapping[tuple[str, str | int | None], tuple[str, ...]]
    # pods and containers that have devices by the kubelet's account
    assigned: frozenset[tuple[str, str]]


class DevicesHook:
    """Every container of a pod gets all that the pod was granted, init and sidecar ones too.

    The annotation does not tell a pod's containers apart. A container that cannot have its grant
    is not started: one that runs without its card, or with another, is worse.
    """

    name = "devices"
    stages = frozenset({HookStage.CREATE})
    required = True

    def __init__(
        self, vendors: Mapping[str, DeviceVendor], hooks: HookSettings, own_uid: str = ""
    ) -> None:
        """`own_uid` is of the agent's own pod, which is left alone without a grant."""
        self._vendors = injecting_vendors(vendors)
        self._hooks = hooks
        self._own_uid = own_uid
        self.index = AllocationIndex(slicing_vendors(vendors).values())
        self._tables = SnapshotMemo(_table_parts, lambda now, _: self._build_tables(now))

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return the edits of all vendors as one, or why the container must not start."""
        if request.container is None:
            return NO_ADJUSTMENT
        granted = pod_allocation(snapshot, request.pod, self.index)
        if granted is not None and granted.refusal:
            return Adjustment(failed=granted.message, reason=granted.refusal)
        if granted is not None and _is_awaiting_requests(granted, request):
            unknown = AllocationRefused(RefusalReason.REQUESTS_UNKNOWN, POD_NOT_LISTED)
            return Adjustment(failed=str(unknown), reason=unknown.reason)
        if granted is None and allocation_annotation(request.pod) is not None:
            told = f"{RefusalReason.BAD_GRANT.value}: the pod is over, or nobody says which it is"
            return Adjustment(failed=told, reason=RefusalReason.BAD_GRANT.value)
        grant = _NO_ALLOCATION if granted is None else granted.grant
        tables = self._tables(snapshot)
        container = self._with_pod_facts(request, snapshot, tables.assigned)
        try:
            edits = merge_edits(self._edits(grant, container, tables))
            return Adjustment(edits=check_variables(edits, container))
        except AllocationRefused as refused:
            return Adjustment(failed=str(refused), reason=refused.reason)

    def is_protected(self, pod: PodSandbox) -> bool:
        """Return whether containers of a pod are left alone unless devices are allocated to it."""
        own = bool(self._own_uid) and pod.uid == self._own_uid
        return own or pod.namespace in self._hooks.protected_namespaces

    def _edits(
        self, grant: DeviceAllocation, container: ContainerSpec, tables: _DeviceTables
    ) -> tuple[ContainerEdits, ...]:
        """Return the edits of each vendor that has a device of the allocation.

        A vendor without one decides only about a container that names its devices itself.
        """
        owners: set[str] = set()
        for entry in grant.devices:
            number = entry.id.partition(REPLICA_SEPARATOR)[0] if entry.id else entry.minor
            names = tables.owners.get((entry.type, number), ())
            if not names:
                told = f"no vendor serves {_device_text(entry)}"
                raise AllocationRefused(RefusalReason.DEVICE_UNKNOWN, told)
            if len(names) > 1:
                told = f"{names[1]} and another vendor both have {_device_text(entry)}"
                raise AllocationRefused(RefusalReason.DEVICE_CONFLICT, told)
            owners.update(names)
        variables = {name for name, _ in container.env}
        edits = []
        for stock in tables.hosts:
            own = stock.name in owners
            if not own and (stock.host is None or variables.isdisjoint(stock.request_variables)):
                continue
            if stock.host is None:
                told = f"nobody has looked yet at what the host has of {stock.name}"
                raise AllocationRefused(RefusalReason.HOST_NOT_READ_YET, told)
            spec = _with_present_nodes(container, stock.numbers)
            part = grant if own else _NO_ALLOCATION
            edits.append(stock.vendor.edits(stock.devices, part, spec, stock.host))
        return tuple(edits)

    def _build_tables(self, snapshot: NodeSnapshot) -> _DeviceTables:
        hosts = tuple(self._list_vendors(snapshot))
        owners: dict[tuple[str, str | int | None], tuple[str, ...]] = {}
        for stock in hosts:
            for device in stock.devices:
                names = (device.uuid, device.bus_id, device.minor)
                for name in {*names, *(part.uuid for part in device.partitions)} - {None, ""}:
                    key = (device.kind.wire_type, name)
                    before = owners.get(key, ())
                    owners[key] = before if stock.name in before else (*before, stock.name)
        held = snapshot.served.value.held
        return _DeviceTables(
            hosts=hosts,
            owners=owners,
            assigned=frozenset((one.pod_uid, one.container) for one in held),
        )

    def _list_vendors(self, snapshot: NodeSnapshot) -> Iterator[_VendorHost]:
        own, means = devices_by_vendor(snapshot), snapshot.means.value.vendors
        cdi = snapshot.runtime.value.takes_cdi
        for name, vendor in self._vendors.items():
            host = means.get(name)
            if host is not None:
                host = replace(host, cdi_enabled=cdi)
            nodes = () if host is None else host.nodes
            numbers = frozenset((node.major, node.minor) for node in nodes)
            variables = (
                vendor.request_variables if isinstance(vendor, WithholdsDevices) else frozenset()
            )
            yield _VendorHost(name, vendor, own.get(name, ()), host, numbers, variables)

    def _with_pod_facts(
        self, request: HookRequest, snapshot: NodeSnapshot, assigned: frozenset[tuple[str, str]]
    ) -> ContainerSpec:
        """Return the container with the facts of its pod, and whether it is left alone.

        A pod's requests for resources of device plug-ins show which containers got devices from
        those. While the cluster has not listed the pod they are unknown, and nothing is withheld.
        """
        container, pod = request.container or ContainerSpec(), request.pod
        view = self.index.tables(snapshot).pods.get(pod.uid)
        untold = view is None and snapshot.cluster.is_clustered
        return replace(
            container,
            pod_uid=pod.uid,
            labels=pod.labels,
            annotations=pod.annotations,
            runtime_handler=pod.runtime_handler,
            host_network=pod.host_network,
            unallocated_policy=self._hooks.ungranted,
            protected=container.protected or untold or self.is_protected(pod),
            given_elsewhere=container.given_elsewhere
            or _requests_devices(view, container.name)
            or (pod.uid, "") in assigned
            or (pod.uid, container.name) in assigned,
        )


def _is_awaiting_requests(granted: PodAllocation, request: HookRequest) -> bool:
    """Return whether a new container must wait until the pod's requests are known.

    An existing container, as in `Stage.RECONCILE`, keeps its devices.
    """
    created = request.stage is HookStage.CREATE
    return created and granted.awaits_requests and bool(granted.grant.devices)


def _device_text(entry: AllocatedDevice) -> str:
    return f"{entry.type} device {entry.id or entry.minor!r}"


def _table_parts(now: NodeSnapshot) -> tuple[object, ...]:
    found: list[object] = [now.devices.value, now.means.value, now.runtime.value.takes_cdi]
    found.append(now.served.value.held)
    for state in now.vendors:
        found += (state.vendor, state.inventory.value)
    return tuple(found)


def _requests_devices(pod: PodView | None, container: str) -> bool:
    """Return whether the container requests resources of a device plug-in."""
    return pod is not None and bool(pod.asks) and container in [one.container for one in pod.asks]


def _with_present_nodes(
    container: ContainerSpec, numbers: frozenset[tuple[int, int]]
) -> ContainerSpec:
    """Return the container with whether it has nodes of this vendor's already."""
    if container.given_elsewhere or not container.nodes:
        return container
    has = any((node.major, node.minor) in numbers for node in container.nodes)
    return replace(container, given_elsewhere=True) if has else container


OPTIONAL_VARIABLES = (
    "LD_LIBRARY_PATH",
)  # without it a program fails by itself, and sees nothing more


def check_variables(edits: ContainerEdits, container: ContainerSpec) -> ContainerEdits:
    """Return edits whose variables count; raise `GrantRefused` if the container's own would.

    A variable that image and pod both set is twice in what containerd makes of the two, and NRI
    then changes the first and keeps the last. One that only helps to find libraries is told of.
    """
    if not edits.env:
        return edits
    names = [name for name, _ in container.env]
    if len(set(names)) == len(names):
        return edits
    times = Counter(names)
    notes = []
    for name, value in edits.env:
        if times[name] < 2 or container.env_value(name) == value:
            continue
        told = f"{name} is set {times[name]} times, as by image and pod: take it out of the pod"
        if name not in OPTIONAL_VARIABLES:
            raise AllocationRefused(RefusalReason.DEVICE_CONFLICT, told)
        notes.append(ContainerNote(reason="VariableNotSet", message=told))
    return replace(edits, notes=(*edits.notes, *notes)) if notes else edits
