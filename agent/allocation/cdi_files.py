"""Which CDI files this node should have: those of devices that no vendor's own file names. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from agent.allocation.cdi_document import (
    CdiEdits,
    CdiFile,
    build_document,
    encode_document,
    is_device_name,
    split_common,
    to_cdi_edits,
)
from agent.allocation.injection_mode import CDI, NODES, with_injection_mode
from agent.allocation.nvidia_driver_files import NvidiaDriverFiles, driver_edits
from agent.snapshot.allocation import AllocatedDevice, AllocationRefused, DeviceAllocation
from agent.snapshot.container import ContainerSpec
from agent.snapshot.device import DeviceNode, VendorDevice
from agent.snapshot.device_plugin import KubeletAllocation
from agent.snapshot.edits import ContainerEdits
from agent.snapshot.host_devices import CdiSpec, HostDevices
from agent.snapshot.inventory import Problem
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.vendor import DeviceVendor, InjectsDevices, injecting_vendors

AGENT_DOMAIN = "xpu-agent.io/"  # what our kinds start with
_NOT_RENAMED: Mapping[str, str] = MappingProxyType({})


class CdiFileRule(msgspec.Struct, frozen=True, kw_only=True):
    """One vendor's file. `variables` are what its containers need whichever devices they have."""

    vendor: str  # of the plug-in
    kind: str
    prefix: str = ""  # of a device's name, before its number
    is_named_by_number: bool = False  # the name is the driver's number of the device
    variables: tuple[str, ...] = ()
    resource_domain: str = ""  # of its resources at the kubelet, if these are known by it
    has_slice_names: bool = False  # a card that is cut has names for its parts, and none for itself

    @property
    def file_name(self) -> str:
        """Return the name of the file."""
        return f"xpu-agent-{self.vendor}.json"


NVIDIA_RULE = CdiFileRule(
    vendor="nvidia", kind=f"{AGENT_DOMAIN}gpu", resource_domain="nvidia.com/", has_slice_names=True
)
CDI_FILE_RULES = (
    NVIDIA_RULE,  # with the driver's files only: a card without its libraries is of no use
    CdiFileRule(
        vendor="ascend",
        kind=f"{AGENT_DOMAIN}npu",
        is_named_by_number=True,
        variables=("LD_LIBRARY_PATH",),
        resource_domain="huawei.com/",
    ),
    CdiFileRule(
        vendor="cambricon",
        kind=f"{AGENT_DOMAIN}mlu",
        is_named_by_number=True,
        prefix="mlu-",
        resource_domain="cambricon.com/",
    ),
    CdiFileRule(vendor="rdma", kind=f"{AGENT_DOMAIN}rdma", resource_domain="rdma/"),
)
AGENT_CDI_KINDS = frozenset(rule.kind for rule in CDI_FILE_RULES)


class CdiFileSet(msgspec.Struct, frozen=True, kw_only=True):
    """The files by name, and of which devices there is nothing in them that should be."""

    files: tuple[CdiFile, ...] = ()
    problems: tuple[tuple[str, Problem], ...] = ()  # (vendor, problem)


def build_cdi_files(
    snapshot: NodeSnapshot,
    vendors: Mapping[str, DeviceVendor],
    driver: NvidiaDriverFiles | None = None,
) -> CdiFileSet:
    """Return the files that should be there now; equal snapshots give equal bytes.

    Whole cards, MIG instances and virtual functions have names, other slices have none. What CDI
    cannot say, such as limits, is not in them. NVIDIA's cards have a file with its `driver` only.
    """
    files: list[CdiFile] = []
    problems: list[tuple[str, Problem]] = []
    injecting = injecting_vendors(vendors)
    for rule in CDI_FILE_RULES:
        means = snapshot.means.value.vendors.get(rule.vendor)
        vendor = injecting.get(rule.vendor)
        state = next((one for one in snapshot.vendors if one.vendor == rule.vendor), None)
        inventory = state.inventory.value if state else None
        if means is None or vendor is None or inventory is None:
            continue
        if rule is NVIDIA_RULE and driver is None:
            continue
        everywhere = driver_edits(driver) if rule is NVIDIA_RULE and driver else CdiEdits()
        told: list[Problem] = []
        file = _build_file(rule, inventory.devices, means, vendor, everywhere, told)
        files += [file] if file else []
        problems += ((rule.vendor, problem) for problem in told)
    return CdiFileSet(files=tuple(sorted(files, key=lambda f: f.name)), problems=tuple(problems))


