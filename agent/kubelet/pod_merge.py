"""Merges the pods of the API server and of the kubelet.

Neither list is complete. The API server has pods that the kubelet has not accepted yet, and newer
annotations. The kubelet has static pods under the uid in their cgroup names (the mirror pod of the
API server has another), and newer states. A kubelet that has just started, or cannot reach the API
server, lists few pods or none, so a pod of the API server is never dropped because the kubelet
lacks it. A pod that the API server deleted is dropped even if the kubelet's last list has it: the
kubelet has freed its devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from msgspec.structs import replace

from agent.snapshot.pod import (
    CONFIG_SOURCE,
    ENDED_PHASES,
    ContainerView,
    PodView,
    mirrored_uid,
    static_uid,
)

MAX_DELETED = 1024  # number of uids of deleted pods that are remembered


def merge_pods(
    node: str,
    of_api: tuple[PodView, ...] | None,
    of_kubelet: tuple[PodView, ...],
    *,
    api_fresh: bool = True,
    kubelet_fresh: bool = True,
    deleted: Collection[str] = (),
) -> tuple[PodView, ...]:
    """Return every pod of `node` once, by uid; static pods under the uid of their cgroups.

    `of_api` is `None` before the first list of the API server. A source that is not fresh does not
    answer now: its last list still counts, but less. Pods of other nodes are left out. Labels,
    annotations and priority are the API server's while it is fresh, the phase is the kubelet's
    while the kubelet is fresh; containers come from both. A pod has ended or terminates if either
    source says so. `deleted` are uids of objects that the API server had and deleted.
    """
    api = {pod.uid: pod for pod in _with_static_uids(_of_node(node, of_api or ()), of_kubelet)}
    merged = dict(api)
    for pod in _of_node(node, of_kubelet):
        api_pod = api.get(pod.uid)
        if api_pod is not None:
            merged[pod.uid] = _join(api_pod, pod, api_fresh, kubelet_fresh)
        elif pod.uid in deleted:
            continue
        elif of_api is None or kubelet_fresh or not api_fresh or static_uid(pod) == pod.uid:
            merged[pod.uid] = pod
    return tuple(merged[uid] for uid in sorted(merged))


class PodMerger:
    """Merges as `merge_pods` does, but processes only the pods that changed since the last call.

    Usually one of two hundred pods changes, and the event loop waits for each merge.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        # the kubelet's pods and which source was fresh, in the last full merge
        self._last_inputs: tuple[object, bool, bool] | None = None
        self._of_api: dict[str, PodView] = {}
        self._of_kubelet: dict[str, PodView] = {}
        self._merged: dict[str, PodView] = {}  # in the order of uids
        self._objects: frozenset[str] = frozenset()  # uids that the API server has
        self.deleted: tuple[str, ...] = ()  # uids that it had before, the last deleted at the end

    def merge(
        self,
        of_api: tuple[PodView, ...] | None,
        of_kubelet: tuple[PodView, ...],
        *,
        api_fresh: bool = True,
        kubelet_fresh: bool = True,
    ) -> tuple[PodView, ...]:
        """Return the result of `merge_pods`, with the pods that the API server deleted."""
        self._note_deleted(of_api)
        changed_pods = None
        if of_api is not None and self._has_same_inputs(of_kubelet, api_fresh, kubelet_fresh):
            changed_pods = self._changed_pods(of_api)
        if changed_pods is None:
            return self._merge_all(of_api, of_kubelet, api_fresh, kubelet_fresh)
        for pod in changed_pods:
            self._of_api[pod.uid] = pod
            listed = self._of_kubelet.get(pod.uid)
            joined = _join(pod, listed, api_fresh, kubelet_fresh) if listed is not None else pod
            self._merged[pod.uid] = joined
        return tuple(self._merged.values())

    def _note_deleted(self, of_api: tuple[PodView, ...] | None) -> None:
        objects = frozenset(pod.uid for pod in of_api or ())
        deleted_uids = self._objects - objects
        if of_api is None or not (deleted_uids or objects - self._objects):
            return
        self._objects = objects
        earlier_uids = (uid for uid in self.deleted if uid not in objects)
        self.deleted = (*earlier_uids, *sorted(deleted_uids))[-MAX_DELETED:]

    def _has_same_inputs(
        self, of_kubelet: tuple[PodView, ...], api_fresh: bool, kubelet_fresh: bool
    ) -> bool:
        if self._last_inputs is None:
            return False
        last_pods, was_api_fresh, was_kubelet_fresh = self._last_inputs
        return last_pods is of_kubelet and (was_api_fresh, was_kubelet_fresh) == (
            api_fresh,
            kubelet_fresh,
        )

    def _changed_pods(self, of_api: tuple[PodView, ...]) -> list[PodView] | None:
        """Return the pods that changed; `None` if more than pods changed."""
        if len(of_api) != len(self._of_api):
            return None
        changed_pods = [pod for pod in of_api if self._of_api.get(pod.uid) is not pod]
        all_independent = all(
            pod.uid in self._of_api and self._is_independent(pod) for pod in changed_pods
        )
        return changed_pods if all_independent else None

    def _is_independent(self, pod: PodView) -> bool:
        """Return whether a pod is independent of others.

        Not a static pod's mirror, and of this node.
        """
        return mirrored_uid(pod) is None and pod.node_name in ("", self._node)

    def _merge_all(
        self,
        of_api: tuple[PodView, ...] | None,
        of_kubelet: tuple[PodView, ...],
        api_fresh: bool,
        kubelet_fresh: bool,
    ) -> tuple[PodView, ...]:
        merged = merge_pods(
            self._node,
            of_api,
            of_kubelet,
            api_fresh=api_fresh,
            kubelet_fresh=kubelet_fresh,
            deleted=frozenset(self.deleted),
        )
        self._last_inputs = None
        if of_api is not None and all(map(self._is_independent, of_api)):
            self._last_inputs = (of_kubelet, api_fresh, kubelet_fresh)
            self._of_api = {pod.uid: pod for pod in of_api}
            self._of_kubelet = {pod.uid: pod for pod in _of_node(self._node, of_kubelet)}
            self._merged = {pod.uid: pod for pod in merged}
        return merged


