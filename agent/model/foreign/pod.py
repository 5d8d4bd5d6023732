"""Pods as Kubernetes writes them. Users write most of it: every pod is hostile input.

The API server's watch, the kubelet's `/pods` and files of pods are all read here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from agent.errors import ParseError
from agent.model.device import Pairs
from agent.model.foreign.kube_qos import ResourceSpec, computed_qos
from agent.model.pod import ContainerView, KubeQos, PodView

MAX_PODS = 4096
MAX_CONTAINERS = 256  # of one pod
MAX_PAIRS_CHARS = 512 * 1024  # Kubernetes' limit of all annotations, twice

_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,127}")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_CONTAINER_ID = re.compile(r"[0-9a-f]{12,128}")
T = TypeVar("T")

_KINDS: Final = ("PodList", "List")


class _Resources(msgspec.Struct):
    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class _Container(msgspec.Struct):
    name: str = ""
    image: str = ""
    resources: _Resources | None = None


class _Status(msgspec.Struct, rename="camel"):
    name: str = ""
    container_id: str = msgspec.field(default="", name="containerID")


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str
    name: str
    namespace: str = "default"
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    host_network: bool = False
    priority: int | None = None
    containers: list[_Container] | None = None  # an empty list of Go may be written as null
    init_containers: list[_Container] | None = None


class _PodStatus(msgspec.Struct, rename="camel"):
    phase: str = ""
    qos_class: str = ""
    container_statuses: list[_Status] | None = None
    init_container_statuses: list[_Status] | None = None
    ephemeral_container_statuses: list[_Status] | None = None


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class _List(msgspec.Struct):
    kind: str
    items: list[msgspec.Raw] | None


class _PlainList(msgspec.Struct):
    kind: str
    items: list[object] | None


_POD = msgspec.json.Decoder(_Pod)
_LIST = msgspec.json.Decoder(_List)


def decode_pod(data: bytes | msgspec.Raw) -> PodView:
    """Return one pod from its JSON; raise `ParseError` if it cannot be used."""
    try:
        pod = _POD.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ParseError(f"pod: {type(error).__name__}: {str(error)[:120]}", "") from error
    return _view(pod)


def read_pod(plain: object) -> PodView:
    """Return one pod from what a decoder of YAML made; raise `ParseError` as `decode_pod` does."""
    try:
        pod = msgspec.convert(plain, _Pod)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ParseError(f"pod: {str(error)[:120]}", "") from error
    return _view(pod)


def decode_pod_list(data: bytes) -> tuple[tuple[PodView, ...], int]:
    """Return the pods of a PodList in JSON by uid, and how many were left out as malformed.

    Raises `ParseError` when the whole is not one; a single odd pod costs itself only.
    """
    try:
        found = _LIST.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ParseError(f"pod list: {type(error).__name__}: {str(error)[:120]}", "") from error
    return _pods(found.kind, found.items or [], decode_pod)


def read_pod_list(plain: object) -> tuple[tuple[PodView, ...], int]:
    """Return the pods of a PodList that a decoder of YAML made, as `decode_pod_list` does."""
    try:
        found = msgspec.convert(plain, _PlainList)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ParseError(f"pod list: {str(error)[:120]}", "") from error
    return _pods(found.kind, found.items or [], read_pod)


def _pods(
    kind: str, items: list[T], read: Callable[[T], PodView]
) -> tuple[tuple[PodView, ...], int]:
    if kind not in _KINDS:
        raise ParseError("pod list: kind", kind)
    if len(items) > MAX_PODS:
        raise ParseError(f"pod list: more than {MAX_PODS} pods", "")
    views: dict[str, PodView] = {}
    for item in items:
        try:
            view = read(item)
        except ParseError:
            continue
        views[view.uid] = view
    return tuple(views[uid] for uid in sorted(views)), len(items) - len(views)


def _view(pod: _Pod) -> PodView:
    meta, spec, status = pod.metadata, pod.spec, pod.status
    if not _UID.fullmatch(meta.uid):
        raise ParseError("pod uid", meta.uid)
    if not _NAME.fullmatch(meta.name) or not _NAME.fullmatch(meta.namespace):
        raise ParseError("pod name", f"{meta.namespace}/{meta.name}")
    return PodView(
        uid=meta.uid,
        name=meta.name,
        namespace=meta.namespace,
        qos=_qos(pod),
        labels=_pairs("labels", meta.labels),
        annotations=_pairs("annotations", meta.annotations),
        priority=spec.priority,
        containers=_containers(spec, status),
        phase=status.phase,
        terminating=meta.deletion_timestamp is not None,
        host_network=spec.host_network,
        node_name=spec.node_name,
        resource_version=meta.resource_version,
    )


def _pairs(what: str, mapping: Mapping[str, str] | None) -> Pairs:
    pairs = tuple(sorted((mapping or {}).items()))
    if sum(len(k) + len(v) for k, v in pairs) > MAX_PAIRS_CHARS:
        raise ParseError(f"pod {what}: more than {MAX_PAIRS_CHARS} characters", "")
    return pairs


def _qos(pod: _Pod) -> KubeQos:
    try:
        return KubeQos(pod.status.qos_class)
    except ValueError:  # the kubelet may list a pod before its status is there
        all_containers = [*(pod.spec.containers or ()), *(pod.spec.init_containers or ())]
        return computed_qos([_spec(one.resources) for one in all_containers[:MAX_CONTAINERS]])


def _spec(resources: _Resources | None) -> ResourceSpec:
    found = resources or _Resources()
    limits = {name: str(value) for name, value in (found.limits or {}).items()}
    requests = {name: str(value) for name, value in (found.requests or {}).items()}
    return ResourceSpec(requests={**limits, **requests}, limits=limits)


def _containers(spec: _Spec, status: _PodStatus) -> tuple[ContainerView, ...]:
    """Return the containers that have run, by id; the id is without the runtime's scheme."""
    images = {c.name: c.image for c in (*(spec.containers or ()), *(spec.init_containers or ()))}
    found: dict[str, ContainerView] = {}
    for one in _statuses(status):
        container_id = one.container_id.rpartition("://")[2]
        if _CONTAINER_ID.fullmatch(container_id) and len(found) < MAX_CONTAINERS:
            image = images.get(one.name, "")
            found[container_id] = ContainerView(id=container_id, name=one.name, image=image)
    return tuple(found[key] for key in sorted(found))


def _statuses(status: _PodStatus) -> Iterable[_Status]:
    yield from status.container_statuses or ()
    yield from status.init_container_statuses or ()
    yield from status.ephemeral_container_statuses or ()
