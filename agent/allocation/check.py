"""Checks every pod's allocation against its requests, the devices here, and all other allocations.

Also here: rules for allocations whose devices are sliced for the pod (vNPUs and sMLUs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

from msgspec.structs import replace

from agent.allocation.device_shares import (
    AllocationTarget,
    DeviceShare,
    KubeletShare,
    ShareTable,
    is_whole_device,
    refuse_unusable,
    share_of,
)
from agent.allocation.index import (
    AllocationAnnotation,
    AllocationCheckInputs,
    AllocationIndex,
    AllocationTables,
    AnnotationReader,
    allocation_annotation,
    decode_annotation,
    decode_or_empty,
    has_ended,
)
from agent.errors import ParseError
from agent.snapshot.allocation import (
    CORE,
    MEMORY,
    RATIO,
    AllocatedDevice,
    AllocationRefused,
    AllocationView,
    DeviceAllocation,
    PodAllocation,
    RefusalReason,
)
from agent.snapshot.container import PodSandbox
from agent.snapshot.device import DeviceKind
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import RequestedAmounts
from agent.wire_formats.resource_requests import SCHEDULED_RESOURCES, WHOLE_GPU_RESOURCES

_WHOLE_GPU, _SHARED_GPU = "koordinator.sh/gpu", "koordinator.sh/gpu.shared"

_WHOLE = 100

_TOLERANCE_PERCENT = 2  # the other form of memory is rounded, and the total may have changed since

_RUNNING_TEXT = "; a container of the pod runs, and keeps its devices until the pod is deleted"

TargetEntries = Sequence[tuple[AllocatedDevice, AllocationTarget]]


def refuse_unrequested(
    entries: TargetEntries, requested: RequestedAmounts, *, is_holding: bool = False
) -> None:
    """Raise `AllocationRefused` for devices that do not follow from the pod's requests.

    Users may write the annotation, and a scheduler leaves the annotation of a pod without requests
    unchanged. With `is_holding`, a container of the pod has the devices already. Then the amounts
    are not compared: a device's total memory may have changed since the container started.
    """
    requests = dict(requested)
    for entry, _ in entries:
        if requests.keys().isdisjoint(SCHEDULED_RESOURCES.get(entry.type, ())):
            message = f"the pod asks for nothing of type {entry.type}"
            raise AllocationRefused(
                RefusalReason.NOT_ASKED_FOR, message + (_RUNNING_TEXT if is_holding else "")
            )
    cards = [(entry, target) for entry, target in entries if entry.type == "gpu"]
    if cards:
        _check_cards(cards, _requests_in_percent(requests), is_holding=is_holding)


def _requests_in_percent(requests: Mapping[str, int]) -> Mapping[str, int]:
    """Return requests with whole cards in the percents that schedulers use."""
    whole_percent = requests.get(_WHOLE_GPU, 0) + _WHOLE * sum(
        requests.get(name, 0) for name in WHOLE_GPU_RESOURCES
    )
    in_percent = dict(requests)
    for name in (CORE, RATIO):
        if percent := whole_percent + requests.get(name, 0):
            in_percent[name] = percent
    return in_percent


def _check_cards(cards: TargetEntries, requests: Mapping[str, int], *, is_holding: bool) -> None:
    percent = max(requests.get(CORE, 0), requests.get(RATIO, 0))
    max_cards = max(requests.get(_SHARED_GPU, 0), -(-percent // _WHOLE), 1)
    if len(cards) > max_cards:
        message = f"{len(cards)} cards, and the pod asks for {max_cards}"
        raise AllocationRefused(
            RefusalReason.NOT_ASKED_FOR, message + (_RUNNING_TEXT if is_holding else "")
        )
    if is_holding:
        return
    allocated: dict[str, int] = {}
    for entry, target in cards:
        amounts = _entry_amounts(entry, target)
        _check_memory_forms(amounts, target, requests)
        for name, amount in amounts.items():
            allocated[name] = allocated.get(name, 0) + amount
    for name, amount in allocated.items():
        if name in requests and amount > requests[name]:
            message = f"{amount} of {name}, and the pod asks for {requests[name]}"
            raise AllocationRefused(RefusalReason.NOT_ASKED_FOR, message)


def _entry_amounts(entry: AllocatedDevice, target: AllocationTarget) -> Mapping[str, int]:
    """Return the allocated amounts; an entry without amounts allocates the whole card."""
    if entry.resources or target.part_id:
        return dict(entry.resources)
    return {RATIO: _WHOLE, MEMORY: target.totals.get(MEMORY, 0)}


def _check_memory_forms(
    amounts: Mapping[str, int], target: AllocationTarget, requests: Mapping[str, int]
) -> None:
    """Refuse memory that exceeds the request in the form that was not requested."""
    total, ratio, memory = (
        target.totals.get(MEMORY),
        amounts.get(RATIO),
        amounts.get(MEMORY),
    )
    if not total or ratio is None or memory is None:
        return
    has_more_bytes = (
        MEMORY not in requests and memory * _WHOLE > (ratio + _TOLERANCE_PERCENT) * total
    )
    has_higher_ratio = (
        RATIO not in requests and (ratio - _TOLERANCE_PERCENT) * total > memory * _WHOLE
    )
    if has_more_bytes or has_higher_ratio:
        message = f"{target.key}: {ratio} percent of memory and {memory} bytes of {total}"
        raise AllocationRefused(RefusalReason.NOT_ASKED_FOR, message)


_SLICED_KINDS = (DeviceKind.NPU, DeviceKind.MLU)  # a partitioned GPU reports that itself


def refuse_mixed_slices(entries: TargetEntries) -> None:
    """Raise `AllocationRefused` for slices of several cards, or beside whole ones.

    One container has at most one vNPU of one chip, and one sMLU of one card. An accelerator may be
    in an allocation only once: the limits of a second share would be those of the card behind it.
    """
    if len(entries) < 2:
        return
    shared = [target.key for entry, target in entries if not (target.part_id or entry.vfs)]
    repeated = next((key for key, times in Counter(shared).items() if times > 1), None)
    if repeated is not None:
        raise AllocationRefused(RefusalReason.BAD_GRANT, f"{repeated} is in it twice")
    chips = [pair for pair in entries if pair[1].device.kind is DeviceKind.NPU]
    if len(chips) > 1 and any(entry.template or target.partition for entry, target in chips):
        raise AllocationRefused(RefusalReason.MIXED_GRANT, "a pod has one vNPU, or whole chips")
    cards = [pair for pair in entries if pair[1].device.kind is DeviceKind.MLU]
    if len(cards) > 1 and any(_is_share(entry, target) for entry, target in cards):
        raise AllocationRefused(
            RefusalReason.MIXED_GRANT, "a pod has a slice of one card, or whole cards"
        )


def refuse_sliced_device(entry: AllocatedDevice, target: AllocationTarget, uid: str) -> None:
    """Raise `AllocationRefused` for a whole chip or card if other pods have slices of it.

    Slices without a known owner count too: people, or the vendor's own plug-in, made them.
    """
    device = target.device
    if (
        device.kind not in _SLICED_KINDS
        or target.part_id
        or entry.template
        or _is_share(entry, target)
    ):
        return
    other = next((part.uuid for part in device.partitions if part.owner != uid), None)
    if other is not None:
        raise AllocationRefused(
            RefusalReason.DEVICE_TAKEN, f"{target.key} is cut: {other[:64]} is a slice"
        )


def _is_share(entry: AllocatedDevice, target: AllocationTarget) -> bool:
    totals = target.totals
    amounts = {name: amount for name, amount in entry.resources if name in totals}
    return target.partition is not None or (bool(amounts) and not is_whole_device(amounts, totals))


POD_NOT_LISTED = "neither the API server nor the kubelet lists the pod, so its requests are unknown"

_NO_PODS: Mapping[str, PodAllocation] = MappingProxyType({})


def check_allocations(
    snapshot: NodeSnapshot, index: AllocationIndex | None = None
) -> AllocationView:
    """Return every pod's allocation; no device is allocated beyond what it has.

    If allocations contradict each other, the pod that has the device keeps it; otherwise the older
    pod gets it, then the first by uid. Equal pods give an equal view in any order. Devices that the
    kubelet assigned to pods without an allocation stay theirs, except against pods that have a
    device by an allocation.

    A refused allocation is empty, uses nothing and has a reason. In a cluster, a pod that neither
    the API server nor the kubelet lists gets no devices; running containers keep theirs. All
    containers of a pod share its allocation, because the annotation does not distinguish them.
    `index` saves time and does not change the result.
    """
    index = index or AllocationIndex()
    tables = index.tables(snapshot)
    annotations = AnnotationReader(snapshot, tables).read(tables.allocated)
    shares = tables.kubelet_shares
    checked_ids = {
        pod.uid for pod in snapshot.cluster.pods
    } | snapshot.runtime.value.sandboxes.keys()
    inputs = AllocationCheckInputs(
        devices=tables.devices, annotations=annotations, kubelet_shares=shares
    )
    if index.last_check is not None and index.last_check[0] == inputs:
        return replace(index.last_check[1], looked=frozenset(checked_ids))
    check = _AllocationCheck(snapshot, tables)
    check.check_in_order(annotations, shares)
    view = AllocationView(pods=check.pods, held=check.holders(), looked=frozenset(checked_ids))
    index.last_check = inputs, view
    return view


def pod_allocation(
    snapshot: NodeSnapshot, sandbox: PodSandbox, index: AllocationIndex | None = None
) -> PodAllocation | None:
    """Return the current allocation of a pod; `None` if it has no annotation.

    This is fast enough for requests: it checks only the pods that use the same devices and those
    newer than `snapshot.allocations`. Neither the pod nor the sandbox needs to be in the snapshot.
    `index` saves time and does not change the result.
    """
    text = allocation_annotation(sandbox)
    if text is None:
        return None
    tables = (index or AllocationIndex()).tables(snapshot)
    check = _AllocationCheck(snapshot, tables)
    view = snapshot.allocations.value
    before = view.pods.get(sandbox.uid)
    reader = AnnotationReader(snapshot, tables, sandbox)
    uids = tables.unchecked | {sandbox.uid}
    keys = check.keys_of(text)
    is_contested = len(uids) > 1 or not _was_accepted(before, sandbox, text, view)
    if is_contested:
        uids |= _holders(view, keys)
    check.check_with_holders(reader, uids, keys, tables.kubelet_shares, view)
    return check.pods.get(sandbox.uid)


def _was_accepted(
    before: PodAllocation | None, sandbox: PodSandbox, text: str, view: AllocationView
) -> bool:
    """Return whether the last check accepted what the annotation `text` of a sandbox allocates.

    The annotation of a sandbox stays. That of a pod that only a list has may have changed since.
    """
    if before is None or before.refusal:
        return False
    if sandbox.id:
        return sandbox.id in view.looked
    return sandbox.uid in view.looked and before.grant.devices == decode_or_empty(text)


def current_allocations(
    snapshot: NodeSnapshot, index: AllocationIndex | None = None
) -> AllocationView:
    """Return the last check, updated with new annotations, without pods that the kubelet has freed.

    Requests use it, as they use `pod_allocation`: the check of all allocations runs only every half
    second.
    """
    tables = (index or AllocationIndex()).tables(snapshot)
    view, pods, deleted = snapshot.allocations.value, tables.pods, snapshot.cluster.deleted_pods
    holders = {uid for uids in view.held.values() for uid in uids}
    freed = {uid for uid in holders if uid in deleted or (uid in pods and has_ended(pods[uid]))}
    reader = AnnotationReader(snapshot, tables)
    new = tables.unchecked
    if not (new or freed):
        return view
    check = _AllocationCheck(snapshot, tables)
    keys = {key for annotation in reader.read(new) for key in check.keys_of(annotation.text)}
    check.check_with_holders(reader, new | _holders(view, keys), keys, tables.kubelet_shares, view)
    rechecked = freed | check.pods.keys()
    uids_by_device = {
        key: [uid for uid in uids if uid not in rechecked] for key, uids in view.held.items()
    }
    for key, uids in check.holders().items():
        uids_by_device[key] = [*uids_by_device.get(key, ()), *uids]
    before = {uid: allocation for uid, allocation in view.pods.items() if uid not in freed}
    return replace(
        view,
        pods={**before, **check.pods},
        held={key: tuple(uids) for key, uids in uids_by_device.items() if uids},
    )


def _holders(view: AllocationView, keys: Iterable[str]) -> set[str]:
    """Return the pods that use something of these devices, by the last check."""
    return {uid for key in keys for uid in view.held.get(key, ())}


class _AllocationCheck:
    """Checks annotations one after the other."""

    def __init__(self, snapshot: NodeSnapshot, tables: AllocationTables) -> None:
        self._devices = tables.devices
        self._targets: dict[AllocatedDevice, AllocationTarget] = {}
        self._slicers = tables.slicers
        self._is_clustered = snapshot.cluster.is_clustered
        self._shares_table = ShareTable()
        self._holders: dict[str, dict[str, None]] = {}
        self.pods: dict[str, PodAllocation] = {}

    def check_in_order(
        self,
        annotations: Sequence[AllocationAnnotation],
        kubelet_shares: Mapping[str, tuple[KubeletShare, ...]],
        before: Mapping[str, PodAllocation] = _NO_PODS,
    ) -> None:
        """Accept or refuse each annotation, in the order in which `AnnotationReader` returns them.

        The kubelet's pods come after those that have their devices. `kubelet_shares` are the
        kubelet's assignments of the annotated devices. `before` are results of earlier checks of
        more pods.
        """
        pending_shares = kubelet_shares
        for position, annotation in enumerate(annotations):
            if pending_shares and not annotation.is_holding_devices:
                self._add_kubelet_shares(pending_shares, annotations[position:], before)
                pending_shares = {}
            self.pods[annotation.uid] = self._check_pod(annotation)

    def check_with_holders(
        self,
        reader: AnnotationReader,
        uids: frozenset[str] | set[str],
        keys: set[str],
        kubelet_shares: Mapping[str, tuple[KubeletShare, ...]],
        view: AllocationView,
    ) -> None:
        """Check the annotations of these pods, and of the pods that use the devices `keys`.

        `kubelet_shares` are the kubelet's assignments, and `view` is the last check.
        """
        annotations = reader.read(uids)
        while kubelet_shares:
            keys |= {key for annotation in annotations for key in self.keys_of(annotation.text)}
            # a pod to which the kubelet assigned one of these may have an allocation instead
            others = {one.uid for key in keys for one in kubelet_shares.get(key, ())}
            if others:
                others |= _holders(view, keys)
            if others <= uids:
                break
            uids = uids | others
            annotations = reader.read(uids)
        self.check_in_order(
            annotations,
            {key: kubelet_shares[key] for key in keys if key in kubelet_shares},
            view.pods,
        )

    def _is_allocated(self, one: KubeletShare, before: Mapping[str, PodAllocation]) -> bool:
        """Return whether a pod has an allocation of this device type.

        Then the allocation counts, and not the devices that the kubelet chose.
        """
        allocation = before.get(one.uid) or self.pods.get(one.uid)
        return allocation is not None and any(e.type == one.type for e in allocation.grant.devices)

    def _add_kubelet_shares(
        self,
        kubelet_shares: Mapping[str, tuple[KubeletShare, ...]],
        waiting: Sequence[AllocationAnnotation],
        before: Mapping[str, PodAllocation],
    ) -> None:
        """Add the kubelet's assignments, except to pods with an allocation of that device type.

        `waiting` are the annotations that are checked afterwards.
        """
        waiting_types = {
            (annotation.uid, entry.type)
            for annotation in waiting
            for entry in decode_or_empty(annotation.text)
        }
        for shares in kubelet_shares.values():
            for share in shares:
                if (share.uid, share.type) in waiting_types or self._is_allocated(share, before):
                    continue
                # if the device is used already, it does not matter which pod uses it
                with suppress(AllocationRefused):
                    self._shares_table.add_all(share.holder, (share.share,))

    def holders(self) -> Mapping[str, tuple[str, ...]]:
        """Return the pods that use something of each device."""
        return {key: tuple(uids) for key, uids in self._holders.items()}

    def keys_of(self, text: str) -> set[str]:
        """Return the devices that an annotation allocates, as far as they exist."""
        keys = set()
        for entry in decode_or_empty(text):
            try:
                keys.add(self._target(entry).key)
            except AllocationRefused:
                continue
        return keys

    def _target(self, entry: AllocatedDevice) -> AllocationTarget:
        """Return the device of an entry; cached, because several rules need it."""
        target = self._targets.get(entry)
        if target is None:
            target = self._targets[entry] = self._devices.find(entry)
        return target

    def _check_pod(self, annotation: AllocationAnnotation) -> PodAllocation:
        pod_only = PodAllocation(
            uid=annotation.uid, namespace=annotation.namespace, name=annotation.name
        )
        try:
            entries = decode_annotation(annotation.text)
        except ParseError as error:
            reason = RefusalReason.BAD_GRANT.value
            return _refused_allocation(pod_only, reason, f"{reason}: {error}")
        try:
            if annotation.other_node:
                raise AllocationRefused(
                    RefusalReason.WRONG_NODE, f"it was made for {annotation.other_node[:64]!r}"
                )
            pairs = [(entry, self._target(entry)) for entry in entries]
            shares = self._shares(annotation, pairs)
            self._shares_table.add_all(f"{annotation.namespace}/{annotation.name}", shares)
        except AllocationRefused as refused:
            return _refused_allocation(pod_only, refused.reason, str(refused))
        for share in shares:
            self._holders.setdefault(share.device_key, {})[annotation.uid] = None
        # the entry names the slice that was made of a device for this pod
        return replace(
            pod_only,
            awaits_requests=self._awaits_requests(annotation),
            grant=DeviceAllocation(
                devices=tuple(
                    [_add_slice(entry, target, annotation.uid) for entry, target in pairs]
                )
            ),
        )

    def _shares(
        self, annotation: AllocationAnnotation, pairs: TargetEntries
    ) -> tuple[DeviceShare, ...]:
        refuse_mixed_slices(pairs)
        if pairs and self._awaits_requests(annotation) and not annotation.is_holding_devices:
            raise AllocationRefused(RefusalReason.REQUESTS_UNKNOWN, POD_NOT_LISTED)
        if annotation.requests is not None:
            refuse_unrequested(pairs, annotation.requests, is_holding=annotation.is_holding_devices)
        for entry, target in pairs:
            refuse_unusable(target, is_running=annotation.is_running)
            if not annotation.is_holding_devices:
                refuse_sliced_device(entry, target, annotation.uid)
            if target.partition is not None and target.partition.owner not in ("", annotation.uid):
                message = f"{target.partition.uuid} was made for another pod"
                raise AllocationRefused(RefusalReason.DEVICE_TAKEN, message)
        return tuple(share_of(self._resolve(entry, target), target) for entry, target in pairs)

    def _resolve(self, entry: AllocatedDevice, target: AllocationTarget) -> AllocatedDevice:
        """Return the entry with the amounts of its template, if it has one."""
        for slicer in self._slicers if entry.template else ():
            if slicer.slices_device(target.device):
                return slicer.resolve_entry(entry, target.device)
        return entry

    def _awaits_requests(self, annotation: AllocationAnnotation) -> bool:
        """Return whether the API server and the kubelet have yet to report the requests."""
        return annotation.requests is None and self._is_clustered


def _add_slice(entry: AllocatedDevice, target: AllocationTarget, uid: str) -> AllocatedDevice:
    """Return the entry with the slice that was made of its device for this pod, if any."""
    if not target.device.partitions:
        return entry
    own = next((part.uuid for part in target.device.partitions if part.owner == uid), "")
    return replace(entry, partition=own) if own and entry.id != own else entry


def _refused_allocation(pod_only: PodAllocation, reason: str, message: str) -> PodAllocation:
    return PodAllocation(
        uid=pod_only.uid,
        namespace=pod_only.namespace,
        name=pod_only.name,
        refusal=reason,
        message=message,
    )
