"""Devices that an allocation may name, and how much of each device is allocated to which pod.

No device is allocated beyond what it has. Devices that the kubelet assigned to pods without an
allocation count too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from agent.snapshot.allocation import (
    CORE,
    MEMORY,
    RATIO,
    REPLICA_SEPARATOR,
    AllocatedDevice,
    AllocationRefused,
    RefusalReason,
)
from agent.snapshot.device import (
    DEVICE_TYPES,
    GPU_TYPE,
    RDMA_TYPE,
    Device,
    DeviceKind,
    DevicePartition,
    Pairs,
    VendorDevice,
)
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import ENDED_PHASES, PodView
from agent.wire_formats.device_checkpoint import parse_chip_number
from agent.wire_formats.quantities import parse_quantity

RDMA_RESOURCE = "koordinator.sh/rdma"

UNSCHEDULABLE_FACT = (
    "unschedulable"  # the fact in which a vendor says why a device cannot be allocated
)

_FULL_PERCENT = 100

# of a device that reports no amounts, as while its library does not answer
_PERCENT_TOTALS: Mapping[str, Mapping[str, int]] = {
    GPU_TYPE: {CORE: _FULL_PERCENT, RATIO: _FULL_PERCENT},
    RDMA_TYPE: {RDMA_RESOURCE: _FULL_PERCENT},
}


class AllocationTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The device of an allocated entry; `part_id` names a slice or a replica of it."""

    device: VendorDevice
    key: str  # Device.key
    totals: Mapping[str, int]  # how much of each resource the device has, in base units
    partition: DevicePartition | None = None
    part_id: str = ""


class DeviceIndex:
    """All devices of the node at one moment, found by id or minor."""

    def __init__(
        self, devices: Iterable[Device], *, is_complete: bool, final_minors: bool = True
    ) -> None:
        """Index the devices. If not `is_complete`, a vendor may still report more.

        Without `final_minors` no device is found by its minor, which may belong to another device
        later.
        """
        self._is_complete = is_complete
        self._by_id: dict[tuple[str, str], AllocationTarget] = {}
        self._by_minor: dict[tuple[str, int], AllocationTarget] = {}
        self._by_vendor_minor: dict[tuple[DeviceKind, int], VendorDevice] = {}
        self._with_functions: list[VendorDevice] = []
        for device in devices:
            info = device.info
            kind = info.kind.wire_type
            target = AllocationTarget(device=info, key=info.key, totals=totals_of(info))
            if info.minor is not None and final_minors:
                self._by_minor.setdefault((kind, info.minor), target)
            if info.vendor_minor is not None:
                self._by_vendor_minor.setdefault((info.kind, info.vendor_minor), info)
            for name in (info.uuid, info.bus_id):
                if name:
                    self._by_id.setdefault((kind, name), target)
            if info.vf_groups:
                self._with_functions.append(info)
            for part in info.partitions:
                slice_target = replace(target, partition=part, part_id=part.uuid)
                self._by_id.setdefault((kind, part.uuid), slice_target)

    def find_by_function(self, address: str) -> VendorDevice | None:
        """Return the device with a virtual function for pods at that address."""
        return next(
            (device for device in self._with_functions if address in virtual_functions_of(device)),
            None,
        )

    def find_by_vendor_minor(self, kind: DeviceKind, vendor_minor: int) -> VendorDevice | None:
        """Return the device with this number of its driver."""
        return self._by_vendor_minor.get((kind, vendor_minor))

    def find(self, entry: AllocatedDevice) -> AllocationTarget:
        """Return the device of an entry: its id decides; the minor is used only without an id.

        Raise `AllocationRefused` if the device is not on this node.
        """
        if entry.id:
            name, separator, _ = entry.id.partition(REPLICA_SEPARATOR)
            target = self._by_id.get((entry.type, name))
            if target is not None:
                return replace(target, part_id=entry.id) if separator else target
            description = entry.id
        else:
            minor = -1 if entry.minor is None else entry.minor
            target = self._by_minor.get((entry.type, minor))
            if target is not None:
                return target
            description = f"minor {entry.minor}"
        refusal = (
            RefusalReason.DEVICE_UNKNOWN
            if self._is_complete
            else RefusalReason.DEVICES_NOT_KNOWN_YET
        )
        raise AllocationRefused(refusal, f"no {entry.type} device {description!r} is on this node")


