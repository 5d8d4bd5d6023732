"""Events of grants, of proof in running containers, and of how the agent reaches them."""

from __future__ import annotations

from collections.abc import Iterator

from agent.model.grant.checked import PodGrant
from agent.model.grant.proof import Proof, Verdict
from agent.model.grant.refusal import Refusal
from agent.model.snapshot import NodeSnapshot
from agent.publish.eventing.event import NORMAL, WARNING, Event, PodRef
from agent.publish.wire import sanitise

GRANT_REFUSED = "GrantRefused"
NOT_VERIFIED = "AllocationNotVerified"
VERIFIED = "AllocationVerified"
_PROOF = {Verdict.MISSING: "is missing", Verdict.EXCESS: "was not granted"}
_REACHED = "synchronized"
_UNREACHED = ("waiting", "refused")


def container_events(old: NodeSnapshot | None, new: NodeSnapshot, now_s: float) -> Iterator[Event]:
    """Yield what happened from one snapshot to the next, in a fixed order.

    A verdict is told once for as long as it stands; that all is well is told only where it was
    not, or every start of a pod would be an event.
    """
    yield from _grants(old, new, now_s)
    yield from _proofs(old, new, now_s)
    yield from _runtime(old, new, now_s)
    yield from _problems(old, new, now_s)


def _grants(old: NodeSnapshot | None, new: NodeSnapshot, now_s: float) -> Iterator[Event]:
    after = new.grants.value.pods
    before = {} if old is None else old.grants.value.pods
    if after is before:
        return
    for uid, grant in sorted(after.items()):
        known = before.get(uid)
        if grant.refusal == Refusal.REQUESTS_UNKNOWN.value:
            continue  # a sandbox is often there before its pod is listed; no container asked yet
        if grant.refusal and (known is None or known.refusal != grant.refusal):
            yield _about_pod(WARNING, GRANT_REFUSED, grant.message, _ref(grant), now_s)


def _ref(grant: PodGrant) -> PodRef:
    return PodRef(namespace=grant.namespace or "default", name=grant.name, uid=grant.uid)


def _proofs(old: NodeSnapshot | None, new: NodeSnapshot, now_s: float) -> Iterator[Event]:
    after = new.proof.value.containers
    before = {} if old is None else old.proof.value.containers
    if after is before:
        return
    for key, proof in sorted(after.items()):
        known = before.get(key)
        was = known.verdict if known is not None else Verdict.UNKNOWN
        if proof.verdict is was:
            continue
        ref = PodRef(namespace=proof.namespace or "default", name=proof.pod, uid=proof.pod_uid)
        if proof.verdict in _PROOF:
            yield _about_pod(WARNING, NOT_VERIFIED, _words(proof), ref, now_s)
        elif proof.verdict is Verdict.VERIFIED and was in _PROOF:
            text = f"container {proof.container} has what was granted again, and nothing else"
            yield _about_pod(NORMAL, VERIFIED, text, ref, now_s)


def _words(proof: Proof) -> str:
    return f"container {proof.container}: {_PROOF[proof.verdict]}: {'; '.join(proof.details)}"


def _about_pod(kind: str, reason: str, text: str, pod: PodRef, now_s: float) -> Event:
    message = sanitise.plain(text, sanitise.MAX_MESSAGE)
    return Event(type=kind, reason=reason, message=message, about="Pod", at_s=now_s, pod=pod)


def _runtime(old: NodeSnapshot | None, new: NodeSnapshot, now_s: float) -> Iterator[Event]:
    """Tell when containers stop getting what their hooks say, and when they get it again."""
    now, was = new.runtime.value, "off" if old is None else old.runtime.value.state
    if now.state == was:
        return
    if was == _REACHED and now.state in _UNREACHED:
        text = f"the container runtime does not ask this agent any more: {now.message}"
        yield _about_node(WARNING, "RuntimeLost", text, now_s)
    elif now.state == _REACHED and now.lost:
        text = f"{now.runtime} {now.version} asks this agent again"
        yield _about_node(NORMAL, "RuntimeBack", text, now_s)
    elif now.state == "refused":
        text = f"the container runtime does not take this agent: {now.reason}: {now.message}"
        yield _about_node(WARNING, "RuntimeRefused", text, now_s)


def _problems(old: NodeSnapshot | None, new: NodeSnapshot, now_s: float) -> Iterator[Event]:
    after = new.means.value.problems
    before = () if old is None else old.means.value.problems
    if after is before:
        return
    for reason, message in after:
        if (reason, message) not in before:
            yield _about_node(WARNING, reason, message, now_s)


def _about_node(kind: str, reason: str, text: str, now_s: float) -> Event:
    message = sanitise.plain(text, sanitise.MAX_MESSAGE)
    return Event(type=kind, reason=reason, message=message, about="Node", at_s=now_s)
