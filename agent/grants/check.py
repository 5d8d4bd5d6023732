"""Every pod's grant against the devices that are here and against all other grants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import MappingProxyType

from msgspec.structs import replace

from agent.errors import ParseError
from agent.grants.allocations import Allocation
from agent.grants.asked import refuse_unasked
from agent.grants.books import Books, Hold, hold_of
from agent.grants.claims import Claim, Claims, claim_text, ended
from agent.grants.kept import Heard, Kept
from agent.grants.known import refuse_unfit
from agent.grants.pieces import refuse_cut, refuse_mixed, with_template
from agent.model.device import VendorDevice
from agent.model.foreign.device_allocated import decode_allocated
from agent.model.grant.checked import GrantsView, PodGrant
from agent.model.grant.granted import Grant, GrantedDevice
from agent.model.grant.refusal import GrantRefused, Refusal
from agent.model.runtime.seen import SandboxSeen
from agent.model.snapshot import NodeSnapshot

NOT_LISTED = "neither the API server nor the kubelet lists the pod, so its requests are unknown"
_NOBODY: Mapping[str, PodGrant] = MappingProxyType({})
MAX_REMEMBERED = 4096  # characters of an annotation, enough for sixteen whole cards


def check_grants(snapshot: NodeSnapshot, kept: Kept | None = None) -> GrantsView:
    """Return every pod's grant, each device held by nobody beyond what it has.

    Of those that contradict each other the pod that holds a device keeps it, else the older has
    it, else the first by uid: equal pods give an equal view in whatever order they come. What the
    kubelet gave to pods without a grant is theirs, but for who holds it by a grant.
    A refused grant is empty, holds nothing and says why. In a cluster nothing is granted to a pod
    that neither the API server nor the kubelet lists; a container that runs keeps its devices.
    All containers of a pod have its grant in common: the annotation does not tell them apart.
    `kept` saves time and changes nothing.
    """
    kept = kept or Kept()
    claims, given = Claims(snapshot, kept).all(), kept.allocations(snapshot)
    looked = {pod.uid for pod in snapshot.cluster.pods} | snapshot.runtime.value.sandboxes.keys()
    heard = Heard(known=kept.known(snapshot), claims=claims, given=given)
    if kept.checked is not None and kept.checked[0] == heard:
        return replace(kept.checked[1], looked=frozenset(looked))
    settled = _Settled(snapshot, kept)
    settled.hear(claims, given)
    view = GrantsView(pods=settled.pods, held=settled.held(), looked=frozenset(looked))
    kept.checked = heard, view
    return view


def grant_of(
    snapshot: NodeSnapshot, sandbox: SandboxSeen, kept: Kept | None = None
) -> PodGrant | None:
    """Return what a pod has been granted as of now; `None` if nothing was.

    For a request: quick, as it hears only those who hold the same devices and those who came
    since `snapshot.grants`, and needs neither the pod in the view nor the sandbox. `kept` saves
    time and changes nothing.
    """
    text = claim_text(sandbox)
    if text is None:
        return None
    kept = kept or Kept()
    settled = _Settled(snapshot, kept)
    view = snapshot.grants.value
    before = view.pods.get(sandbox.uid)
    desk = Claims(snapshot, kept, sandbox)
    uids = desk.since() | {sandbox.uid}
    keys = settled.keys_of(text)
    settled_before = before is not None and not before.refusal and sandbox.id in view.looked
    crowded = not settled_before or len(uids) > 1
    if crowded:
        uids |= _rivals(view, keys)
    settled.hear_with_rivals(desk, uids, keys, kept.allocations(snapshot), view)
    return settled.pods.get(sandbox.uid)


def grants_now(snapshot: NodeSnapshot, kept: Kept | None = None) -> GrantsView:
    """Return the last check, updated with new claims and without pods that the kubelet has freed.

    Used to answer requests, as `grant_of` is: the check of all grants runs every half second only.
    """
    kept = kept or Kept()
    view, pods, deleted = snapshot.grants.value, kept.pods(snapshot), snapshot.cluster.deleted
    holders = {uid for uids in view.held.values() for uid in uids}
    freed = {uid for uid in holders if uid in deleted or (uid in pods and ended(pods[uid]))}
    desk = Claims(snapshot, kept)
    new = desk.since()
    if not (new or freed):
        return view
    settled = _Settled(snapshot, kept)
    keys = {key for claim in desk.of(new) for key in settled.keys_of(claim.text)}
    settled.hear_with_rivals(
        desk, new | _rivals(view, keys), keys, kept.allocations(snapshot), view
    )
    heard = freed | settled.pods.keys()
    held = {key: [uid for uid in uids if uid not in heard] for key, uids in view.held.items()}
    for key, uids in settled.held().items():
        held[key] = [*held.get(key, ()), *uids]
    before = {uid: grant for uid, grant in view.pods.items() if uid not in freed}
    return replace(
        view,
        pods={**before, **settled.pods},
        held={key: tuple(uids) for key, uids in held.items() if uids},
    )


def _rivals(view: GrantsView, keys: Iterable[str]) -> set[str]:
    """Return who holds something of these devices by the last check."""
    return {uid for key in keys for uid in view.held.get(key, ())}


class _Settled:
    """Claims as they are heard, one after the other."""

    def __init__(self, snapshot: NodeSnapshot, kept: Kept) -> None:
        self._known = kept.known(snapshot)
        self._clustered = snapshot.cluster.clustered
        self._books = Books()
        self._held: dict[str, dict[str, None]] = {}
        self.pods: dict[str, PodGrant] = {}

    def hear(
        self,
        claims: Sequence[Claim],
        given: Mapping[str, tuple[Allocation, ...]],
        before: Mapping[str, PodGrant] = _NOBODY,
    ) -> None:
        """Accept or refuse each, in this order; the kubelet's pods come after those that hold.

        `given` is what they have, of all devices that are claimed; `before` are answers that were
        found by hearing more than these.
        """
        waiting = {
            (claim.uid, entry.type)
            for claim in claims
            if not claim.holding
            for entry in _entries(claim.text)
        }
        entered = False
        for claim in claims:
            if not claim.holding and not entered:
                self._enter(
                    one
                    for key in given
                    for one in given[key]
                    if (one.uid, one.type) not in waiting and not self._granted(one, before)
                )
                entered = True
            self.pods[claim.uid] = self._answer(claim)

    def hear_with_rivals(
        self,
        desk: Claims,
        uids: frozenset[str] | set[str],
        keys: set[str],
        given: Mapping[str, tuple[Allocation, ...]],
        view: GrantsView,
    ) -> None:
        """Hear the claims of these pods and of who has something of the devices `keys`.

        `given` is what the kubelet gave, and `view` the last check.
        """
        while True:
            claims = desk.of(uids)
            if given:
                keys |= {key for claim in claims for key in self.keys_of(claim.text)}
            # whom the kubelet gave something of these may have a grant instead
            others = {one.uid for key in keys for one in given.get(key, ())}
            if others:
                others |= _rivals(view, keys)
            if others <= uids:
                break
            uids = uids | others
        self.hear(claims, {key: given[key] for key in keys if key in given}, view.pods)

    def _granted(self, one: Allocation, before: Mapping[str, PodGrant]) -> bool:
        """Say whether a pod was granted such devices: these it has, whichever the kubelet chose."""
        granted = before.get(one.uid) or self.pods.get(one.uid)
        return granted is not None and any(e.type == one.type for e in granted.grant.devices)

    def _enter(self, given: Iterable[Allocation]) -> None:
        for one in given:
            with suppress(GrantRefused):  # it is held already: by whom does not matter
                self._books.take(one.holder, (one.hold,))

    def held(self) -> Mapping[str, tuple[str, ...]]:
        """Return who holds something of each device."""
        return {key: tuple(uids) for key, uids in self._held.items()}

    def keys_of(self, text: str) -> set[str]:
        """Return the devices that an annotation means, as far as they are known."""
        keys = set()
        for entry in _entries(text):
            try:
                keys.add(self._known.find(entry).device.key)
            except GrantRefused:
                continue
        return keys

    def _answer(self, claim: Claim) -> PodGrant:
        told = PodGrant(uid=claim.uid, namespace=claim.namespace, name=claim.name)
        try:
            entries = _decoded(claim.text)
        except ParseError as error:
            reason = Refusal.BAD_GRANT.value
            return _refused(told, reason, f"{reason}: {error}")
        try:
            if claim.elsewhere:
                raise GrantRefused(Refusal.WRONG_NODE, f"it was made for {claim.elsewhere[:64]!r}")
            holds = self._holds(claim, entries)
            self._books.take(f"{claim.namespace}/{claim.name}", holds)
        except GrantRefused as refused:
            return _refused(told, refused.reason, str(refused))
        for hold in holds:
            self._held.setdefault(hold.key, {})[claim.uid] = None
        return replace(
            told,
            awaits_requests=self._awaits_requests(claim),
            grant=Grant(devices=self._with_own_slices(entries, claim.uid)),
        )

    def _with_own_slices(
        self, entries: tuple[GrantedDevice, ...], uid: str
    ) -> tuple[GrantedDevice, ...]:
        """Name in each entry the slice that was made of its device for this pod, if one was."""
        return tuple(_with_slice(entry, self._known.find(entry).device, uid) for entry in entries)

    def _holds(self, claim: Claim, entries: tuple[GrantedDevice, ...]) -> tuple[Hold, ...]:
        pairs = [(entry, self._known.find(entry)) for entry in entries]
        refuse_mixed(pairs)
        if pairs and self._awaits_requests(claim) and not claim.holding:
            raise GrantRefused(Refusal.REQUESTS_UNKNOWN, NOT_LISTED)
        if claim.wants is not None:
            refuse_unasked(pairs, claim.wants, holding=claim.holding)
        for entry, found in pairs:
            refuse_unfit(found, running=claim.running)
            if not claim.holding:
                refuse_cut(entry, found, claim.uid)
            if found.partition is not None and found.partition.owner not in ("", claim.uid):
                told = f"{found.partition.uuid} was made for another pod"
                raise GrantRefused(Refusal.DEVICE_TAKEN, told)
        return tuple(hold_of(with_template(entry, found), found) for entry, found in pairs)

    def _awaits_requests(self, claim: Claim) -> bool:
        """Return whether the API server and the kubelet have not named the requests yet."""
        return claim.wants is None and self._clustered


def _with_slice(entry: GrantedDevice, device: VendorDevice, uid: str) -> GrantedDevice:
    own = next((part.uuid for part in device.partitions if part.owner == uid), "")
    return replace(entry, partition=own) if own and entry.id != own else entry


@lru_cache(maxsize=1024)
def _remembered(text: str) -> tuple[GrantedDevice, ...]:
    return decode_allocated(text)


def _decoded(text: str) -> tuple[GrantedDevice, ...]:
    """Decode an annotation, those that schedulers write once: all are asked for at each change."""
    return _remembered(text) if len(text) <= MAX_REMEMBERED else decode_allocated(text)


def _entries(text: str) -> tuple[GrantedDevice, ...]:
    try:
        return _decoded(text)
    except ParseError:
        return ()


def _refused(told: PodGrant, reason: str, message: str) -> PodGrant:
    return PodGrant(
        uid=told.uid, namespace=told.namespace, name=told.name, refusal=reason, message=message
    )
