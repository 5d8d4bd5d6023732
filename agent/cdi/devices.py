"""Which CDI files this node should have: those of devices that no vendor's own file names. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from agent.cdi.document import Part, document, encoded, is_name, part_of, split
from agent.cdi.driver import DriverFiles, driver_part
from agent.cdi.file import CdiFile
from agent.cdi.way import CDI, NODES, by_way
from agent.model.device import DeviceNode, VendorDevice
from agent.model.grant.container import Container
from agent.model.grant.edits import ContainerEdits
from agent.model.grant.granted import Grant, GrantedDevice
from agent.model.grant.host import CdiSpec, HostMeans
from agent.model.grant.refusal import GrantRefused
from agent.model.inventory import Problem
from agent.model.runtime.served import Held

if TYPE_CHECKING:
    from agent.model.snapshot import NodeSnapshot
    from agent.probe.base import DeviceVendor

OWN = "xpu-agent.io/"  # what our kinds start with
_AS_THEY_ARE: Mapping[str, str] = MappingProxyType({})


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One vendor's file. `variables` are what its containers need whichever devices they have."""

    vendor: str  # of the plug-in
    kind: str
    prefix: str = ""  # of a device's name, before its number
    by_number: bool = False  # the name is the driver's number of the device
    variables: tuple[str, ...] = ()
    domain: str = ""  # of its resources at the kubelet, if these are known by it
    slices: bool = False  # a card that is cut has names for its parts, and none for itself

    @property
    def file_name(self) -> str:
        """Return the name of the file."""
        return f"xpu-agent-{self.vendor}.json"


