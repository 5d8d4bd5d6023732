"""Whether a grant can be a scheduler's: it grants what the pod asks for, and no more.

Rules of grants whose devices are cut into slices for the pod: vNPUs and sMLUs.

Every pod's grant against the devices that are here and against all other grants.
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
from agent.wire_formats.resource_requests import SCHEDULED_RESOURCES

_WHOLE_GPU, _SHARED_GPU = "koordinator.sh/gpu", "koordinator.sh/gpu.shared"

_GPU_COUNTS = ("nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu")

_WHOLE = 100

_TOLERANCE_PERCENT = (
    2  # percent: the other form of memory is rounded, and of a total that may have moved
)

_RUNNING_TEXT = "; a container of the pod runs, and keeps its devices until the pod is deleted"

TargetEntries = Sequence[tuple[AllocatedDevice, AllocationTarget]]


def refuse_unrequested(
    entries: TargetEntries, wants: RequestedAmounts, *, holding: bool = False
) -> None:
    """Raise `GrantNotAskedFor` for devices that the pod's requests cannot have been granted.

    Users may write the annotation, and a scheduler that is asked for no device leaves it as it is.
    Of a pod that is `holding` devices the amounts are not compared: a device's total memory may
    have changed since its container started.
    """
    asked = dict(wants)
    for kind in dict.fromkeys(entry.type for entry, _ in entries):
        if not any(name in asked for name in SCHEDULED_RESOURCES.get(kind, ())):
            told = f"the pod asks for nothing of type {kind}"
            raise AllocationRefused(
                RefusalReason.NOT_ASKED_FOR, told + (_RUNNING_TEXT if holding else "")
            )
    cards = [(entry, found) for entry, found in entries if entry.type == "gpu"]
    if cards:
        _check_cards(cards, _requests_in_percent(asked), holding=holding)


def _requests_in_percent(asked: Mapping[str, int]) -> Mapping[str, int]:
    """Return requests with whole cards as the percents that schedulers count them in."""
    whole = asked.get(_WHOLE_GPU, 0) + _WHOLE * sum(asked.get(name, 0) for name in _GPU_COUNTS)
    percents = {name: whole + asked.get(name, 0) for name in (CORE, RATIO)}
    return {**asked, **{name: amount for name, amount in percents.items() if amount}}


def _check_cards(cards: TargetEntries, asked: Mapping[str, int], *, holding: bool) -> None:
    percent = max(asked.get(CORE, 0), asked.get(RATIO, 0))
    most = max(asked.get(_SHARED_GPU, 0), -(-percent // _WHOLE), 1)
    if len(cards) > most:
        told = f"{len(cards)} cards, and the pod asks for {most}"
        raise AllocationRefused(
            RefusalReason.NOT_ASKED_FOR, told + (_RUNNING_TEXT if holding else "")
        )
    if holding:
        return
    given: dict[str, int] = {}
    for entry, found in cards:
        amounts = _entry_amounts(entry, found)
        _check_memory_forms(amounts, found, asked)
        for name, amount in amounts.items():
            given[name] = given.get(name, 0) + amount
    for name, amount in given.items():
        if name in asked and amount > asked[name]:
            told = f"{amount} of {name}, and the pod asks for {asked[name]}"
            raise AllocationRefused(RefusalReason.NOT_ASKED_FOR, told)


def _entry_amounts(entry: AllocatedDevice, found: AllocationTarget) -> Mapping[str, int]:
    """Return what an entry grants; one without amounts grants the whole card."""
    if entry.resources or found.part_id:
        return dict(entry.resources)
    return {RATIO: _WHOLE, MEMORY: found.totals.get(MEMORY, 0)}


def _check_memory_forms(
    amounts: Mapping[str, int], found: AllocationTarget, asked: Mapping[str, int]
) -> None:
    """Refuse memory that is more in the one form than in the one that was asked for."""
    total, ratio, memory = (
        found.totals.get(MEMORY),
        amounts.get(RATIO),
        amounts.get(MEMORY),
    )
    if not total or ratio is None or memory is None:
        return
    more_bytes = MEMORY not in asked and memory * _WHOLE > (ratio + _TOLERANCE_PERCENT) * total
    more_ratio = RATIO not in asked and (ratio - _TOLERANCE_PERCENT) * total > memory * _WHOLE
    if more_bytes or more_ratio:
        told = f"{found.key}: {ratio} percent of memory and {memory} bytes of {total}"
        raise AllocationRefused(RefusalReason.NOT_ASKED_FOR, told)


_SLICED_KINDS = (DeviceKind.NPU, DeviceKind.MLU)  # a GPU that is cut says so itself


def refuse_mixed_slices(entries: TargetEntries) -> None:
    """Raise `GrantRefused` for slices of several cards, or beside whole ones, in one grant.

    One container has one vNPU of one chip, and one sMLU of one card. An accelerator is in a grant
    once: limits of a second share would be those of the card behind it.
    """
    shared = [found.key for entry, found in entries if not (found.part_id or entry.vfs)]
    twice = next((key for key, times in Counter(shared).items() if times > 1), None)
    if twice is not None:
        raise AllocationRefused(RefusalReason.BAD_GRANT, f"{twice} is in it twice")
    chips = [pair for pair in entries if pair[1].device.kind is DeviceKind.NPU]
    if len(chips) > 1 and any(entry.template or found.partition for entry, found in chips):
        raise AllocationRefused(RefusalReason.MIXED_GRANT, "a pod has one vNPU, or whole chips")
    cards = [pair for pair in entries if pair[1].device.kind is DeviceKind.MLU]
    if len(cards) > 1 and any(_is_share(entry, found) for entry, found in cards):
        raise AllocationRefused(
            RefusalReason.MIXED_GRANT, "a pod has a slice of one card, or whole cards"
        )


def refuse_sliced_device(entry: AllocatedDevice, found: AllocationTarget, uid: str) -> None:
    """Raise `GrantRefused` for all of a chip or card of which others have slices.

    Also of those that nobody has told the owner of: people, or the maker's own plug-in, cut them.
    """
    device = found.device
    if (
        device.kind not in _SLICED_KINDS
        or found.part_id
        or entry.template
        or _is_share(entry, found)
    ):
        return
    other = next((part.uuid for part in device.partitions if part.owner != uid), None)
    if other is not None:
        raise AllocationRefused(
            RefusalReason.DEVICE_TAKEN, f"{found.key} is cut: {other[:64]} is a slice"
        )


def _is_share(entry: AllocatedDevice, found: AllocationTarget) -> bool:
    totals = found.totals
    amounts = {name: amount for name, amount in entry.resources if name in totals}
    return found.partition is not None or (bool(amounts) and not is_whole_device(amounts, totals))


POD_NOT_LISTED = "neither the API server nor the kubelet lists the pod, so its requests are unknown"

_NO_PODS: Mapping[str, PodAllocation] = MappingProxyType({})


def check_allocations(
    snapshot: NodeSnapshot, kept: AllocationIndex | None = None
) -> AllocationView:
    """Return every pod's grant, each device held by nobody beyond what it has.

    Of those that contradict each other the pod that holds a device keeps it, else the older has
    it, else the first by uid: equal pods give an equal view in whatever order they come. What the
    kubelet gave to pods without a grant is theirs, but for who holds it by a grant.
    A refused grant is empty, holds nothing and says why. In a cluster nothing is granted to a pod
    that neither the API server nor the kubelet lists; a container that runs keeps its devices.
    All containers of a pod have its grant in common: the annotation does not tell them apart.
    `kept` saves time and changes nothing.
    """
    kept = kept or AllocationIndex()
    tables = kept.tables(snapshot)
    claims = AnnotationReader(snapshot, tables).read(tables.allocated)
    given = tables.kubelet_shares
    looked = {pod.uid for pod in snapshot.cluster.pods} | snapshot.runtime.value.sandboxes.keys()
    heard = AllocationCheckInputs(devices=tables.devices, annotations=claims, kubelet_shares=given)
    if kept.last_check is not None and kept.last_check[0] == heard:
        return replace(kept.last_check[1], looked=frozenset(looked))
    settled = _AllocationCheck(snapshot, tables)
    settled.check_in_order(claims, given)
    view = AllocationView(pods=settled.pods, held=settled.holders(), looked=frozenset(looked))
    kept.last_check = heard, view
    return view


def pod_allocation(
    snapshot: NodeSnapshot, sandbox: PodSandbox, kept: AllocationIndex | None = None
) -> PodAllocation | None:
    """Return what a pod has been granted as of now; `None` if nothing was.

    For a request: quick, as it hears only those who hold the same devices and those who came
    since `snapshot.grants`, and needs neither the pod in the view nor the sandbox. `kept` saves
    time and changes nothing.
    """
    text = allocation_annotation(sandbox)
    if text is None:
        return None
    tables = (kept or AllocationIndex()).tables(snapshot)
    settled = _AllocationCheck(snapshot, tables)
    view = snapshot.grants.value
    before = view.pods.get(sandbox.uid)
    desk = AnnotationReader(snapshot, tables, sandbox)
    uids = tables.unchecked | {sandbox.uid}
    keys = settled.keys_of(text)
    settled_before = before is not None and not before.refusal and sandbox.id in view.looked
    crowded = not settled_before or len(uids) > 1
    if crowded:
        uids |= _holders(view, keys)
    settled.check_with_holders(desk, uids, keys, tables.kubelet_shares, view)
    return settled.pods.get(sandbox.uid)


def current_allocations(
    snapshot: NodeSnapshot, kept: AllocationIndex | None = None
) -> AllocationView:
    """Return the last check, updated with new claims and without pods that the kubelet has freed.

    Used to answer requests, as `grant_of` is: the check of all grants runs every half second only.
    """
    tables = (kept or AllocationIndex()).tables(snapshot)
    view, pods, deleted = snapshot.grants.value, tables.pods, snapshot.cluster.deleted_pods
    holders = {uid for uids in view.held.values() for uid in uids}
    freed = {uid for uid in holders if uid in deleted or (uid in pods and has_ended(pods[uid]))}
    desk = AnnotationReader(snapshot, tables)
    new = tables.unchecked
    if not (new or freed):
        return view
    settled = _AllocationCheck(snapshot, tables)
    keys = {key for claim in desk.read(new) for key in settled.keys_of(claim.text)}
    settled.check_with_holders(desk, new | _holders(view, keys), keys, tables.kubelet_shares, view)
    heard = freed | settled.pods.keys()
    held = {key: [uid for uid in uids if uid not in heard] for key, uids in view.held.items()}
    for key, uids in settled.holders().items():
        held[key] = [*held.get(key, ()), *uids]
    before = {uid: grant for uid, grant in view.pods.items() if uid not in freed}
    return replace(
        view,
        pods={**before, **settled.pods},
        held={key: tuple(uids) for key, uids in held.items() if uids},
    )


def _holders(view: AllocationView, keys: Iterable[str]) -> set[str]:
    """Return who holds something of these devices by the last check."""
    return {uid for key in keys for uid in view.held.get(key, ())}


class _AllocationCheck:
    """Claims as they are heard, one after the other."""

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
        claims: Sequence[AllocationAnnotation],
        given: Mapping[str, tuple[KubeletShare, ...]],
        before: Mapping[str, PodAllocation] = _NO_PODS,
    ) -> None:
        """Accept or refuse each, in this order; the kubelet's pods come after those that hold.

        `given` is what they have, of all devices that are claimed; `before` are answers that were
        found by hearing more than these.
        """
        waiting = {
            (claim.uid, entry.type)
            for claim in claims
            if not claim.is_holding_devices
            for entry in decode_or_empty(claim.text)
        }
        entered = False
        for claim in claims:
            if not claim.is_holding_devices and not entered:
                self._add_kubelet_shares(
                    one
                    for key in given
                    for one in given[key]
                    if (one.uid, one.type) not in waiting and not self._is_allocated(one, before)
                )
                entered = True
            self.pods[claim.uid] = self._check_pod(claim)

    def check_with_holders(
        self,
        desk: AnnotationReader,
        uids: frozenset[str] | set[str],
        keys: set[str],
        given: Mapping[str, tuple[KubeletShare, ...]],
        view: AllocationView,
    ) -> None:
        """Hear the claims of these pods and of who has something of the devices `keys`.

        `given` is what the kubelet gave, and `view` the last check.
        """
        while True:
            claims = desk.read(uids)
            if given:
                keys |= {key for claim in claims for key in self.keys_of(claim.text)}
            # whom the kubelet gave something of these may have a grant instead
            others = {one.uid for key in keys for one in given.get(key, ())}
            if others:
                others |= _holders(view, keys)
            if others <= uids:
                break
            uids = uids | others
        self.check_in_order(claims, {key: given[key] for key in keys if key in given}, view.pods)

    def _is_allocated(self, one: KubeletShare, before: Mapping[str, PodAllocation]) -> bool:
        """Say whether a pod was granted such devices: these it has, whichever the kubelet chose."""
        granted = before.get(one.uid) or self.pods.get(one.uid)
        return granted is not None and any(e.type == one.type for e in granted.grant.devices)

    def _add_kubelet_shares(self, given: Iterable[KubeletShare]) -> None:
        for one in given:
            with suppress(AllocationRefused):  # it is held already: by whom does not matter
                self._shares_table.add_all(one.holder, (one.share,))

    def holders(self) -> Mapping[str, tuple[str, ...]]:
        """Return who holds something of each device."""
        return {key: tuple(uids) for key, uids in self._holders.items()}

    def keys_of(self, text: str) -> set[str]:
        """Return the devices that an annotation means, as far as they are known."""
        keys = set()
        for entry in decode_or_empty(text):
            try:
                keys.add(self._target(entry).key)
            except AllocationRefused:
                continue
        return keys

    def _target(self, entry: AllocatedDevice) -> AllocationTarget:
        """Return what an entry means; looked up once, though several rules need it."""
        target = self._targets.get(entry)
        if target is None:
            target = self._targets[entry] = self._devices.find(entry)
        return target

    def _check_pod(self, claim: AllocationAnnotation) -> PodAllocation:
        told = PodAllocation(uid=claim.uid, namespace=claim.namespace, name=claim.name)
        try:
            entries = decode_annotation(claim.text)
        except ParseError as error:
            reason = RefusalReason.BAD_GRANT.value
            return _refused_allocation(told, reason, f"{reason}: {error}")
        try:
            if claim.other_node:
                raise AllocationRefused(
                    RefusalReason.WRONG_NODE, f"it was made for {claim.other_node[:64]!r}"
                )
            pairs = [(entry, self._target(entry)) for entry in entries]
            holds = self._shares(claim, pairs)
            self._shares_table.add_all(f"{claim.namespace}/{claim.name}", holds)
        except AllocationRefused as refused:
            return _refused_allocation(told, refused.reason, str(refused))
        for hold in holds:
            self._holders.setdefault(hold.device_key, {})[claim.uid] = None
        # the slice that was made of a device for this pod is named in its entry
        return replace(
            told,
            awaits_requests=self._awaits_requests(claim),
            grant=DeviceAllocation(
                devices=tuple([_add_slice(entry, found, claim.uid) for entry, found in pairs])
            ),
        )

    def _shares(self, claim: AllocationAnnotation, pairs: TargetEntries) -> tuple[DeviceShare, ...]:
        refuse_mixed_slices(pairs)
        if pairs and self._awaits_requests(claim) and not claim.is_holding_devices:
            raise AllocationRefused(RefusalReason.REQUESTS_UNKNOWN, POD_NOT_LISTED)
        if claim.requests is not None:
            refuse_unrequested(pairs, claim.requests, holding=claim.is_holding_devices)
        for entry, found in pairs:
            refuse_unusable(found, running=claim.is_running)
            if not claim.is_holding_devices:
                refuse_sliced_device(entry, found, claim.uid)
            if found.partition is not None and found.partition.owner not in ("", claim.uid):
                told = f"{found.partition.uuid} was made for another pod"
                raise AllocationRefused(RefusalReason.DEVICE_TAKEN, told)
        return tuple(share_of(self._resolve(entry, found), found) for entry, found in pairs)

    def _resolve(self, entry: AllocatedDevice, target: AllocationTarget) -> AllocatedDevice:
        """Return the entry with the amounts of its template, if it has one."""
        for slicer in self._slicers if entry.template else ():
            if slicer.slices_device(target.device):
                return slicer.resolve_entry(entry, target.device)
        return entry

    def _awaits_requests(self, claim: AllocationAnnotation) -> bool:
        """Return whether the API server and the kubelet have not named the requests yet."""
        return claim.requests is None and self._is_clustered


def _add_slice(entry: AllocatedDevice, found: AllocationTarget, uid: str) -> AllocatedDevice:
    """Return the entry with the slice that was made of its device for this pod, if one was."""
    if not found.device.partitions:
        return entry
    own = next((part.uuid for part in found.device.partitions if part.owner == uid), "")
    return replace(entry, partition=own) if own and entry.id != own else entry


def _refused_allocation(told: PodAllocation, reason: str, message: str) -> PodAllocation:
    return PodAllocation(
        uid=told.uid, namespace=told.namespace, name=told.name, refusal=reason, message=message
    )
