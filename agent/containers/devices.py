"""The hook that gives containers the devices of their pod's allocation.

It also checks that the runtime applies the variables of the edits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

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
from agent.snapshot.device import DeviceNode, VendorDevice
from agent.snapshot.device_plugin import KubeletAllocation
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
from agent.wire_formats.device_allocated import ANNOTATION

_NO_ALLOCATION = DeviceAllocation()


class _VendorHost(msgspec.Struct, frozen=True):
    """A vendor with its devices and its part of the host; `host` is `None` until it is read."""

    name: str
    vendor: InjectsDevices
    devices: tuple[VendorDevice, ...]
    host: HostDevices | None
    numbers: frozenset[tuple[int, int]]  # device numbers of the vendor's nodes on this host
    request_variables: frozenset[str]  # variables by which a container requests devices itself


class _DeviceTables(msgspec.Struct, frozen=True, kw_only=True):
    """Tables of a snapshot that every request uses."""

    hosts: tuple[_VendorHost, ...]
    # vendors of a device, by type and by uuid, bus id, minor, or uuid of a slice
    owners: Mapping[tuple[str, str | int | None], tuple[str, ...]]
    # keys of the hardware that an id stands for: uuid or address of a card, slice or function
    hardware: Mapping[str, frozenset[str]]
    node_owners: Mapping[str, frozenset[str]]  # by path: keys of the hardware that has this node


class DevicesHook:
    """Gives every container of a pod all devices of the pod's allocation, also init containers.

    The annotation has one list for all containers of a pod. A container that cannot get its devices
    is not started: running without its card, or with another one, is worse.
    """

    name = "devices"
    stages = frozenset({HookStage.CREATE})
    required = True

    def __init__(
        self,
        vendors: Mapping[str, DeviceVendor],
        hooks: HookSettings,
        own_uid: str = "",
        *,
        checks_stored_nodes: bool = True,
    ) -> None:
        """`own_uid` is of the agent's own pod, which is not changed without an allocation.

        With `checks_stored_nodes` no container starts with an old answer of the kubelet's that has
        the node of another device.
        """
        self._checks_stored_nodes = checks_stored_nodes
        self._vendors = injecting_vendors(vendors)
        self._shared_paths = frozenset(
            path
            for vendor in vendors.values()
            for path in vendor.description.requirements.device_nodes
        )
        self._hooks = hooks
        self._own_uid = own_uid
        self.index = AllocationIndex(slicing_vendors(vendors).values())
        self._tables = SnapshotMemo(_table_inputs, self._build_tables)
        self._assigned = SnapshotMemo(lambda now: (now.served.value.held,), _assigned_by_container)

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return the merged edits of all vendors, or why the container must not start."""
        if request.container is None:
            return NO_ADJUSTMENT
        allocation = pod_allocation(snapshot, request.pod, self.index)
        if allocation is not None and allocation.refusal:
            return Adjustment(failed=allocation.message, reason=allocation.refusal)
        if allocation is not None and _is_awaiting_requests(allocation, request):
            unknown = AllocationRefused(RefusalReason.REQUESTS_UNKNOWN, POD_NOT_LISTED)
            return Adjustment(failed=str(unknown), reason=unknown.reason)
        if allocation is None and allocation_annotation(request.pod) is not None:
            message = (
                f"{RefusalReason.BAD_GRANT.value}: the pod is over, or nobody says which it is"
            )
            return Adjustment(failed=message, reason=RefusalReason.BAD_GRANT.value)
        devices = _NO_ALLOCATION if allocation is None else allocation.grant
        tables, assigned = self._tables(snapshot), self._assigned(snapshot)
        container = self._with_pod_facts(request, snapshot, assigned.keys())
        try:
            if self._checks_stored_nodes and not self._may_have_allocation(request.pod, snapshot):
                entries = assigned.get((request.pod.uid, container.name), ())
                _check_stored_nodes(entries, tables, request.stage)
            edits = merge_edits(self._edits(devices, container, tables))
            return Adjustment(edits=check_variables(edits, container))
        except AllocationRefused as refused:
            return Adjustment(failed=str(refused), reason=refused.reason)

    def is_protected(self, pod: PodSandbox) -> bool:
        """Return whether the pod's containers are changed only if it has an allocation."""
        is_own_pod = bool(self._own_uid) and pod.uid == self._own_uid
        return is_own_pod or pod.namespace in self._hooks.protected_namespaces

    def _may_have_allocation(self, pod: PodSandbox, snapshot: NodeSnapshot) -> bool:
        """Return whether the kubelet may have stored the devices of the pod's allocation.

        The annotation may be newer than the sandbox: then only the list of pods has it.
        """
        view = self.index.tables(snapshot).pods.get(pod.uid)
        return (
            allocation_annotation(pod) is not None
            or pod.uid in snapshot.allocations.value.pods
            or (view is not None and view.annotation(ANNOTATION) is not None)
        )

    def _edits(
        self, allocation: DeviceAllocation, container: ContainerSpec, tables: _DeviceTables
    ) -> tuple[ContainerEdits, ...]:
        """Return the edits of each vendor that has a device of the allocation.

        Other vendors decide only about a container that requests their devices itself.
        """
        owners: set[str] = set()
        for entry in allocation.devices:
            number = _base_id(entry.id) if entry.id else entry.minor
            names = tables.owners.get((entry.type, number), ())
            if not names:
                message = f"no vendor serves {_device_text(entry)}"
                raise AllocationRefused(RefusalReason.DEVICE_UNKNOWN, message)
            if len(names) > 1:
                message = f"{names[1]} and another vendor both have {_device_text(entry)}"
                raise AllocationRefused(RefusalReason.DEVICE_CONFLICT, message)
            owners.update(names)
        variables = {name for name, _ in container.env}
        edits = []
        for vendor_host in tables.hosts:
            is_owner = vendor_host.name in owners
            if not is_owner and (
                vendor_host.host is None or variables.isdisjoint(vendor_host.request_variables)
            ):
                continue
            if vendor_host.host is None:
                message = f"nobody has looked yet at what the host has of {vendor_host.name}"
                raise AllocationRefused(RefusalReason.HOST_NOT_READ_YET, message)
            spec = _with_present_nodes(container, vendor_host.numbers)
            vendor_allocation = allocation if is_owner else _NO_ALLOCATION
            edits.append(
                vendor_host.vendor.edits(
                    vendor_host.devices, vendor_allocation, spec, vendor_host.host
                )
            )
        return tuple(edits)

    def _build_tables(self, snapshot: NodeSnapshot) -> _DeviceTables:
        hosts = tuple(self._list_vendors(snapshot))
        owners: dict[tuple[str, str | int | None], tuple[str, ...]] = {}
        for vendor_host in hosts:
            for device in vendor_host.devices:
                names = (device.uuid, device.bus_id, device.minor)
                for name in {*names, *(part.uuid for part in device.partitions)} - {None, ""}:
                    key = (device.kind.wire_type, name)
                    previous = owners.get(key, ())
                    owners[key] = (
                        previous if vendor_host.name in previous else (*previous, vendor_host.name)
                    )
        hardware, node_owners = _hardware_tables(hosts, self._shared_paths)
        return _DeviceTables(
            hosts=hosts,
            owners=owners,
            hardware=hardware,
            node_owners=node_owners,
        )

    def _list_vendors(self, snapshot: NodeSnapshot) -> Iterator[_VendorHost]:
        vendor_devices, host_devices = (
            devices_by_vendor(snapshot),
            snapshot.host_devices.value.vendors,
        )
        cdi = snapshot.runtime.value.takes_cdi
        for name, vendor in self._vendors.items():
            host = host_devices.get(name)
            if host is not None:
                host = replace(host, cdi_enabled=cdi)
            nodes = () if host is None else host.nodes
            numbers = frozenset((node.major, node.minor) for node in nodes)
            variables = (
                vendor.request_variables if isinstance(vendor, WithholdsDevices) else frozenset()
            )
            yield _VendorHost(name, vendor, vendor_devices.get(name, ()), host, numbers, variables)

    def _with_pod_facts(
        self,
        request: HookRequest,
        snapshot: NodeSnapshot,
        assigned: Collection[tuple[str, str]],
    ) -> ContainerSpec:
        """Return the container with the facts of its pod, and whether it must not be changed.

        The pod's requests for device plug-in resources show which containers have devices from such
        a plug-in. Until the cluster lists the pod they are unknown, and no device is withheld.
        """
        container, pod = request.container or ContainerSpec(), request.pod
        view = self.index.tables(snapshot).pods.get(pod.uid)
        is_unlisted = view is None and snapshot.cluster.is_clustered
        return replace(
            container,
            pod_uid=pod.uid,
            labels=pod.labels,
            annotations=pod.annotations,
            runtime_handler=pod.runtime_handler,
            host_network=pod.host_network,
            unallocated_policy=self._hooks.ungranted,
            protected=container.protected or is_unlisted or self.is_protected(pod),
            given_elsewhere=container.given_elsewhere
            or _requests_devices(view, container.name)
            or (pod.uid, "") in assigned
            or (pod.uid, container.name) in assigned,
        )