def kinds_in_use(
    snapshot: NodeSnapshot,
    held: Iterable[KubeletAllocation] = (),
    renamed: Mapping[str, str] = _NOT_RENAMED,
) -> frozenset[str]:
    """Return the kinds of which a pod may hold names, by the kubelet's account or by a grant.

    `held` is what the kubelet's checkpoint says where nobody serves the kubelet, or not yet;
    `renamed` are names of resources that settings give, with those that they stand for.
    """
    view = snapshot.served.value
    vendors = {one.name: one.vendor for one in view.resources}
    resources = {one.resource for one in (*view.held, *held)}
    granted = snapshot.grants.value.held.keys()
    found = []
    for rule in CDI_FILE_RULES:
        state = next((one for one in snapshot.vendors if one.vendor == rule.vendor), None)
        inventory = state.inventory.value if state else None
        keys = {device.key for device in inventory.devices} if inventory else set()
        by_kubelet = any(
            vendors.get(name) == rule.vendor
            or (rule.resource_domain and renamed.get(name, name).startswith(rule.resource_domain))
            for name in resources
        )
        if by_kubelet or keys & granted:
            found.append(rule.kind)
    return frozenset(found)


def _build_file(
    rule: CdiFileRule,
    devices: Iterable[VendorDevice],
    means: HostDevices,
    vendor: InjectsDevices,
    everywhere: CdiEdits,
    problems: list[Problem],
) -> CdiFile | None:
    theirs = replace(means, cdi=tuple(spec for spec in means.cdi if not is_agent_spec(spec)))
    parts: dict[str, CdiEdits] = {}
    paths: dict[str, tuple[str, ...]] = {}
    known = [one for one in devices if one.managed]
    for device in sorted(known, key=lambda one: (one.minor or 0, one.key)):
        for name, entry in _named_entries(rule, device):
            if _has_vendor_name(rule, device, entry, theirs, vendor):
                continue
            if not is_device_name(name):  # in a file it would make all others unreadable
                text = f"{device.key} is in no CDI file: {name[:80]!r} is no name there"
                problems.append(Problem(reason="BadCDIName", message=text))
                continue
            edits = _vendor_edits(
                device, entry, with_injection_mode(theirs, rule.vendor, NODES), vendor
            )
            if isinstance(edits, AllocationRefused):
                text = f"{device.key} is in no CDI file: {edits}"
                problems.append(Problem(reason=edits.reason, message=text))
                continue
            parts[name] = to_cdi_edits(edits, rule.variables)
            paths[name] = tuple(node.path for node in (*device.nodes, *_slice_nodes(device, name)))
    return _render_file(rule, parts, paths, everywhere)


def _render_file(
    rule: CdiFileRule,
    parts: Mapping[str, CdiEdits],
    paths: Mapping[str, tuple[str, ...]],
    everywhere: CdiEdits,
) -> CdiFile | None:
    full = {name: part for name, part in parts.items() if part}
    shared, own = split_common(full, paths)
    if not own:
        return None
    shared = CdiEdits(
        nodes=shared.nodes,
        mounts=(*everywhere.mounts, *shared.mounts),
        env=(*everywhere.env, *shared.env),
        hooks=everywhere.hooks,
    )
    text = encode_document(build_document(rule.kind, own, shared))
    return CdiFile(name=rule.file_name, kind=rule.kind, devices=tuple(own), text=text)


def is_agent_spec(spec: CdiSpec) -> bool:
    """Say whether a spec is one of those that this agent writes."""
    return spec.kind.startswith(AGENT_DOMAIN)


def _named_entries(
    rule: CdiFileRule, device: VendorDevice
) -> Iterable[tuple[str, AllocatedDevice]]:
    """Yield names and what is granted under each."""
    wire = device.kind.wire_type
    entry = AllocatedDevice(type=wire, id=device.uuid or device.bus_id or "", minor=device.minor)
    if rule.has_slice_names:
        yield from (
            (part.uuid, AllocatedDevice(type=wire, id=part.uuid)) for part in device.partitions
        )
    if not device.resources:
        return
    if rule.is_named_by_number:
        if device.vendor_minor is not None:
            yield f"{rule.prefix}{device.vendor_minor}", entry
        return
    yield entry.id, entry
    for group in device.vf_groups:
        for function in group.vfs:
            yield function.bus_id, replace(entry, vfs=(function.bus_id,))


def _slice_nodes(device: VendorDevice, name: str) -> tuple[DeviceNode, ...]:
    """Return the nodes of the slice of that name."""
    return next((part.nodes for part in device.partitions if part.uuid == name), ())


def _has_vendor_name(
    rule: CdiFileRule,
    device: VendorDevice,
    entry: AllocatedDevice,
    theirs: HostDevices,
    vendor: InjectsDevices,
) -> bool:
    """Say whether a file of the vendor's own names the device."""
    if not theirs.cdi:
        return False
    edits = _vendor_edits(device, entry, with_injection_mode(theirs, rule.vendor, CDI), vendor)
    return isinstance(edits, ContainerEdits) and bool(edits.cdi)


def _vendor_edits(
    device: VendorDevice, entry: AllocatedDevice, means: HostDevices, vendor: InjectsDevices
) -> ContainerEdits | AllocationRefused:
    try:
        return vendor.edits((device,), DeviceAllocation(devices=(entry,)), ContainerSpec(), means)
    except AllocationRefused as error:
        return error
