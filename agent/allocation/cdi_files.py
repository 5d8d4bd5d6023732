"""The CDI files that this node needs: for devices that no file of another program names. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from agent.allocation.cdi_document import (
    CdiFile,
    build_document,
    encode_document,
    is_device_name,
    split_common,
    to_cdi_edits,
)
from agent.allocation.injection_mode import CDI, NODES, with_injection_mode
from agent.snapshot.allocation import AllocatedDevice, AllocationRefused, DeviceAllocation
from agent.snapshot.container import ContainerSpec
from agent.snapshot.device import DeviceNode, VendorDevice
from agent.snapshot.device_plugin import KubeletAllocation
from agent.snapshot.edits import CdiEdits, ContainerEdits
from agent.snapshot.host_devices import CdiSpec, HostDevices
from agent.snapshot.inventory import Problem
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.vendor import (
    CdiNaming,
    DeviceVendor,
    InjectsDevices,
    SuppliesDriverFiles,
)

AGENT_DOMAIN = "xpu-agent.io/"  # prefix of the agent's CDI kinds
_NOT_RENAMED: Mapping[str, str] = MappingProxyType({})
_NO_DRIVER_EDITS: Mapping[str, CdiEdits] = MappingProxyType({})


class CdiFileSet(msgspec.Struct, frozen=True, kw_only=True):
    """The files by name, and the problems of devices that are in no file."""

    files: tuple[CdiFile, ...] = ()
    problems: tuple[tuple[str, Problem], ...] = ()  # (vendor, problem)


def build_cdi_files(
    snapshot: NodeSnapshot,
    vendors: Mapping[str, DeviceVendor],
    driver_edits: Mapping[str, CdiEdits] = _NO_DRIVER_EDITS,
) -> CdiFileSet:
    """Return the files that should exist now; equal snapshots give equal bytes.

    Whole cards, MIG instances and virtual functions have names, other slices have none. Edits that
    CDI cannot express, such as limits, are left out. `driver_edits` are by vendor; a vendor that
    supplies driver files has a CDI file only if it is in `driver_edits`.
    """
    files: list[CdiFile] = []
    problems: list[tuple[str, Problem]] = []
    states = {state.vendor: state for state in snapshot.vendors}
    for name, vendor in vendors.items():
        naming = vendor.description.cdi
        host_devices = snapshot.host_devices.value.vendors.get(name)
        inventory = states[name].inventory.value if name in states else None
        if naming is None or host_devices is None or inventory is None:
            continue
        if not isinstance(vendor, InjectsDevices):  # last: the check of a Protocol is slow
            continue
        if isinstance(vendor, SuppliesDriverFiles) and name not in driver_edits:
            continue
        builder = _CdiFileBuilder(name, naming, vendor, host_devices)
        file = builder.build(inventory.devices, driver_edits.get(name, CdiEdits()))
        files += [file] if file else []
        problems += ((name, problem) for problem in builder.problems)
    return CdiFileSet(files=tuple(sorted(files, key=lambda f: f.name)), problems=tuple(problems))


def kinds_in_use(
    snapshot: NodeSnapshot,
    namings: Mapping[str, CdiNaming],
    assignments: Iterable[KubeletAllocation] = (),
    renamed: Mapping[str, str] = _NOT_RENAMED,
) -> frozenset[str]:
    """Return the kinds whose names a pod may use, by the kubelet's account or by an allocation.

    `namings` are by vendor, disabled vendors included: pods may still use their names.
    `assignments` are those of the kubelet's checkpoint, while no device plug-in serves the kubelet.
    `renamed` are resource names in the settings, with the names that they replace.
    """
    view = snapshot.served.value
    vendors = {resource.name: resource.vendor for resource in view.resources}
    resources = {one.resource for one in (*view.held, *assignments)}
    allocated = snapshot.allocations.value.held.keys()
    states = {state.vendor: state for state in snapshot.vendors}
    kinds = set()
    for name, naming in namings.items():
        inventory = states[name].inventory.value if name in states else None
        keys = {device.key for device in inventory.devices} if inventory else set()
        domain = naming.resource_domain
        by_kubelet = any(
            vendors.get(resource) == name
            or (domain and renamed.get(resource, resource).startswith(domain))
            for resource in resources
        )
        if by_kubelet or keys & allocated:
            kinds.add(naming.kind)
    return frozenset(kinds)


class _CdiFileBuilder:
    """Builds one vendor's file."""

    def __init__(
        self, vendor_name: str, naming: CdiNaming, vendor: InjectsDevices, host_devices: HostDevices
    ) -> None:
        self.problems: list[Problem] = []
        self._naming = naming
        self._vendor = vendor
        self._file_name = f"xpu-agent-{vendor_name}.json"
        foreign_specs = tuple(spec for spec in host_devices.cdi if not is_agent_spec(spec))
        host = replace(host_devices, cdi=foreign_specs)
        self._has_foreign_specs = bool(foreign_specs)
        self._host_for_nodes = with_injection_mode(host, vendor_name, NODES)
        self._host_for_names = with_injection_mode(host, vendor_name, CDI)

    def build(self, devices: Iterable[VendorDevice], driver_edits: CdiEdits) -> CdiFile | None:
        """Return the file with all devices that no file of another program names."""
        edits_by_name: dict[str, CdiEdits] = {}
        paths: dict[str, tuple[str, ...]] = {}
        managed = [device for device in devices if device.managed]
        for device in sorted(managed, key=lambda one: (one.minor or 0, one.key)):
            for name, entry in _named_entries(self._naming, device):
                edits = self._edits_of(device, name, entry)
                if edits is not None:
                    edits_by_name[name] = to_cdi_edits(edits, self._naming.variables)
                    nodes = (*device.nodes, *_slice_nodes(device, name))
                    paths[name] = tuple(node.path for node in nodes)
        return self._render_file(edits_by_name, paths, driver_edits)

    def _edits_of(
        self, device: VendorDevice, name: str, entry: AllocatedDevice
    ) -> ContainerEdits | None:
        """Return what the name stands for; `None` if the file has no such name."""
        if self._has_foreign_name(device, entry):
            return None
        if not is_device_name(name):  # an invalid name would make the whole file unreadable
            text = f"{device.key} is in no CDI file: {name[:80]!r} is no name there"
            self.problems.append(Problem(reason="BadCDIName", message=text))
            return None
        edits = _vendor_edits(device, entry, self._host_for_nodes, self._vendor)
        if isinstance(edits, AllocationRefused):
            text = f"{device.key} is in no CDI file: {edits}"
            self.problems.append(Problem(reason=edits.reason, message=text))
            return None
        return edits

    def _has_foreign_name(self, device: VendorDevice, entry: AllocatedDevice) -> bool:
        """Return whether a file of another program, such as the vendor's own tool, names it."""
        if not self._has_foreign_specs:
            return False
        edits = _vendor_edits(device, entry, self._host_for_names, self._vendor)
        return isinstance(edits, ContainerEdits) and bool(edits.cdi)

    def _render_file(
        self,
        edits_by_name: Mapping[str, CdiEdits],
        paths: Mapping[str, tuple[str, ...]],
        driver_edits: CdiEdits,
    ) -> CdiFile | None:
        full = {name: one for name, one in edits_by_name.items() if one}
        shared, own = split_common(full, paths)
        if not own:
            return None
        shared = CdiEdits(
            nodes=shared.nodes,
            mounts=(*driver_edits.mounts, *shared.mounts),
            env=(*driver_edits.env, *shared.env),
            hooks=driver_edits.hooks,
        )
        kind = self._naming.kind
        text = encode_document(build_document(kind, own, shared))
        return CdiFile(name=self._file_name, kind=kind, devices=tuple(own), text=text)


