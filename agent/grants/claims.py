"""What pods claim by their annotation, and in which order claims are heard."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from agent.model.cluster.pods import ENDED
from agent.model.foreign.device_allocated import KEY
from agent.model.pod import PodView
from agent.model.runtime.seen import ContainerSeen, ContainerState, RuntimeView, SandboxSeen
from agent.model.snapshot import NodeSnapshot

# a container that is being made right now is in neither: it must not count for its own pod
HOLDING = frozenset((ContainerState.CREATED, ContainerState.PAUSED, ContainerState.RUNNING))
NODE_LABEL = "hami.io/vgpu-node"  # the scheduler's, of pods that share cards by HAMi-core


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's annotation. `elsewhere` is another node that it was written for."""

    uid: str
    namespace: str = ""
    name: str = ""
    text: str = ""
    elsewhere: str = ""
    running: bool = False  # it has devices already: they are its own whatever happens to them
    created: str = ""  # empty: nobody said, so it has just come

    @property
    def order(self) -> tuple[bool, bool, str, str]:
        """Sort who runs first, then the older, then by uid: the same for everybody who asks."""
        return not self.running, not self.created, self.created, self.uid


def claims_of(snapshot: NodeSnapshot) -> tuple[Claim, ...]:
    """Return the claims of all pods that are here and not over, in their order.

    What a sandbox was created with counts before what the API server has now: users may write
    the annotation of a running pod, the sandbox's they may not. A pod that is bound to no node
    claims nothing: its annotation is still to be written.
    """
    desk = _Desk(snapshot)
    return _ordered(desk, {*desk.pods, *desk.boxes})


def claims_of_some(
    snapshot: NodeSnapshot,
    asking: SandboxSeen,
    wanted: Collection[str] = (),
    known: frozenset[str] | None = None,
) -> tuple[Claim, ...]:
    """Return the claim of who asks, those of the wanted uids, and of all that are not `known`.

    `known` are uids and sandbox ids that somebody has looked at already; `None`: everybody.
    """
    desk = _Desk(snapshot, asking)
    uids = {*wanted, asking.uid}
    if known is not None:
        uids.update(uid for uid in desk.pods if uid not in known)
        uids.update(uid for uid, box in desk.boxes.items() if box.id not in known)
    return _ordered(desk, uids)


def claim_text(sandbox: SandboxSeen) -> str | None:
    """Return the annotation that a sandbox was created with."""
    return next((value for name, value in sandbox.annotations if name == KEY), None)


class _Desk:
    """Looks up pods, sandboxes and containers by what connects them."""

    def __init__(self, snapshot: NodeSnapshot, asking: SandboxSeen | None = None) -> None:
        runtime = snapshot.runtime.value
        self.node = snapshot.node.name
        self.pods_known = snapshot.cluster.pods_known
        self.pods: Mapping[str, PodView] = {pod.uid: pod for pod in snapshot.cluster.pods}
        self.boxes = {box.uid: box for box in runtime.sandboxes.values() if not box.stopped}
        if asking is not None:
            self.boxes[asking.uid] = asking
        self.inside = _by_sandbox(runtime)

    def claim(self, uid: str) -> Claim | None:
        """Return what a pod claims now; `None` if nothing."""
        pod, box = self.pods.get(uid), self.boxes.get(uid)
        inside = self.inside.get(box.id, ()) if box is not None else ()
        live = any(one.state is not ContainerState.STOPPED for one in inside)
        if not live and self._over(pod, bool(inside)):
            return None
        if box is not None:
            text, labels = claim_text(box), box.labels
            namespace, name = box.namespace, box.name
        elif pod is not None and (pod.node_name or pod.containers):
            text, labels = pod.annotation(KEY), pod.labels
            namespace, name = pod.namespace, pod.name
        else:
            return None
        if text is None:
            return None
        written = next((value for key, value in labels if key == NODE_LABEL), "")
        nodes = (pod.node_name if pod is not None else "", written)
        return Claim(
            uid=uid,
            namespace=namespace,
            name=name,
            text=text,
            elsewhere=next((node for node in nodes if node not in ("", self.node)), ""),
            running=any(one.state in HOLDING for one in inside)
            or (pod is not None and pod.phase == "Running"),
            created=pod.created if pod is not None else "",
        )

    def _over(self, pod: PodView | None, had_containers: bool) -> bool:
        """Say whether a pod without a live container is over: ended, or deleted and stopped."""
        if pod is not None:
            return pod.phase in ENDED
        return had_containers and self.pods_known  # else nobody can tell deleted ones


def _by_sandbox(runtime: RuntimeView) -> Mapping[str, list[ContainerSeen]]:
    found: dict[str, list[ContainerSeen]] = {}
    for container in runtime.containers.values():
        found.setdefault(container.sandbox_id, []).append(container)
    return found


def _ordered(desk: _Desk, uids: Iterable[str]) -> tuple[Claim, ...]:
    found = (desk.claim(uid) for uid in uids if uid)
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.order))
