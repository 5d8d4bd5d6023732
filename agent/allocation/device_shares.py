"""The devices that grants may mean, found by id or minor.

Who holds what of each device. Nothing is ever held twice.

What the kubelet gave to pods that the scheduler granted nothing: theirs as well.
"""

from __future__ import annotations

import re
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
from agent.snapshot.device import Device, DeviceKind, DevicePartition, Pairs, VendorDevice
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import ENDED_PHASES, PodView
from agent.wire_formats.quantities import parse_quantity

RDMA_RESOURCE = "koordinator.sh/rdma"

UNSCHEDULABLE_FACT = "unschedulable"  # the fact by which a vendor says why nothing can be granted

_FULL_PERCENT = 100

# of a device that does not tell what of it there is, as while its library does not answer
_PERCENT_TOTALS: Mapping[str, Mapping[str, int]] = {
    "gpu": {CORE: _FULL_PERCENT, RATIO: _FULL_PERCENT},
    "rdma": {RDMA_RESOURCE: _FULL_PERCENT},
}


class AllocationTarget(msgspec.Struct, frozen=True, kw_only=True):
    """What an allocated entry means; `part_id` names a slice or a replica of the device."""

    device: VendorDevice
    key: str  # Device.key
    totals: Mapping[str, int]  # how much of each resource the device has, in base units
    partition: DevicePartition | None = None
    part_id: str = ""


class DeviceIndex:
    """All devices of the node at one moment."""

    def __init__(
        self, devices: Iterable[Device], *, complete: bool, final_minors: bool = True
    ) -> None:
        """Index them. Not `complete`: a vendor may still tell of more.

        Without `final_minors` no device is found by its minor: it may be another device's.
        """
        self._is_complete = complete
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
        """Return the device that has a virtual function for pods at that address."""
        return next(
            (one for one in self._with_functions if address in virtual_functions_of(one)), None
        )

    def find_by_vendor_minor(self, kind: DeviceKind, vendor_minor: int) -> VendorDevice | None:
        """Return the device with this driver's number."""
        return self._by_vendor_minor.get((kind, vendor_minor))

    def find(self, entry: AllocatedDevice) -> AllocationTarget:
        """Return what an entry means: its id decides, the minor only where there is none.

        Raises `GrantRefused` for what is not here.
        """
        if entry.id:
            name, separator, _ = entry.id.partition(REPLICA_SEPARATOR)
            target = self._by_id.get((entry.type, name))
            if target is not None:
                return replace(target, part_id=entry.id) if separator else target
            asked = entry.id
        else:
            minor = -1 if entry.minor is None else entry.minor
            target = self._by_minor.get((entry.type, minor))
            if target is not None:
                return target
            asked = f"minor {entry.minor}"
        refusal = (
            RefusalReason.DEVICE_UNKNOWN
            if self._is_complete
            else RefusalReason.DEVICES_NOT_KNOWN_YET
        )
        raise AllocationRefused(refusal, f"no {entry.type} device {asked!r} is on this node")


def virtual_functions_of(device: VendorDevice) -> frozenset[str]:
    """Return the addresses of the virtual functions that pods may have."""
    return frozenset(vf.bus_id for group in device.vf_groups for vf in group.vfs)


def refuse_unusable(found: AllocationTarget, *, running: bool) -> None:
    """Raise `GrantRefused` for a device that no pod may have.

    A pod that runs keeps a device that fails or does not tell what it has; not one that became
    another driver's, or was cut into pieces.
    """
    info, why = found.device, dict(found.device.facts).get(UNSCHEDULABLE_FACT, "")
    if not info.managed:
        told = f"{info.key} is not for pods: {info.health.message}"
        raise AllocationRefused(RefusalReason.DEVICE_NOT_GRANTABLE, told)
    cut = why == RefusalReason.MIG_ENABLED.value
    if why and found.partition is None and (cut or not running):
        told = f"{info.key} was granted, but is cut into slices" if cut else f"{info.key}: {why}"
        raise AllocationRefused(
            RefusalReason.MIG_ENABLED if cut else RefusalReason.DEVICE_NOT_GRANTABLE, told
        )
    health = info.health if found.partition is None else found.partition.health
    if not running and not (info.health.is_in_service and health.is_in_service):
        bad = health if not health.is_in_service else info.health
        told = f"{info.key}: {bad.reason}: {bad.message}"
        raise AllocationRefused(RefusalReason.DEVICE_OUT_OF_SERVICE, told)
    if not running and not info.resources and found.partition is None:
        told = f"{info.key}: {info.health.message}"
        raise AllocationRefused(RefusalReason.DEVICE_NOT_GRANTABLE, told)