def is_agent_spec(spec: CdiSpec) -> bool:
    """Return whether this agent writes the spec."""
    return spec.kind.startswith(AGENT_DOMAIN)


def _named_entries(
    naming: CdiNaming, device: VendorDevice
) -> Iterable[tuple[str, AllocatedDevice]]:
    """Yield the names of a device and its slices, each with the allocation that it stands for."""
    wire = device.kind.wire_type
    entry = AllocatedDevice(type=wire, id=device.uuid or device.bus_id or "", minor=device.minor)
    if naming.has_slice_names:
        yield from (
            (part.uuid, AllocatedDevice(type=wire, id=part.uuid)) for part in device.partitions
        )
    if not device.resources:
        return
    if naming.is_named_by_number:
        if device.vendor_minor is not None:
            yield f"{naming.prefix}{device.vendor_minor}", entry
        return
    yield entry.id, entry
    for group in device.vf_groups:
        for function in group.vfs:
            yield function.bus_id, replace(entry, vfs=(function.bus_id,))


def _slice_nodes(device: VendorDevice, name: str) -> tuple[DeviceNode, ...]:
    """Return the nodes of the slice of that name."""
    return next((part.nodes for part in device.partitions if part.uuid == name), ())


def _vendor_edits(
    device: VendorDevice, entry: AllocatedDevice, host_devices: HostDevices, vendor: InjectsDevices
) -> ContainerEdits | AllocationRefused:
    try:
        return vendor.edits(
            (device,), DeviceAllocation(devices=(entry,)), ContainerSpec(), host_devices
        )
    except AllocationRefused as error:
        return error
