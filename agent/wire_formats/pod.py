"""Parses pods of the API server's watch, the kubelet's `/pods` and files. Text is untrusted."""

from __future__ import annotations

import contextlib
import enum
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Final, TypeVar

import msgspec

from agent.errors import ParseError
from agent.snapshot.device import Pairs
from agent.snapshot.pod import ContainerView, KubeQos, PodView, PodVolume
from agent.wire_formats.annotations import POD_BLOCK_IO
from agent.wire_formats.json_values import JSON_ERRORS, repair_json
from agent.wire_formats.quantities import parse_amount
from agent.wire_formats.resource_requests import (
    ContainerStep,
    are_requests,
    pod_resources,
    resources_in_force,
)

T = TypeVar("T")
MAX_PODS = 4096
MAX_CONTAINERS = 256  # of one pod
MAX_VOLUMES = 256  # of one pod
DAEMON_SET = "DaemonSet"
DEFAULT_GRACE_S = 30  # as the API server sets it
MAX_TIME = 40  # characters of a time
DIGEST_BYTES = 16
MAX_PAIRS_CHARS = 512 * 1024  # Kubernetes' limit of all annotations, twice
_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,127}")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_CONTAINER_ID = re.compile(r"[0-9a-f]{12,128}")
_RUNTIME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_KINDS: Final = ("PodList", "List")
_ABSENT = msgspec.Raw(b"null")
_ITEMS, _BETWEEN, _END = b'"items":[', b'},{"metadata":{', b"]}"


# none of these holds itself, so the collector of cycles need not look at thousands of them


class _ResourceQuantities(msgspec.Struct, gc=False):
    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class _PodContainer(msgspec.Struct, gc=False):
    name: str = ""
    image: str = ""
    resources: msgspec.Raw = _ABSENT
    restart_policy: str = msgspec.field(default="", name="restartPolicy")