def totals_of(device: VendorDevice) -> Mapping[str, int]:
    """Return how much of each resource the device has, in base units."""
    return _parse_totals(device.resources) or _PERCENT_TOTALS[device.kind.wire_type]


@lru_cache(maxsize=128)
def _parse_totals(resources: Pairs) -> Mapping[str, int]:
    told = ((name, parse_quantity(text)) for name, text in resources)
    return {name: quantity.value for name, quantity in told if quantity is not None}


def is_whole_device(amounts: Mapping[str, int], totals: Mapping[str, int]) -> bool:
    """Say whether amounts are those of the whole device.

    Its memory decides, of which nothing is left then; where none was granted, any amount does.
    """
    deciding = [name for name in (RATIO, MEMORY) if name in amounts] or list(amounts)
    return any(amounts[name] >= totals[name] for name in deciding)


class DeviceShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one entry of a grant takes: all, amounts of it, or named pieces of it."""

    device_key: str  # Device.key
    totals: Mapping[str, int]
    is_whole: bool = False
    amounts: Mapping[str, int] = {}
    part_id: str = ""  # a slice or a replica
    functions: tuple[str, ...] = ()  # virtual ones


def share_of(entry: AllocatedDevice, found: AllocationTarget) -> DeviceShare:
    """Return what an entry takes of what it means; raise `GrantRefused` if that cannot be.

    Amounts of a kind that the device does not have are passed over: upstream's scheduler writes
    some. An entry that then has no amount takes the whole device.
    """
    key, totals = found.key, found.totals
    if entry.vfs:
        _check_functions(entry, found)
    if found.part_id:
        return DeviceShare(device_key=key, totals=totals, part_id=found.part_id)
    amounts = {name: amount for name, amount in entry.resources if name in totals}
    if amounts and not any(amounts.values()):
        raise AllocationRefused(RefusalReason.INCOMPLETE_GRANT, f"{key}: nothing of it")
    whole = is_whole_device(amounts, totals) if amounts else not entry.vfs
    if whole and amounts.get(RATIO) == totals.get(RATIO):
        amounts.pop(MEMORY, None)  # another driver may count a little more or less of it
    for name, amount in amounts.items():
        if amount > totals[name]:
            told = f"{key}: {amount} of {name} was granted, it has {totals[name]}"
            raise AllocationRefused(RefusalReason.DEVICE_TAKEN, told)
    return DeviceShare(
        device_key=key, totals=totals, is_whole=whole, amounts=amounts, functions=entry.vfs
    )


def _check_functions(entry: AllocatedDevice, found: AllocationTarget) -> None:
    known = virtual_functions_of(found.device)
    for address in entry.vfs:
        if address not in known:
            told = f"{address[:64]!r} is no virtual function of {found.key} for pods"
            raise AllocationRefused(RefusalReason.VIRTUAL_FUNCTION_UNKNOWN, told)
    if len(set(entry.vfs)) < len(entry.vfs):
        raise AllocationRefused(RefusalReason.BAD_GRANT, f"{found.key}: one function twice")


class _SharesOfDevice:
    """One device."""

    def __init__(self) -> None:
        self.whole_holder = ""  # who has it all
        self.used: dict[str, int] = {}
        self.sharers: dict[str, None] = {}  # who has amounts of it, the first first
        self.part_holders: dict[str, str] = {}  # who has which slice, replica or function
        self.part_ids: set[str] = set()  # those of `named` that are slices or replicas


class ShareTable:
    """All devices; names of holders are for people."""

    def __init__(self) -> None:
        self._by_device: dict[str, _SharesOfDevice] = {}

    def add_all(self, holder: str, holds: Iterable[DeviceShare]) -> None:
        """Enter all holds of one pod, or none and raise `GrantRefused`."""
        wanted = tuple(holds)
        tried: dict[str, _SharesOfDevice] = {}
        for hold in wanted:
            account = tried.get(hold.device_key)
            if account is None:
                account = tried[hold.device_key] = _copy_shares(
                    self._by_device.get(hold.device_key)
                )
            _add_share(account, hold, holder)
        self._by_device.update(tried)


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


def _add_share(account: _SharesOfDevice, hold: DeviceShare, holder: str) -> None:
    if account.whole_holder:
        raise _taken_error(hold, account.whole_holder)
    if hold.part_id:
        _refuse_if_shared(hold, account.sharers)
        _add_part(account, hold, hold.part_id, holder)
        account.part_ids.add(hold.part_id)
        return
    if account.part_ids:
        raise _taken_error(hold, account.part_holders[min(account.part_ids)])
    if hold.is_whole:
        _refuse_if_shared(hold, account.sharers)
        account.whole_holder = holder
    for address in hold.functions:
        _add_part(account, hold, address, holder)
    for name, amount in hold.amounts.items():
        used = account.used.get(name, 0) + amount
        if used > hold.totals[name]:
            told = f"{amount} of {name} was granted, {hold.totals[name] - used + amount} are left"
            raise AllocationRefused(
                RefusalReason.DEVICE_TAKEN,
                f"{hold.device_key}: {told} by {', '.join(account.sharers)}",
            )
        account.used[name] = used
    account.sharers[holder] = None


def _add_part(account: _SharesOfDevice, hold: DeviceShare, name: str, holder: str) -> None:
    if name in account.part_holders:
        raise _taken_error(hold, account.part_holders[name], f" {name}")
    account.part_holders[name] = holder


def _refuse_if_shared(hold: DeviceShare, sharers: Mapping[str, None]) -> None:
    if sharers:
        raise _taken_error(hold, next(iter(sharers)))


def _taken_error(hold: DeviceShare, by: str, what: str = "") -> AllocationRefused:
    return AllocationRefused(RefusalReason.DEVICE_TAKEN, f"{hold.device_key}{what} is held by {by}")


_CHIP_NUMBER = re.compile(r"(?:Ascend[0-9A-Z]{2,8}|npu)-([0-9]{1,4})")  # whole chips, by number


class KubeletShare(msgspec.Struct, frozen=True, kw_only=True):
    """What the kubelet gave to a pod of one device; `holder` is for people."""

    uid: str
    holder: str
    type: str  # of the device, as grants call it
    share: DeviceShare
    resource: str = ""  # nvidia.com/gpu
    container: str = ""  # name; empty: which of the pod's is not known


def kubelet_shares(
    snapshot: NodeSnapshot, pods: Mapping[str, PodView], known: DeviceIndex
) -> Mapping[str, tuple[KubeletShare, ...]]:
    """Return who holds what by the kubelet's account, by Device.key; `pods` are by uid.

    A device that was exchanged for the kubelet's choice counts in its place. Of a pod that the
    scheduler granted such devices to those count, whichever ids the kubelet chose: whoever asks
    leaves such pods out. NICs that many share by replicas are nobody's; ids that mean nothing here
    are passed over.
    """
    by_key: dict[str, list[KubeletShare]] = {}
    for held in snapshot.served.value.held:
        pod = pods.get(held.pod_uid)
        gone = pod is None and snapshot.cluster.has_pod_list
        if gone or (pod is not None and pod.phase in ENDED_PHASES):
            continue
        name = f"{pod.namespace}/{pod.name}" if pod is not None else f"pod {held.pod_uid}"
        for device_id in held.device_ids:
            found = _share_of_id(device_id, known)
            if found is not None:
                kind, hold = found
                holder = f"{name}, by {held.resource},"
                one = KubeletShare(
                    uid=held.pod_uid,
                    holder=holder,
                    type=kind,
                    share=hold,
                    resource=held.resource,
                    container=held.container,
                )
                by_key.setdefault(hold.device_key, []).append(one)
    return {key: tuple(given) for key, given in by_key.items()}


def _share_of_id(device_id: str, known: DeviceIndex) -> tuple[str, DeviceShare] | None:
    """Return the type of a device and what of it an id takes; `None` for one that takes nothing."""
    card = known.find_by_function(device_id)
    if card is not None:
        hold = DeviceShare(device_key=card.key, totals=totals_of(card), functions=(device_id,))
        return card.kind.wire_type, hold
    found = _find_target(device_id, known)
    if found is None:
        return None
    if found.device.kind is DeviceKind.RDMA and found.part_id:
        return None
    entry = AllocatedDevice(type=found.device.kind.wire_type, id=device_id)
    return entry.type, share_of(entry, found)


def _find_target(device_id: str, known: DeviceIndex) -> AllocationTarget | None:
    for kind in ("gpu", "rdma"):
        try:
            return known.find(AllocatedDevice(type=kind, id=device_id))
        except AllocationRefused:
            continue
    numbered = _CHIP_NUMBER.fullmatch(device_id.partition(REPLICA_SEPARATOR)[0])
    chip = (
        known.find_by_vendor_minor(DeviceKind.NPU, int(numbered[1]))
        if numbered is not None
        else None
    )
    if chip is None:
        return None
    return AllocationTarget(device=chip, key=chip.key, totals=totals_of(chip))
