"""What pods claim by their annotation, and in which order claims are heard."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from agent.model.cluster.pods import ENDED
from agent.model.foreign.device_allocated import KEY
from agent.model.pod import PodView, Wants
from agent.model.runtime.seen import ContainerSeen, ContainerState, RuntimeView, SandboxSeen
from agent.model.snapshot import NodeSnapshot

if TYPE_CHECKING:
    from agent.grants.kept import Kept

# a container that is being made right now is in neither: it must not count for its own pod
HOLDING = frozenset((ContainerState.CREATED, ContainerState.PAUSED, ContainerState.RUNNING))
FEW = 3  # sandboxes: up to so many it is quicker to go through all containers for each
NODE_LABEL = "hami.io/vgpu-node"  # the scheduler's, of pods that share cards by HAMi-core


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's annotation. `elsewhere` is another node that it was written for.

    A pod that runs keeps a card that fails. Only one that holds its devices at this moment comes
    before others: the sandbox of a running pod can be made anew, with what was written since.
    """

    uid: str
    namespace: str = ""
    name: str = ""
    text: str = ""
    elsewhere: str = ""
    running: bool = False  # it was given its devices, as far as anybody says
    holding: bool = False  # a container of it has them now
    wants: Wants | None = (
        None  # requests for devices, by its spec; None: neither source lists the pod
    )
    created: str = ""  # empty: nobody said, so it has just come

    @property
    def order(self) -> tuple[bool, bool, str, str]:
        """Sort who holds first, then the older, then by uid: the same for everybody who asks."""
        return not self.holding, not self.created, self.created, self.uid


def claim_text(sandbox: SandboxSeen) -> str | None:
    """Return the annotation that a sandbox was created with."""
    for name, value in sandbox.annotations:
        if name == KEY:
            return value
    return None


def ended(pod: PodView) -> bool:
    """Return whether a pod's phase is final."""
    return pod.phase in ENDED


class Claims:
    """What pods claim that are here and not over.

    What a sandbox was created with counts before what the API server has now: users may write
    the annotation of a running pod, the sandbox's they may not. A pod that is bound to no node
    claims nothing: its annotation is still to be written.
    """

    def __init__(
        self, snapshot: NodeSnapshot, kept: Kept, asking: SandboxSeen | None = None
    ) -> None:
        """Look at all pods and sandboxes, and at one that asks and may not be among them."""
        self._snapshot = snapshot
        self._asking = asking
        self._node = snapshot.node.name
        self._pods_known = snapshot.cluster.pods_known
        self._deleted = snapshot.cluster.deleted
        self._pods = kept.pods(snapshot)
        self._boxes = kept.boxes(snapshot)
        self._kept = kept

    def all(self) -> tuple[Claim, ...]:
        """Return all claims, in the order in which they are heard."""
        return self.of(self._kept.claiming(self._snapshot))

    def since(self) -> frozenset[str]:
        """Return the uids that claim something and that `snapshot.grants` did not look at."""
        return self._kept.new(self._snapshot)

    def of(self, uids: Iterable[str]) -> tuple[Claim, ...]:
        """Return the claims of these pods, in the order in which they are heard."""
        told = [(uid, self._pods.get(uid), self._box(uid)) for uid in uids if uid]
        inside = _inside(
            self._snapshot.runtime.value, {box.id for _, _, box in told if box is not None}
        )
        found = (self._claim(uid, pod, box, inside) for uid, pod, box in told)
        return tuple(sorted((one for one in found if one is not None), key=lambda one: one.order))

    def _box(self, uid: str) -> SandboxSeen | None:
        asking = self._asking
        return asking if asking is not None and asking.uid == uid else self._boxes.get(uid)

    def _claim(
        self,
        uid: str,
        pod: PodView | None,
        box: SandboxSeen | None,
        of_boxes: Mapping[str, Sequence[ContainerSeen]],
    ) -> Claim | None:
        """Return what a pod claims now; `None` if nothing."""
        inside = of_boxes[box.id] if box is not None else ()
        live = any(one.state is not ContainerState.STOPPED for one in inside)
        # who asks for a container is not over, whatever was told of it so far
        asks = box is not None and box is self._asking
        if not asks and (self._freed(uid, pod) or (not live and self._over(pod, bool(inside)))):
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
        runs = pod is not None and pod.phase == "Running"
        written = next((value for key, value in labels if key == NODE_LABEL), "")
        nodes = (pod.node_name if pod is not None else "", written)
        return Claim(
            uid=uid,
            namespace=namespace,
            name=name,
            text=text,
            elsewhere=next((node for node in nodes if node not in ("", self._node)), ""),
            running=runs or any(one.state in HOLDING for one in inside),
            # where the runtime tells of a pod its containers count, and not the pod's status
            holding=runs if box is None else any(one.state in HOLDING for one in inside),
            wants=pod.wants if pod is not None else None,
            created=pod.created if pod is not None else "",
        )

    def _freed(self, uid: str, pod: PodView | None) -> bool:
        """Return whether the kubelet has freed a pod's devices: its phase ended or it was deleted.

        The containers of a pod that was deleted by force may run for some seconds longer.
        """
        return ended(pod) if pod is not None else uid in self._deleted

    def _over(self, pod: PodView | None, had_containers: bool) -> bool:
        """Return whether a pod that nobody lists and that has no live container is over."""
        # while the API server has listed no pods, nobody can tell deleted ones
        return pod is None and had_containers and self._pods_known


def _inside(runtime: RuntimeView, boxes: Collection[str]) -> Mapping[str, list[ContainerSeen]]:
    """Return what is in each of these sandboxes."""
    every = runtime.containers.values()
    if len(boxes) <= FEW:
        return {box: [one for one in every if one.sandbox_id == box] for box in boxes}
    found: dict[str, list[ContainerSeen]] = {box: [] for box in boxes}
    for container in every:
        if container.sandbox_id in found:
            found[container.sandbox_id].append(container)
    return found
