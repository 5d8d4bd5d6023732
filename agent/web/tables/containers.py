"""What the status page says of containers: how they are reached, who holds what, what was found."""

from __future__ import annotations

from collections.abc import Mapping

from agent.model.grant.checked import PodGrant
from agent.model.grant.granted import GrantedDevice
from agent.model.grant.proof import Proof, Verdict
from agent.model.runtime.seen import RuntimeView
from agent.model.runtime.served import ResourceServed, ServedView
from agent.model.snapshot import NodeSnapshot
from agent.web.html import tag, text
from agent.web.sections import badge, grid

MAX_GRANTS = 200  # rows; a node has fewer cards than that
_REACHED = {
    "synchronized": "healthy",
    "registered": "probing",
    "waiting": "suspect",
    "refused": "failed",
}
_SERVED = {"watched": "healthy", "conflict": "failed", "refused": "failed", "waiting": "suspect"}
_PROOF = {
    Verdict.VERIFIED: "healthy",
    Verdict.MISSING: "failed",
    Verdict.EXCESS: "failed",
    Verdict.UNKNOWN: "unmanaged",
}


def container_section(snapshot: NodeSnapshot) -> str:
    """Return how containers are reached, and each pod's grant and devices, the wrong ones first.

    Nothing while nobody has looked.
    """
    runtime, grants = snapshot.runtime, snapshot.grants.value.pods
    if runtime.taken_s is None and snapshot.grants.taken_s is None:
        return ""
    served = snapshot.served.value
    ways = [_runtime(runtime.value), *(_resource(one, served) for one in served.resources)]
    problems = [[tag("code", text(r)), text(m)] for r, m in snapshot.means.value.problems]
    of_pod = _by_pod(snapshot)
    plain = (proofs[0] for uid, proofs in of_pod.items() if uid not in grants)
    without = (PodGrant(uid=p.pod_uid, namespace=p.namespace, name=p.pod) for p in plain)

    def order(one: PodGrant) -> tuple[bool, str, str]:
        wrong = one.refusal or any(p.verdict.is_wrong for p in of_pod.get(one.uid, ()))
        return not wrong, one.namespace, one.name

    shown = sorted((*grants.values(), *without), key=order)
    rows = [_grant(grant, of_pod.get(grant.uid, ())) for grant in shown[:MAX_GRANTS]]
    more = len(shown) - len(rows)
    caption = "What pods were granted" + (f" (and {more} more)" if more > 0 else "")
    return (
        tag("h2", "Containers")
        + grid(("way", "state", "what it says"), ways, "How containers are reached")
        + (grid(("what", "why"), problems, "What is wrong on this host") if problems else "")
        + (grid(("pod", "granted", "in its containers"), rows, caption) if rows else "")
    )


def _runtime(view: RuntimeView) -> list[str]:
    what = f"{view.runtime} {view.version}".strip() or "container runtime"
    words = ": ".join(part for part in (view.reason, view.message) if part)
    if view.in_force:
        count = len(view.containers)
        words = f"{count} {'container' if count == 1 else 'containers'} known"
    return [text(what), badge(_REACHED.get(view.state, "unmanaged"), view.state), text(words)]


def _resource(one: ResourceServed, served: ServedView) -> list[str]:
    words = f"{one.healthy} of {one.devices} devices healthy"
    if one.withdrawn_ids:
        words += (
            f"; withdrawn, in use without the kubelet's knowledge: {', '.join(one.withdrawn_ids)}"
        )
    pairs = served.exchanges(one.name)
    if pairs:
        exchanged = ", ".join(f"{given} in place of {name}" for name, given in sorted(pairs))
        words += f"; exchanged: {exchanged}"
    if one.reason:
        words = f"{one.reason}: {one.message}"
    tone = badge(_SERVED.get(one.state, "probing"), one.state)
    return [tag("code", text(one.name)), tone, text(words)]


def _by_pod(snapshot: NodeSnapshot) -> Mapping[str, tuple[Proof, ...]]:
    found: dict[str, list[Proof]] = {}
    for _, proof in sorted(snapshot.proof.value.containers.items()):
        found.setdefault(proof.pod_uid, []).append(proof)
    return {uid: tuple(proofs) for uid, proofs in found.items()}


def _grant(grant: PodGrant, proofs: tuple[Proof, ...]) -> list[str]:
    name = tag("strong", text(grant.name or grant.uid)) + tag(
        "div", text(grant.namespace), class_="quiet"
    )
    if grant.refusal:
        words = grant.message.removeprefix(f"{grant.refusal}: ")  # which is shown already
        granted = badge("failed", grant.refusal) + tag("div", text(words))
    else:
        granted = "".join(tag("div", text(_device(one))) for one in grant.grant.devices)
    return [name, granted or "–", "".join(map(_proof, proofs)) or "–"]


def _device(one: GrantedDevice) -> str:
    words = f"{one.type} {one.id or one.minor}"
    amounts = ", ".join(f"{name.rpartition('/')[2]} {value}" for name, value in one.resources)
    more = (amounts, one.template, ", ".join(one.vfs))
    return words + "".join(f"; {part}" for part in more if part)


def _proof(proof: Proof) -> str:
    words = f" {proof.container}" + "".join(f"; {detail}" for detail in proof.details)
    return tag("div", badge(_PROOF[proof.verdict], proof.verdict.value) + text(words))