def virtual_functions_of(device: VendorDevice) -> frozenset[str]:
    """Return the addresses of the virtual functions that pods may use."""
    return frozenset(vf.bus_id for group in device.vf_groups for vf in group.vfs)


def refuse_unusable(target: AllocationTarget, *, is_running: bool) -> None:
    """Raise `AllocationRefused` for a device that no pod may use.

    A running pod keeps a device that fails or reports no amounts, but not one that another driver
    manages now, or that was partitioned.
    """
    info, unschedulable_reason = (
        target.device,
        dict(target.device.facts).get(UNSCHEDULABLE_FACT, ""),
    )
    if not info.managed:
        message = f"{info.key} is not for pods: {info.health.message}"
        raise AllocationRefused(RefusalReason.DEVICE_NOT_GRANTABLE, message)
    is_partitioned = unschedulable_reason == RefusalReason.MIG_ENABLED.value
    if unschedulable_reason and target.partition is None and (is_partitioned or not is_running):
        message = (
            f"{info.key} was granted, but is cut into slices"
            if is_partitioned
            else f"{info.key}: {unschedulable_reason}"
        )
        raise AllocationRefused(
            RefusalReason.MIG_ENABLED if is_partitioned else RefusalReason.DEVICE_NOT_GRANTABLE,
            message,
        )
    health = info.health if target.partition is None else target.partition.health
    if not is_running and not (info.health.is_in_service and health.is_in_service):
        bad_health = health if not health.is_in_service else info.health
        message = f"{info.key}: {bad_health.reason}: {bad_health.message}"
        raise AllocationRefused(RefusalReason.DEVICE_OUT_OF_SERVICE, message)
    if not is_running and not info.resources and target.partition is None:
        message = f"{info.key}: {info.health.message}"
        raise AllocationRefused(RefusalReason.DEVICE_NOT_GRANTABLE, message)


def totals_of(device: VendorDevice) -> Mapping[str, int]:
    """Return the total amount of each resource of the device, in base units."""
    return _parse_totals(device.resources) or _PERCENT_TOTALS[device.kind.wire_type]


@lru_cache(maxsize=128)
def _parse_totals(resources: Pairs) -> Mapping[str, int]:
    amounts = ((name, parse_quantity(text)) for name, text in resources)
    return {name: quantity.value for name, quantity in amounts if quantity is not None}


def is_whole_device(amounts: Mapping[str, int], totals: Mapping[str, int]) -> bool:
    """Return whether amounts are those of the whole device.

    Its memory decides, because nothing is left when all memory is allocated; without an amount of
    memory, any other full amount does.
    """
    names = [name for name in (RATIO, MEMORY) if name in amounts] or list(amounts)
    return any(amounts[name] >= totals[name] for name in names)


class DeviceShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one entry of an allocation uses: the whole device, amounts, or named parts."""

    device_key: str  # Device.key
    totals: Mapping[str, int]
    is_whole: bool = False
    amounts: Mapping[str, int] = {}
    part_id: str = ""  # a slice or a replica
    functions: tuple[str, ...] = ()  # virtual ones


def share_of(entry: AllocatedDevice, target: AllocationTarget) -> DeviceShare:
    """Return what an entry uses of its device; raise `AllocationRefused` if that is impossible.

    Amounts of resources that the device does not have are ignored, because upstream's scheduler
    writes some. An entry without any other amount uses the whole device.
    """
    key, totals = target.key, target.totals
    if entry.vfs:
        _check_functions(entry, target)
    if target.part_id:
        return DeviceShare(device_key=key, totals=totals, part_id=target.part_id)
    amounts = {name: amount for name, amount in entry.resources if name in totals}
    if amounts and not any(amounts.values()):
        raise AllocationRefused(RefusalReason.INCOMPLETE_GRANT, f"{key}: nothing of it")
    is_whole = is_whole_device(amounts, totals) if amounts else not entry.vfs
    if is_whole and amounts.get(RATIO) == totals.get(RATIO):
        amounts.pop(MEMORY, None)  # another driver may report a slightly different total
    for name, amount in amounts.items():
        if amount > totals[name]:
            message = f"{key}: {amount} of {name} was granted, it has {totals[name]}"
            raise AllocationRefused(RefusalReason.DEVICE_TAKEN, message)
    return DeviceShare(
        device_key=key, totals=totals, is_whole=is_whole, amounts=amounts, functions=entry.vfs
    )


def _check_functions(entry: AllocatedDevice, target: AllocationTarget) -> None:
    functions = virtual_functions_of(target.device)
    for address in entry.vfs:
        if address not in functions:
            message = f"{address[:64]!r} is no virtual function of {target.key} for pods"
            raise AllocationRefused(RefusalReason.VIRTUAL_FUNCTION_UNKNOWN, message)
    if len(set(entry.vfs)) < len(entry.vfs):
        raise AllocationRefused(RefusalReason.BAD_GRANT, f"{target.key}: one function twice")


class _SharesOfDevice:
    """The shares of one device."""

    def __init__(self) -> None:
        self.whole_holder = ""  # the pod that uses the whole device
        self.used: dict[str, int] = {}
        self.sharers: dict[str, None] = {}  # pods that use amounts, in the order of their shares
        self.part_holders: dict[str, str] = {}  # pod by slice, replica or function
        self.part_ids: set[str] = set()  # those of `part_holders` that are slices or replicas


class ShareTable:
    """The shares of all devices; names of holders are for messages."""

    def __init__(self) -> None:
        self._by_device: dict[str, _SharesOfDevice] = {}

    def add_all(self, holder: str, new_shares: Iterable[DeviceShare]) -> None:
        """Add all shares of one pod, or none and raise `AllocationRefused`."""
        shares = tuple(new_shares)
        updated: dict[str, _SharesOfDevice] = {}
        for share in shares:
            account = updated.get(share.device_key)
            if account is None:
                account = updated[share.device_key] = _copy_shares(
                    self._by_device.get(share.device_key)
                )
            _add_share(account, share, holder)
        self._by_device.update(updated)


def _copy_shares(account: _SharesOfDevice | None) -> _SharesOfDevice:
    new = _SharesOfDevice()
    if account is not None:
        new.whole_holder, new.used, new.sharers = (
            account.whole_holder,
            dict(account.used),
            dict(account.sharers),
        )
        new.part_holders, new.part_ids = dict(account.part_holders), set(account.part_ids)
    return new


def _add_share(account: _SharesOfDevice, share: DeviceShare, holder: str) -> None:
    if account.whole_holder:
        raise _in_use_error(share, account.whole_holder)
    if share.part_id:
        _refuse_if_shared(share, account.sharers)
        _add_part(account, share, share.part_id, holder)
        account.part_ids.add(share.part_id)
        return
    if account.part_ids:
        raise _in_use_error(share, account.part_holders[min(account.part_ids)])
    if share.is_whole:
        _refuse_if_shared(share, account.sharers)
        account.whole_holder = holder
    for address in share.functions:
        _add_part(account, share, address, holder)
    for name, amount in share.amounts.items():
        used = account.used.get(name, 0) + amount
        if used > share.totals[name]:
            message = (
                f"{amount} of {name} was granted, {share.totals[name] - used + amount} are left"
            )
            raise AllocationRefused(
                RefusalReason.DEVICE_TAKEN,
                f"{share.device_key}: {message} by {', '.join(account.sharers)}",
            )
        account.used[name] = used
    account.sharers[holder] = None


def _add_part(account: _SharesOfDevice, share: DeviceShare, name: str, holder: str) -> None:
    if name in account.part_holders:
        raise _in_use_error(share, account.part_holders[name], f" {name}")
    account.part_holders[name] = holder


def _refuse_if_shared(share: DeviceShare, sharers: Mapping[str, None]) -> None:
    if sharers:
        raise _in_use_error(share, next(iter(sharers)))


def _in_use_error(share: DeviceShare, holder: str, part: str = "") -> AllocationRefused:
    return AllocationRefused(
        RefusalReason.DEVICE_TAKEN, f"{share.device_key}{part} is held by {holder}"
    )


class KubeletShare(msgspec.Struct, frozen=True, kw_only=True):
    """What the kubelet assigned to a pod of one device; `holder` is for messages."""

    uid: str
    holder: str
    type: str  # of the device, as in allocations
    share: DeviceShare
    resource: str = ""  # nvidia.com/gpu
    container: str = ""  # name; empty: unknown container of the pod


def kubelet_shares(
    snapshot: NodeSnapshot, pods: Mapping[str, PodView], devices: DeviceIndex
) -> Mapping[str, tuple[KubeletShare, ...]]:
    """Return the kubelet's assignments, by Device.key; `pods` are by uid.

    If a device was exchanged for the kubelet's choice, the exchanged one counts. For a pod with an
    allocation of such devices, the allocation counts instead: callers leave out these pods. NICs
    that many pods share by replicas, and unknown ids, are left out.
    """
    by_key: dict[str, list[KubeletShare]] = {}
    for assignment in snapshot.served.value.held:
        pod = pods.get(assignment.pod_uid)
        is_deleted = pod is None and snapshot.cluster.has_pod_list
        if is_deleted or (pod is not None and pod.phase in ENDED_PHASES):
            continue
        name = f"{pod.namespace}/{pod.name}" if pod is not None else f"pod {assignment.pod_uid}"
        for device_id in assignment.device_ids:
            kind_and_share = _share_of_id(device_id, devices)
            if kind_and_share is not None:
                kind, share = kind_and_share
                holder = f"{name}, by {assignment.resource},"
                kubelet_share = KubeletShare(
                    uid=assignment.pod_uid,
                    holder=holder,
                    type=kind,
                    share=share,
                    resource=assignment.resource,
                    container=assignment.container,
                )
                by_key.setdefault(share.device_key, []).append(kubelet_share)
    return {key: tuple(shares) for key, shares in by_key.items()}


def _share_of_id(device_id: str, devices: DeviceIndex) -> tuple[str, DeviceShare] | None:
    """Return the type of a device and the share that an id stands for; `None` for no share."""
    card = devices.find_by_function(device_id)
    if card is not None:
        share = DeviceShare(device_key=card.key, totals=totals_of(card), functions=(device_id,))
        return card.kind.wire_type, share
    target = _find_target(device_id, devices)
    if target is None:
        return None
    if target.device.kind is DeviceKind.RDMA and target.part_id:
        return None
    entry = AllocatedDevice(type=target.device.kind.wire_type, id=device_id)
    return entry.type, share_of(entry, target)


def _find_target(device_id: str, devices: DeviceIndex) -> AllocationTarget | None:
    for kind in DEVICE_TYPES:
        try:
            return devices.find(AllocatedDevice(type=kind, id=device_id))
        except AllocationRefused:
            continue
    number = parse_chip_number(device_id.partition(REPLICA_SEPARATOR)[0])
    chip = devices.find_by_vendor_minor(DeviceKind.NPU, number) if number is not None else None
    if chip is None:
        return None
    return AllocationTarget(device=chip, key=chip.key, totals=totals_of(chip))
