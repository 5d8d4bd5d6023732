"""Merges the pods of the API server and of the kubelet.

Neither list is complete. The API server has pods that the kubelet has not accepted yet, and newer
annotations. The kubelet has static pods under the uid in their cgroup names (the mirror pod of the
API server has another), and newer states. A kubelet that has just started, or cannot reach the API
server, lists few pods or none, so a pod of the API server is never dropped because the kubelet
lacks it. A pod that the API server deleted is gone even if the kubelet's last list has it: the
kubelet has freed its devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from msgspec.structs import replace

from agent.snapshot.pod import ENDED_PHASES, ContainerView, PodView, static_uid

MAX_DELETED = 1024  # deleted pods that are remembered, the last ones


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

    `of_api` is `None` while the API server has said nothing. A source that is not fresh is one
    that does not answer now: what it said last still counts, but less. Pods of another node are
    left out. Labels, annotations and priority are the API server's while it is fresh, the phase
    the kubelet's while that is; containers are those of both; a pod that one of them saw end, or
    asked to end, has. `deleted` are uids whose object the API server had once and has no more.
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
    """Merges as `merge_pods` does, at the price of the pods that are others than the last time.

    Of two hundred pods one changes at a time, and the event loop waits for each merge.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._with: tuple[object, bool, bool] | None = None  # the kubelet's pods, and what is fresh
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
        """Return what `merge_pods` would, with those pods as deleted that the API server lost."""
        self._note_deleted(of_api)
        others = None
        if of_api is not None and self._is_with(of_kubelet, api_fresh, kubelet_fresh):
            others = self._others(of_api)
        if others is None:
            return self._anew(of_api, of_kubelet, api_fresh, kubelet_fresh)
        for pod in others:
            self._of_api[pod.uid] = pod
            listed = self._of_kubelet.get(pod.uid)
            joined = _join(pod, listed, api_fresh, kubelet_fresh) if listed is not None else pod
            self._merged[pod.uid] = joined
        return tuple(self._merged.values())

    def _note_deleted(self, of_api: tuple[PodView, ...] | None) -> None:
        objects = frozenset(pod.uid for pod in of_api or ())
        lost = self._objects - objects
        if of_api is None or not (lost or objects - self._objects):
            return
        self._objects = objects
        left = (uid for uid in self.deleted if uid not in objects)
        self.deleted = (*left, *sorted(lost))[-MAX_DELETED:]

    def _is_with(
        self, of_kubelet: tuple[PodView, ...], api_fresh: bool, kubelet_fresh: bool
    ) -> bool:
        if self._with is None:
            return False
        known, api_was, kubelet_was = self._with
        return known is of_kubelet and (api_was, kubelet_was) == (api_fresh, kubelet_fresh)

    def _others(self, of_api: tuple[PodView, ...]) -> list[PodView] | None:
        """Return the pods that changed; `None` where that is not all there is to it."""
        if len(of_api) != len(self._of_api):
            return None
        others = [pod for pod in of_api if self._of_api.get(pod.uid) is not pod]
        plain = all(pod.uid in self._of_api and self._is_plain(pod) for pod in others)
        return others if plain else None

    def _is_plain(self, pod: PodView) -> bool:
        """Say whether a pod counts for itself alone: no static one's mirror, and of this node."""
        return static_uid(pod) is None and pod.node_name in ("", self._node)

    def _anew(
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
        self._with = None
        if of_api is not None and all(map(self._is_plain, of_api)):
            self._with = (of_kubelet, api_fresh, kubelet_fresh)
            self._of_api = {pod.uid: pod for pod in of_api}
            self._of_kubelet = {pod.uid: pod for pod in _of_node(self._node, of_kubelet)}
            self._merged = {pod.uid: pod for pod in merged}
        return merged


def _join(api_pod: PodView, listed: PodView, api_fresh: bool, kubelet_fresh: bool) -> PodView:
    """Return one pod as the API server and the kubelet know it together."""
    first = api_pod if api_fresh or not kubelet_fresh else listed
    now = api_pod if api_fresh and not kubelet_fresh else listed
    return _join_containers(first, listed if first is api_pod else api_pod, now.phase)


def _of_node(node: str, pods: Iterable[PodView]) -> list[PodView]:
    return [pod for pod in pods if pod.node_name in ("", node)]


def _with_static_uids(of_api: list[PodView], of_kubelet: tuple[PodView, ...]) -> Iterable[PodView]:
    """Yield pods with the uid of a static pod's file in the place of its mirror's.

    Anybody may write the annotation that says so. It is believed of the pod that has the static
    pod's name; where the kubelet does not list that one, only while no second pod claims it.
    """
    claimed = [(pod, uid) for pod in of_api if (uid := static_uid(pod)) is not None]
    if not claimed:
        yield from of_api
        return
    names = {pod.uid: (pod.namespace, pod.name) for pod in of_kubelet}
    api_uids = {pod.uid for pod in of_api}
    claims = Counter(uid for _, uid in claimed)
    own: dict[str, str] = {}  # by the mirror's
    for pod, uid in claimed:
        listed = names.get(uid)
        believed = claims[uid] == 1 if listed is None else listed == (pod.namespace, pod.name)
        if believed and uid not in api_uids:
            own[pod.uid] = uid
    for pod in of_api:
        yield replace(pod, uid=own[pod.uid]) if pod.uid in own else pod


def _join_containers(first: PodView, second: PodView, phase: str) -> PodView:
    """Return `first` with what `second` knows beside it, in `phase` unless one of them ended.

    Where `second` knows nothing more that is `first` itself: so it is for nearly all pods, each
    time that one of them changes.
    """
    containers = first.containers
    if containers != second.containers:
        by_id: dict[str, ContainerView] = {one.id: one for one in second.containers}
        by_id.update((one.id, one) for one in containers)
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