def _assigned_by_container(
    snapshot: NodeSnapshot,
) -> Mapping[tuple[str, str], Sequence[KubeletAllocation]]:
    """Return what the kubelet gave, by pod and container; an empty name is an unknown container."""
    assigned: dict[tuple[str, str], list[KubeletAllocation]] = {}
    for allocation in snapshot.served.value.held:
        assigned.setdefault((allocation.pod_uid, allocation.container), []).append(allocation)
    return assigned


def _hardware_tables(
    hosts: Iterable[_VendorHost], shared_paths: Collection[str]
) -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]]:
    """Return the keys of the hardware by id, and those of the owners of each node by path.

    An id that two devices have stands for both. A node that every container needs has no owner, and
    neither has that of a function which is no device of its own, as of a bonded NIC.
    """
    hardware: dict[str, set[str]] = {}
    owners: dict[str, set[str]] = {}

    def add_owner(key: str, nodes: Iterable[DeviceNode]) -> None:
        for node in nodes:
            if node.path not in shared_paths:
                owners.setdefault(node.path, set()).add(key)

    for device in (device for one in hosts for device in one.devices):
        add_owner(device.key, device.nodes)
        for name in filter(None, (device.uuid, device.bus_id)):
            hardware.setdefault(name, set()).add(device.key)
        for part in device.partitions:
            add_owner(part.uuid, part.nodes)
            hardware.setdefault(part.uuid, set()).update((part.uuid, device.key))
        for function in (vf for group in device.vf_groups for vf in group.vfs):
            hardware.setdefault(function.bus_id, set()).update((function.bus_id, device.key))
    for rdma_function in (f for one in hosts if one.host for f in one.host.functions):
        if rdma_function.address in hardware:
            add_owner(rdma_function.address, rdma_function.verbs)
    return (
        {name: frozenset(keys) for name, keys in hardware.items()},
        {path: frozenset(keys) for path, keys in owners.items()},
    )