class _ContainerStatus(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    container_id: str = msgspec.field(default="", name="containerID")
    resources: msgspec.Raw = _ABSENT  # that the container has
    allocated_resources: msgspec.Raw = _ABSENT  # requests that the kubelet has accepted


class _PodMetadata(msgspec.Struct, rename="camel", gc=False):
    uid: str
    name: str
    namespace: str = "default"
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: msgspec.Raw = _ABSENT


class _Owner(msgspec.Struct, gc=False):
    kind: str = ""
    controller: bool | None = None


class _Claim(msgspec.Struct, rename="camel", gc=False):
    claim_name: str = ""


class _Volume(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    persistent_volume_claim: _Claim | None = None
    ephemeral: msgspec.Raw = _ABSENT
    csi: msgspec.Raw = _ABSENT


class _PodSpec(msgspec.Struct, rename="camel", gc=False):
    node_name: str = ""
    host_network: bool = False
    priority: int | None = None
    termination_grace_period_seconds: int | None = None
    overhead: dict[str, str | int | float] | None = None
    containers: list[_PodContainer] | None = None  # Go may write an empty list as null
    init_containers: list[_PodContainer] | None = None
    volumes: msgspec.Raw = _ABSENT


class _PodCondition(msgspec.Struct, gc=False):
    type: str = ""
    status: str = ""


class _PodStatus(msgspec.Struct, rename="camel", gc=False):
    phase: str = ""
    qos_class: str = ""
    observed_generation: int = 0
    resize: str = ""  # before Kubernetes 1.33, which has conditions
    conditions: list[_PodCondition] | None = None
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None
    ephemeral_container_statuses: list[_ContainerStatus] | None = None


class PodObject(msgspec.Struct, gc=False):
    """The fields of a pod's JSON that are read; `build_pod_view` makes a `PodView` of it."""

    metadata: _PodMetadata
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


class _PodListObject(msgspec.Struct):
    kind: str
    items: list[msgspec.Raw] | None


class _PlainPodList(msgspec.Struct):
    kind: str
    items: list[object] | None


_POD_DECODER = msgspec.json.Decoder(PodObject)
_POD_LIST_DECODER = msgspec.json.Decoder(_PodListObject)
_OWNERS_DECODER = msgspec.json.Decoder(list[_Owner] | None)
_VOLUMES_DECODER = msgspec.json.Decoder(list[_Volume] | None)
_RESOURCES_DECODER = msgspec.json.Decoder(_ResourceQuantities | None)


def decode_pod(data: bytes | memoryview | msgspec.Raw) -> PodView:
    """Return one pod from its JSON; raise `ParseError` if it cannot be used."""
    try:
        return build_pod_view(_POD_DECODER.decode(data))
    except JSON_ERRORS as error:
        raise _parse_error("pod", error) from error


def decode_pod_list(data: bytes) -> tuple[tuple[PodView, ...], int]:
    """Return the pods of a PodList in JSON by uid, and the number of malformed pods.

    Raises `ParseError` if the whole is not a PodList; a malformed pod does not affect the others.
    """
    sliced = _slices(data)
    if sliced is not None:
        with contextlib.suppress(ParseError):
            kind, slices = sliced
            return _pods(kind, slices, decode_pod, strict=True)
    try:
        pod_list = _POD_LIST_DECODER.decode(data)
    except JSON_ERRORS:
        pod_list = _decode_repaired(data)
    return _pods(pod_list.kind, pod_list.items or [], decode_pod)


class PodListDecoder:
    """Decodes a list again and again; a pod whose JSON did not change stays the same object.

    For one thread at a time.
    """

    def __init__(self) -> None:
        self._pods: dict[bytes, PodView] = {}  # of the last list, by the digest of their JSON

    def decode(self, data: bytes) -> tuple[tuple[PodView, ...], int]:
        """Return the result of `decode_pod_list`."""
        sliced = _slices(data)
        if sliced is not None:
            pods: dict[bytes, PodView] = {}
            with contextlib.suppress(ParseError):
                kind, slices = sliced
                result = _pods(kind, slices, partial(self._decode, pods), strict=True)
                self._pods = pods
                return result
        return decode_pod_list(data)

    def _decode(self, pods: dict[bytes, PodView], data: memoryview) -> PodView:
        digest = blake2b(data, digest_size=DIGEST_BYTES).digest()
        pod = self._pods.get(digest)
        if pod is None:
            pod = decode_pod(data)
        pods[digest] = pod
        return pod


def pod_list_from_data(plain: object) -> tuple[tuple[PodView, ...], int]:
    """Return the pods of a PodList from decoded YAML, as `decode_pod_list` does."""
    try:
        pod_list = msgspec.convert(plain, _PlainPodList)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _parse_error("pod list", error) from error
    return _pods(pod_list.kind, pod_list.items or [], _pod_from_data)


def build_pod_view(pod: PodObject) -> PodView:
    """Return the `PodView` of a pod; raises `ParseError` if it cannot be used."""
    meta, spec, status = pod.metadata, pod.spec or _PodSpec(), pod.status or _PodStatus()
    if not _UID.fullmatch(meta.uid):
        raise ParseError("pod uid", meta.uid)
    if not _NAME.fullmatch(meta.name) or not _NAME.fullmatch(meta.namespace):
        raise ParseError("pod name", f"{meta.namespace}/{meta.name}")
    requests = pod_resources(
        tuple(_steps(meta, spec, status)), tuple((spec.overhead or {}).items())
    )
    return PodView(
        uid=meta.uid,
        name=meta.name,
        namespace=meta.namespace,
        qos=_qos(spec, status),
        labels=_pairs("labels", meta.labels or {}),
        annotations=_pairs("annotations", meta.annotations or {}),
        priority=spec.priority,
        containers=_containers(spec, status),
        asks=requests.asks,
        wants=requests.wants,
        batch_cpu_milli=requests.batch_cpu_milli,
        compute_request=requests.compute_request if pod.spec else None,
        resources=requests.resources if pod.spec else None,
        phase=status.phase,
        is_of_daemon_set=_is_of_daemon_set(meta.owner_references),
        terminating=meta.deletion_timestamp is not None,
        grace_s=_grace_s(spec.termination_grace_period_seconds),
        host_network=spec.host_network,
        node_name=spec.node_name,
        volumes=_volumes(meta, spec),
        created=(meta.creation_timestamp or "")[:MAX_TIME],
        resource_version=meta.resource_version,
    )


def _is_of_daemon_set(owners: msgspec.Raw) -> bool:
    """Return whether the controller of a pod is a DaemonSet."""
    if DAEMON_SET.encode() not in bytes(owners):
        return False
    try:
        decoded = _OWNERS_DECODER.decode(owners) or ()
    except JSON_ERRORS:
        return False
    return any(owner.kind == DAEMON_SET and owner.controller is True for owner in decoded)


def _grace_s(seconds: int | None) -> int:
    return DEFAULT_GRACE_S if seconds is None or seconds < 0 else seconds


def _slices(data: bytes) -> tuple[str, list[memoryview]] | None:
    """Return kind and pods of a list as Go writes it, without decoding it; else `None`.

    Decoding a list of megabytes in one call would block all threads for milliseconds. The mark
    between pods never occurs inside a text, where its quotes would be escaped. If it occurs deeper
    in a pod, the slices are not JSON, and the list is then decoded as a whole.
    """
    begin, end = data.find(_ITEMS), len(data.rstrip()) - len(_END)
    if begin < 0 or not data.startswith(_END, end):
        return None
    begin += len(_ITEMS)
    try:
        kind = _POD_LIST_DECODER.decode(data[:begin] + _END).kind
    except JSON_ERRORS:
        return None
    view, slices = memoryview(data), []
    while (mark := data.find(_BETWEEN, begin, end)) >= 0:
        slices.append(view[begin : mark + 1])
        begin = mark + 2
    return kind, [*slices, view[begin:end]]


def _decode_repaired(data: bytes) -> _PodListObject:
    try:
        return _POD_LIST_DECODER.decode(repair_json(data))
    except JSON_ERRORS as error:
        raise _parse_error("pod list", error) from error


def _pod_from_data(plain: object) -> PodView:
    try:
        data = msgspec.json.encode(plain)
    except (*JSON_ERRORS, TypeError) as error:
        raise _parse_error("pod", error) from error
    return decode_pod(data)


def _parse_error(description: str, error: Exception) -> ParseError:
    return ParseError(f"{description}: {type(error).__name__}: {str(error)[:120]}", "")


def _pods(
    kind: str, items: list[T], read: Callable[[T], PodView], *, strict: bool = False
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
            if strict:
                raise
            continue
        views[view.uid] = view
    return tuple(views[uid] for uid in sorted(views)), len(items) - len(views)


def _pairs(name: str, pairs: Mapping[str, str]) -> Pairs:
    if sum(map(len, pairs)) + sum(map(len, pairs.values())) > MAX_PAIRS_CHARS:
        raise ParseError(f"pod {name}: more than {MAX_PAIRS_CHARS} characters", "")
    return tuple(sorted(pairs.items()))


def _qos(spec: _PodSpec, status: _PodStatus) -> KubeQos:
    try:
        return KubeQos(status.qos_class)
    except ValueError:  # the kubelet may list a pod before its status is there
        all_containers = [*(spec.containers or ()), *(spec.init_containers or ())]
        return compute_qos(
            [_requirements(container.resources) for container in all_containers[:MAX_CONTAINERS]]
        )


def _requirements(resources: msgspec.Raw) -> ResourceRequirements:
    try:
        quantities = _RESOURCES_DECODER.decode(resources) or _ResourceQuantities()
    except JSON_ERRORS as error:
        raise _parse_error("pod resources", error) from error
    limits = {name: str(value) for name, value in (quantities.limits or {}).items()}
    requests = {name: str(value) for name, value in (quantities.requests or {}).items()}
    return ResourceRequirements(requests={**limits, **requests}, limits=limits)


def _containers(spec: _PodSpec, status: _PodStatus) -> tuple[ContainerView, ...]:
    """Return the containers that have run, by id."""
    images = {
        one.name: one.image
        for specs in (spec.containers, spec.init_containers)
        for one in specs or ()
    }
    containers: dict[str, ContainerView] = {}
    for statuses in (
        status.container_statuses,
        status.init_container_statuses,
        status.ephemeral_container_statuses,
    ):
        for container_status in statuses or ():
            runtime, _, container_id = container_status.container_id.rpartition("://")
            if _CONTAINER_ID.fullmatch(container_id) and len(containers) < MAX_CONTAINERS:
                containers[container_id] = ContainerView(
                    id=container_id,
                    runtime=runtime if _RUNTIME.fullmatch(runtime) else "",
                    name=container_status.name,
                    image=images.get(container_status.name, ""),
                )
    return tuple(containers[key] for key in sorted(containers))


def _volumes(meta: _PodMetadata, spec: _PodSpec) -> tuple[PodVolume, ...]:
    """Return the volumes of pod_volumes; they are decoded only where an annotation names them."""
    if POD_BLOCK_IO not in (meta.annotations or {}):
        return ()
    try:
        volumes = _VOLUMES_DECODER.decode(spec.volumes) or []
    except JSON_ERRORS:
        return ()
    pod_volumes: list[PodVolume] = []
    for volume in volumes[:MAX_VOLUMES]:
        claim = volume.persistent_volume_claim
        if claim is not None and not _NAME.fullmatch(claim.claim_name):
            continue
        if claim is not None:
            pod_volumes.append(PodVolume(name=volume.name, claim=claim.claim_name))
        elif volume.ephemeral != _ABSENT:  # its claim has a name of the kubelet's making
            pod_volumes.append(PodVolume(name=volume.name, claim=f"{meta.name}-{volume.name}"))
        elif volume.csi != _ABSENT:
            pod_volumes.append(PodVolume(name=volume.name))
    return tuple(pod_volumes)


def _steps(meta: _PodMetadata, spec: _PodSpec, status: _PodStatus) -> Iterator[ContainerStep]:
    progress = _resize_progress(meta, status)
    for init_container in (spec.init_containers or ())[:MAX_CONTAINERS]:
        is_sidecar = init_container.restart_policy == "Always"
        yield ContainerStep(
            init_container.name,
            _resources(init_container, status.init_container_statuses, progress),
            is_init=True,
            is_sidecar=is_sidecar,
        )
    for container in (spec.containers or ())[:MAX_CONTAINERS]:
        yield ContainerStep(
            container.name,
            _resources(container, status.container_statuses, progress),
            is_init=False,
        )


class _ResizeProgress(enum.Enum):
    """What the kubelet says about the resize of a pod in place."""

    NONE = "none"  # there is none
    PENDING = "pending"  # it cannot make it, or cannot make it now
    ACCEPTED = "accepted"  # it is making it, or has not seen it yet


def _resize_progress(meta: _PodMetadata, status: _PodStatus) -> _ResizeProgress:
    types = {one.type for one in status.conditions or () if one.status == "True"}
    if status.resize in ("Deferred", "Infeasible") or "PodResizePending" in types:
        return _ResizeProgress.PENDING
    is_unseen = meta.generation > status.observed_generation > 0
    if status.resize or "PodResizeInProgress" in types or is_unseen:
        return _ResizeProgress.ACCEPTED
    return _ResizeProgress.NONE


def _resources(
    container: _PodContainer,
    statuses: Sequence[_ContainerStatus] | None,
    progress: _ResizeProgress,
) -> bytes:
    """Return the resources that a container has, in JSON.

    Those that the kubelet reports count during a resize only: at other times plug-ins of the
    container runtime, as this agent, may have set others than the spec has.
    """
    desired = bytes(container.resources)
    for status in statuses or ():
        if status.name != container.name or status.resources in (_ABSENT, container.resources):
            continue
        if progress is _ResizeProgress.NONE and are_requests(
            desired, bytes(status.allocated_resources)
        ):
            continue
        is_accepted = progress is not _ResizeProgress.PENDING
        return resources_in_force(desired, bytes(status.resources), is_accepted=is_accepted)
    return desired


QOS_RESOURCES = ("cpu", "memory")


class ResourceRequirements(msgspec.Struct, frozen=True):
    """One container's quantities by resource; missing requests equal the limits."""

    requests: Mapping[str, str]
    limits: Mapping[str, str]


def compute_qos(containers: Sequence[ResourceRequirements]) -> KubeQos:
    """Return the QoS class as the kubelet computes it; a quantity of zero counts as absent.

    Guaranteed: every container has CPU and memory limits that equal its requests. BestEffort: no
    container has any. Any other pod is Burstable.
    """
    pairs = [
        (
            parse_amount(c.requests.get(name, "0")) or None,
            parse_amount(c.limits.get(name, "0")) or None,
        )
        for c in containers
        for name in QOS_RESOURCES
    ]
    if all(request is None and limit is None for request, limit in pairs):
        return KubeQos.BEST_EFFORT
    if all(limit is not None and request == limit for request, limit in pairs):
        return KubeQos.GUARANTEED
    return KubeQos.BURSTABLE