def _join(api_pod: PodView, listed: PodView, api_fresh: bool, kubelet_fresh: bool) -> PodView:
    """Return one pod with what the API server and the kubelet know of it."""
    first = api_pod if api_fresh or not kubelet_fresh else listed
    phase_source = api_pod if api_fresh and not kubelet_fresh else listed
    return _join_containers(first, listed if first is api_pod else api_pod, phase_source.phase)


def _of_node(node: str, pods: Iterable[PodView]) -> list[PodView]:
    return [pod for pod in pods if pod.node_name in ("", node)]


def _with_static_uids(of_api: list[PodView], of_kubelet: tuple[PodView, ...]) -> Iterable[PodView]:
    """Yield pods, mirror pods with the uid of their static pod.

    Any user may write the annotation with that uid. It is accepted on the pod with the static pod's
    name; if the kubelet does not list that pod, only while no second pod has the same annotation.
    A uid that is no hash, as a manifest may have one, is accepted only if the kubelet lists that
    pod as a static one.
    """
    mirrors = [(pod, uid) for pod in of_api if (uid := mirrored_uid(pod)) is not None]
    if not mirrors:
        yield from of_api
        return
    listed = {pod.uid: pod for pod in of_kubelet}
    api_uids = {pod.uid for pod in of_api}
    uid_counts = Counter(uid for _, uid in mirrors)
    static_uids: dict[str, str] = {}  # by the mirror's
    for pod, uid in mirrors:
        static_pod = listed.get(uid)
        if static_pod is None:
            is_trusted = static_uid(pod) == uid and uid_counts[uid] == 1
        else:
            is_static = static_uid(pod) == uid or _is_static(static_pod)
            is_named = (static_pod.namespace, static_pod.name) == (pod.namespace, pod.name)
            is_trusted = is_static and is_named
        if is_trusted and uid not in api_uids:
            static_uids[pod.uid] = uid
    for pod in of_api:
        yield replace(pod, uid=static_uids[pod.uid]) if pod.uid in static_uids else pod


def _is_static(pod: PodView) -> bool:
    """Return whether the kubelet has a pod from elsewhere than the API server."""
    return (pod.annotation(CONFIG_SOURCE) or "api") != "api"


def _join_containers(first: PodView, second: PodView, phase: str) -> PodView:
    """Return `first` with the containers of `second`, in `phase` unless one of them ended.

    If `second` adds nothing, the result is `first` itself, as for nearly all pods at each change.
    """
    containers = first.containers
    if containers != second.containers:
        by_id: dict[str, ContainerView] = {
            container.id: container for container in second.containers
        }
        by_id.update((container.id, container) for container in containers)
        joined = tuple(by_id[key] for key in sorted(by_id))
        containers = containers if joined == containers else joined
    ended = second.phase if second.phase in ENDED_PHASES else ""
    if first.phase in ENDED_PHASES:
        ended = first.phase
    phase = ended or phase or first.phase
    terminating = first.terminating or second.terminating
    same = containers is first.containers and phase == first.phase
    if same and terminating is first.terminating:
        return first
    return replace(first, containers=containers, phase=phase, terminating=terminating)