def _check_stored_nodes(
    entries: Iterable[KubeletAllocation], tables: _DeviceTables, stage: HookStage
) -> None:
    """Raise `AllocationRefused` if the kubelet's answer has the node of another device.

    The kubelet repeats its stored answer for a pod that outlives a boot, after which nodes may have
    other numbers. It asks before the start for whole cards alone; here every resource counts whose
    ids are those of devices. A container that runs already is not refused.
    """
    if stage is not HookStage.CREATE:
        return
    for entry in entries:
        keys = [tables.hardware.get(_base_id(name)) for name in entry.device_ids]
        own_keys = frozenset[str]().union(*(key for key in keys if key is not None))
        if None in keys or not own_keys:
            continue
        for path in entry.nodes:
            owners = tables.node_owners.get(path)
            if owners and owners.isdisjoint(own_keys):
                text = f"{path} is {min(owners)} now, and was another device when the kubelet"
                raise AllocationRefused(
                    RefusalReason.NODE_MISMATCH, f"{text} stored it: delete the pod"
                )


def _base_id(name: str) -> str:
    return name.partition(REPLICA_SEPARATOR)[0]


def _is_awaiting_requests(allocation: PodAllocation, request: HookRequest) -> bool:
    """Return whether a new container must wait until the pod's requests are known.

    An existing container, as in `HookStage.RECONCILE`, keeps its devices.
    """
    is_new = request.stage is HookStage.CREATE
    return is_new and allocation.awaits_requests and bool(allocation.grant.devices)


def _device_text(entry: AllocatedDevice) -> str:
    return f"{entry.type} device {entry.id or entry.minor!r}"


def _table_inputs(now: NodeSnapshot) -> tuple[object, ...]:
    inputs: list[object] = [now.devices.value, now.host_devices.value, now.runtime.value.takes_cdi]
    for state in now.vendors:
        inputs += (state.vendor, state.inventory.value)
    return tuple(inputs)


def _requests_devices(pod: PodView | None, container: str) -> bool:
    """Return whether the container requests resources of a device plug-in."""
    return (
        pod is not None
        and bool(pod.asks)
        and container in [request.container for request in pod.asks]
    )


def _with_present_nodes(
    container: ContainerSpec, numbers: frozenset[tuple[int, int]]
) -> ContainerSpec:
    """Return the container, marked if it already has nodes of this vendor."""
    if container.given_elsewhere or not container.nodes:
        return container
    is_present = any((node.major, node.minor) in numbers for node in container.nodes)
    return replace(container, given_elsewhere=True) if is_present else container


# without it a program fails by itself, and gets no more devices
OPTIONAL_VARIABLES = ("LD_LIBRARY_PATH",)


def check_variables(edits: ContainerEdits, container: ContainerSpec) -> ContainerEdits:
    """Return the edits if their variables apply; raise `AllocationRefused` if they do not.

    If image and pod both set a variable, containerd's spec has it twice, and NRI then changes the
    first while the last applies. A variable that only helps to find libraries causes a note.
    """
    if not edits.env:
        return edits
    names = [name for name, _ in container.env]
    if len(set(names)) == len(names):
        return edits
    counts = Counter(names)
    notes = []
    for name, value in edits.env:
        if counts[name] < 2 or container.env_value(name) == value:
            continue
        message = f"{name} is set {counts[name]} times, as by image and pod: take it out of the pod"
        if name not in OPTIONAL_VARIABLES:
            raise AllocationRefused(RefusalReason.DEVICE_CONFLICT, message)
        notes.append(ContainerNote(reason="VariableNotSet", message=message))
    return replace(edits, notes=(*edits.notes, *notes)) if notes else edits
