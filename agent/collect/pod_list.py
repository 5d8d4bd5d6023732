"""The kubelet's pods from a file: a PodList in JSON or YAML. Its text is hostile input."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import yaml

from agent.cgroup.layout import parse_container_dir
from agent.errors import HostFileError, ParseError
from agent.model.device import Pairs
from agent.model.foreign.kube_qos import ResourceSpec, computed_qos
from agent.model.pod import ContainerView, KubeQos, PodView

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 32 << 20
MAX_PODS = 4096
MAX_CONTAINERS = 256  # of one pod
MAX_PAIRS_CHARS = 512 * 1024  # Kubernetes' limit of all annotations, twice
MAX_DEPTH = 64

_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,127}")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
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


class _Metadata(msgspec.Struct):
    uid: str
    name: str
    namespace: str = "default"
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    priority: int | None = None
    containers: list[_Container] = []
    init_containers: list[_Container] = []


class _PodStatus(msgspec.Struct, rename="camel"):
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
    items: list[object]


def parse_pod_list(data: bytes) -> tuple[tuple[PodView, ...], int]:
    """Return the pods of a PodList by uid, and how many were left out as malformed.

    Raises `ParseError` when the whole is not one; a single odd pod costs itself only.
    """
    if len(data) > MAX_FILE_BYTES:
        raise ParseError(f"pod list: more than {MAX_FILE_BYTES} bytes", "")
    try:
        plain = msgspec.json.decode(data) if data.lstrip()[:1] == b"{" else _yaml(data)
        found = msgspec.convert(plain, _List)
    except (msgspec.MsgspecError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise ParseError(f"pod list: {type(error).__name__}: {str(error)[:120]}", "") from error
    if found.kind not in _KINDS:
        raise ParseError("pod list: kind", found.kind)
    if len(found.items) > MAX_PODS:
        raise ParseError(f"pod list: more than {MAX_PODS} pods", "")
    views = {view.uid: view for item in found.items if (view := _view(item)) is not None}
    return tuple(views[uid] for uid in sorted(views)), len(found.items) - len(views)


def _yaml(data: bytes) -> object:
    """Decode YAML without aliases and deep nests: kubectl writes none, and both have no bound."""
    depth = 0
    for event in yaml.parse(data, Loader=yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > MAX_DEPTH:
            raise yaml.YAMLError("aliases and deep nests are refused")
    return yaml.load(data, Loader=yaml.CSafeLoader)


def _view(item: object) -> PodView | None:
    try:
        pod = msgspec.convert(item, _Pod)
    except (msgspec.ValidationError, RecursionError):
        return None
    meta, spec, status = pod.metadata, pod.spec, pod.status
    if not (_UID.fullmatch(meta.uid) and _NAME.fullmatch(meta.name)):
        return None
    labels, annotations = _pairs(meta.labels), _pairs(meta.annotations)
    if labels is None or annotations is None or not _NAME.fullmatch(meta.namespace):
        return None
    return PodView(
        uid=meta.uid,
        name=meta.name,
        namespace=meta.namespace,
        qos=_qos(pod),
        labels=labels,
        annotations=annotations,
        priority=spec.priority,
        containers=_containers(spec, status),
    )


def _pairs(mapping: Mapping[str, str] | None) -> Pairs | None:
    pairs = tuple(sorted((mapping or {}).items()))
    return pairs if sum(len(k) + len(v) for k, v in pairs) <= MAX_PAIRS_CHARS else None


def _qos(pod: _Pod) -> KubeQos:
    try:
        return KubeQos(pod.status.qos_class)
    except ValueError:  # the kubelet may list a pod before its status is there
        all_containers = [*pod.spec.containers, *pod.spec.init_containers][:MAX_CONTAINERS]
        return computed_qos([_spec(container.resources) for container in all_containers])


def _spec(resources: _Resources | None) -> ResourceSpec:
    found = resources or _Resources()
    limits = {name: str(value) for name, value in (found.limits or {}).items()}
    requests = {name: str(value) for name, value in (found.requests or {}).items()}
    return ResourceSpec(requests={**limits, **requests}, limits=limits)


def _containers(spec: _Spec, status: _PodStatus) -> tuple[ContainerView, ...]:
    """Return the containers that have run, by id; the id is without the runtime's scheme."""
    images = {c.name: c.image for c in (*spec.containers, *spec.init_containers)}
    found: dict[str, ContainerView] = {}
    for one in _statuses(status):
        container_id = one.container_id.rpartition("://")[2]
        if parse_container_dir(container_id) == container_id and len(found) < MAX_CONTAINERS:
            image = images.get(one.name, "")
            found[container_id] = ContainerView(id=container_id, name=one.name, image=image)
    return tuple(found[key] for key in sorted(found))


def _statuses(status: _PodStatus) -> Iterable[_Status]:
    yield from status.container_statuses or ()
    yield from status.init_container_statuses or ()
    yield from status.ephemeral_container_statuses or ()


class PodListFile:
    """A PodList file that is read again when it changed. Calling it returns the pods.

    While it cannot be read or is malformed the pods of the last good reading stay; `error` says
    why, and so does a line of the log, once. A first reading that fails is the caller's to tell.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._pods: tuple[PodView, ...] = ()
        self._was_good = False
        self.error = ""
        self.left_out = 0  # malformed pods

    def __call__(self) -> tuple[PodView, ...]:
        """Return the pods; the same tuple while the file is the same."""
        before, error = self.error, ""
        try:
            stat = os.stat(self._path)
            seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if seen == self._seen:
                return self._pods
            self._seen = seen
            self._pods, self.left_out = parse_pod_list(self._read())
            self._was_good = True
            if self.left_out:
                fields = {"path": self._path, "left_out": self.left_out}
                log.warning("malformed_pods", extra=fields)
        except OSError as failure:
            error, self._seen = str(HostFileError(self._path, failure.errno or 0)), None
        except ParseError as failure:
            error = f"{self._path}: {failure}"
        self.error = error
        if error and error != before and self._was_good:
            log.warning("pod_list_unusable", extra={"error": error})
        return self._pods

    def _read(self) -> bytes:
        with Path(self._path).open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