NVIDIA = Rule(vendor="nvidia", kind=f"{OWN}gpu", domain="nvidia.com/", slices=True)
RULES = (
    NVIDIA,  # with the driver's files only: a card without its libraries is of no use
    Rule(
        vendor="ascend",
        kind=f"{OWN}npu",
        by_number=True,
        variables=("LD_LIBRARY_PATH",),
        domain="huawei.com/",
    ),
    Rule(
        vendor="cambricon", kind=f"{OWN}mlu", by_number=True, prefix="mlu-", domain="cambricon.com/"
    ),
    Rule(vendor="rdma", kind=f"{OWN}rdma", domain="rdma/"),
)
KINDS = frozenset(rule.kind for rule in RULES)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The files by name, and of which devices there is nothing in them that should be."""

    files: tuple[CdiFile, ...] = ()
    problems: tuple[tuple[str, Problem], ...] = ()  # (vendor, problem)


def wanted(
    snapshot: NodeSnapshot,
    vendors: Mapping[str, DeviceVendor],
    driver: DriverFiles | None = None,
) -> Wanted:
    """Return the files that should be there now; equal snapshots give equal bytes.

    Whole cards, MIG instances and virtual functions have names, other slices have none. What CDI
    cannot say, such as limits, is not in them. NVIDIA's cards have a file with its `driver` only.
    """
    files: list[CdiFile] = []
    problems: list[tuple[str, Problem]] = []
    for rule in RULES:
        means = snapshot.means.value.vendors.get(rule.vendor)
        vendor = vendors.get(rule.vendor)
        state = next((one for one in snapshot.vendors if one.vendor == rule.vendor), None)
        inventory = state.inventory.value if state else None
        if means is None or vendor is None or inventory is None:
            continue
        if rule is NVIDIA and driver is None:
            continue
        everywhere = driver_part(driver) if rule is NVIDIA and driver else Part()
        told: list[Problem] = []
        file = _file(rule, inventory.devices, means, vendor, everywhere, told)
        files += [file] if file else []
        problems += ((rule.vendor, problem) for problem in told)
    return Wanted(files=tuple(sorted(files, key=lambda f: f.name)), problems=tuple(problems))


def kinds_in_use(
    snapshot: NodeSnapshot, held: Iterable[Held] = (), renamed: Mapping[str, str] = _AS_THEY_ARE
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
    for rule in RULES:
        state = next((one for one in snapshot.vendors if one.vendor == rule.vendor), None)
        inventory = state.inventory.value if state else None
        keys = {device.key for device in inventory.devices} if inventory else set()
        by_kubelet = any(
            vendors.get(name) == rule.vendor
            or (rule.domain and renamed.get(name, name).startswith(rule.domain))
            for name in resources
        )
        if by_kubelet or keys & granted:
            found.append(rule.kind)
    return frozenset(found)


def _file(
    rule: Rule,
    devices: Iterable[VendorDevice],
    means: HostMeans,
    vendor: DeviceVendor,
    everywhere: Part,
    problems: list[Problem],
) -> CdiFile | None:
    theirs = replace(means, cdi=tuple(spec for spec in means.cdi if not ours(spec)))
    parts: dict[str, Part] = {}
    paths: dict[str, tuple[str, ...]] = {}
    known = [one for one in devices if one.managed]
    for device in sorted(known, key=lambda one: (one.minor or 0, one.key)):
        for name, entry in _entries(rule, device):
            if _covered(rule, device, entry, theirs, vendor):
                continue
            if not is_name(name):  # in a file it would make all others unreadable
                text = f"{device.key} is in no CDI file: {name[:80]!r} is no name there"
                problems.append(Problem(reason="BadCDIName", message=text))
                continue
            edits = _edits(device, entry, by_way(theirs, rule.vendor, NODES), vendor)
            if isinstance(edits, GrantRefused):
                text = f"{device.key} is in no CDI file: {edits}"
                problems.append(Problem(reason=edits.reason, message=text))
                continue
            parts[name] = part_of(edits, rule.variables)
            paths[name] = tuple(node.path for node in (*device.nodes, *_own(device, name)))
    return _written(rule, parts, paths, everywhere)


def _written(
    rule: Rule,
    parts: Mapping[str, Part],
    paths: Mapping[str, tuple[str, ...]],
    everywhere: Part,
) -> CdiFile | None:
    full = {name: part for name, part in parts.items() if part}
    shared, own = split(full, paths)
    if not own:
        return None
    shared = Part(
        nodes=shared.nodes,
        mounts=(*everywhere.mounts, *shared.mounts),
        env=(*everywhere.env, *shared.env),
        hooks=everywhere.hooks,
    )
    text = encoded(document(rule.kind, own, shared))
    return CdiFile(name=rule.file_name, kind=rule.kind, devices=tuple(own), text=text)


def ours(spec: CdiSpec) -> bool:
    """Say whether a spec is one of those that this agent writes."""
    return spec.kind.startswith(OWN)


def _entries(rule: Rule, device: VendorDevice) -> Iterable[tuple[str, GrantedDevice]]:
    """Yield names and what is granted under each."""
    wire = device.kind.wire_type
    entry = GrantedDevice(type=wire, id=device.uuid or device.bus_id or "", minor=device.minor)
    if rule.slices:
        yield from (
            (part.uuid, GrantedDevice(type=wire, id=part.uuid)) for part in device.partitions
        )
    if not device.resources:
        return
    if rule.by_number:
        if device.vendor_minor is not None:
            yield f"{rule.prefix}{device.vendor_minor}", entry
        return
    yield entry.id, entry
    for group in device.vf_groups:
        for function in group.vfs:
            yield function.bus_id, replace(entry, vfs=(function.bus_id,))


def _own(device: VendorDevice, name: str) -> tuple[DeviceNode, ...]:
    """Return the nodes of the slice of that name."""
    return next((part.nodes for part in device.partitions if part.uuid == name), ())


def _covered(
    rule: Rule,
    device: VendorDevice,
    entry: GrantedDevice,
    theirs: HostMeans,
    vendor: DeviceVendor,
) -> bool:
    """Say whether a file of the vendor's own names the device."""
    if not theirs.cdi:
        return False
    edits = _edits(device, entry, by_way(theirs, rule.vendor, CDI), vendor)
    return isinstance(edits, ContainerEdits) and bool(edits.cdi)


def _edits(
    device: VendorDevice, entry: GrantedDevice, means: HostMeans, vendor: DeviceVendor
) -> ContainerEdits | GrantRefused:
    try:
        return vendor.edits((device,), Grant(devices=(entry,)), Container(), means)
    except GrantRefused as error:
        return error
