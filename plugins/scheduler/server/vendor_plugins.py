"""Prepares bindings for vendors' device plug-ins: a lock on the node, a label on the pod.

Some of them give the devices to whichever pod of the node the kubelet requests next. A lock on the
node admits one pod at a time: the plug-in deletes it when it has served the pod.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from agent.clock import Clock, rfc3339
from agent.errors import AgentError, ParseError
from agent.kube.api import ApiClient, ApiRequest, ObjectRequests
from agent.kube.errors import (
    ApiError,
    BadResponse,
    Conflict,
    NotFound,
    ServerError,
    Throttled,
    Unreachable,
)
from agent.kube.resources import NODES, PODS
from agent.wire_formats.json_values import JSON_ERRORS
from plugins.scheduler.cluster_state import ClusterState
from plugins.scheduler.devices.allocator import DeviceChoices
from plugins.scheduler.devices.binding_metadata import BindingMetadata, vendor_metadata
from plugins.scheduler.pod_object import PodKey, SchedulerPod, decode_scheduler_pod

LOCK_S = 300.0  # after that a lock counts for nothing
DEADLINE_S = 5.0
MAX_TRIES = 3  # of one lock: the kubelet writes the Node, too
# after that the API server has given up on a request, whose own limit is a minute
SETTLED_AFTER_S = 75.0
UNCERTAIN_ERRORS = (Unreachable, ServerError, Throttled, BadResponse)  # it may come into force


class NodeLocked(AgentError):
    """Another pod has the node's lock, or the lock is unknown."""


class LockAnnotation(msgspec.Struct, frozen=True):
    """The lock as the node's annotation has it: `TIME,NAMESPACE,POD`."""

    wall_s: float
    namespace: str
    pod: str

    def is_expired(self, wall_s: float) -> bool:
        """Return whether the lock is too old to count."""
        return wall_s - self.wall_s > LOCK_S


class _PodLock(msgspec.Struct, frozen=True, kw_only=True):
    """A lock that was written for a pod."""

    node: str
    name: str  # of the annotation
    text: str


class _LockedMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _LockedNode(msgspec.Struct):
    metadata: _LockedMetadata


def parse_lock(text: str) -> LockAnnotation | None:
    """Return the lock; `None` for an invalid text, which locks nothing."""
    parts = text.split(",")
    if len(parts) != 3:
        return None
    try:
        wall_s = datetime.fromisoformat(parts[0]).timestamp()
    except (ValueError, OverflowError):
        return None
    return LockAnnotation(wall_s, parts[1], parts[2])


class VendorPlugins:
    """Prepares pods and nodes for vendors' device plug-ins. Belongs to the loop thread."""

    def __init__(self, api: ApiClient, state: ClusterState, clock: Clock) -> None:
        self._api = api
        self._state = state
        self._clock = clock
        # by uid of the pod; until when a write without an answer may come into force, monotonic
        self._locks: dict[str, dict[_PodLock, float]] = {}

    @property
    def locking_uids(self) -> tuple[str, ...]:
        """Return the pods for which nodes are locked and whose bindings have not ended."""
        return tuple(self._locks)

    def metadata(self, pod: SchedulerPod, node: str, choices: DeviceChoices) -> BindingMetadata:
        """Return what the plug-in of the node's vendor reads; raise `NodeRefused`."""
        labels = self._state.state(node).device_labels
        now_ns = int(self._clock.wall() * 1e9)
        return vendor_metadata(choices, node, labels, pod.labels, now_ns)

    async def prepare(self, pod: SchedulerPod, node: str, metadata: BindingMetadata) -> str:
        """Lock the node and label the pod; return the pod's version; raise `NodeLocked`.

        A refused write raises `ApiError`.
        """
        for name in metadata.node_locks:
            await self._lock(pod.key, node, name)
        missing = dict(metadata.labels.items() - pod.labels.items())
        if not missing:
            return pod.resource_version
        patch = {
            "metadata": {
                "uid": pod.key.uid,
                "resourceVersion": pod.resource_version,
                "labels": missing,
            }
        }
        response = await self._api.call(_pod_requests(pod.key).merge(patch))
        try:
            return decode_scheduler_pod(response.body).resource_version
        except ParseError as error:
            raise BadResponse(f"label of pod {pod.key.name}", str(error)) from error

    async def settle_locks(self, uid: str, node: str) -> None:
        """Remove the locks that were taken for a pod, except that of the node to which it is bound.

        `node` is empty for a pod that is not bound. A lock that others changed since is left
        alone. One that cannot be removed now is tried again by the next call.
        """
        locks = self._locks.get(uid, {})
        for lock, pending_until_s in tuple(locks.items()):
            if lock.node == node or await self._remove(lock, pending_until_s):
                del locks[lock]
        if not locks:
            self._locks.pop(uid, None)

    async def _lock(self, key: PodKey, node: str, name: str) -> None:
        for _ in range(MAX_TRIES):
            current = await self._read_node(node)
            text = (current.annotations or {}).get(name, "")
            lock = parse_lock(text)
            if lock is not None and await self._counts(lock, key):
                if (lock.namespace, lock.pod) != (key.namespace, key.name):
                    raise NodeLocked(f'node "{node}" has been locked')
                self._locks.setdefault(key.uid, {})[_PodLock(node=node, name=name, text=text)] = 0
                return
            text = f"{rfc3339(self._clock.wall())},{key.namespace},{key.name}"
            if await self._write(key.uid, _PodLock(node=node, name=name, text=text), current):
                return
        raise NodeLocked(f'node "{node}" changes too often to be locked')

    async def _write(self, uid: str, lock: _PodLock, current: _LockedMetadata) -> bool:
        """Return whether the lock was written; the Node may have changed meanwhile."""
        locks = self._locks.setdefault(uid, {})
        locks[lock] = self._clock.monotonic() + SETTLED_AFTER_S
        try:
            await self._api.call(_annotate(lock.node, current, lock.name, lock.text))
        except UNCERTAIN_ERRORS:
            raise
        except ApiError as error:
            del locks[lock]
            if isinstance(error, Conflict):
                return False
            raise
        locks[lock] = 0
        return True

    async def _remove(self, lock: _PodLock, pending_until_s: float) -> bool:
        """Return whether the lock is not there any more, and cannot come any more."""
        for _ in range(MAX_TRIES):
            try:
                current = await self._read_node(lock.node)
                if (current.annotations or {}).get(lock.name) != lock.text:
                    return self._clock.monotonic() >= pending_until_s
                await self._api.call(_annotate(lock.node, current, lock.name, None))
            except Conflict:
                continue
            except NotFound:  # the Node is gone
                return True
            except (ApiError, NodeLocked):
                return False
            return True
        return False

    async def _read_node(self, name: str) -> _LockedMetadata:
        response = await self._api.call(_node_requests(name).read())
        try:
            return msgspec.json.decode(response.body, type=_LockedNode).metadata
        except JSON_ERRORS as error:
            raise NodeLocked(f"the Node cannot be read: {type(error).__name__}") from error

    async def _counts(self, lock: LockAnnotation, own: PodKey) -> bool:
        """Return whether the lock is in force: it is young, and its pod exists."""
        if lock.is_expired(self._clock.wall()):
            return False
        if (lock.namespace, lock.pod) == (own.namespace, own.name):
            return True
        key = PodKey("", lock.namespace, lock.pod)
        try:
            holder = decode_scheduler_pod((await self._api.call(_pod_requests(key).read())).body)
        except NotFound:
            return False
        except (ApiError, ParseError) as error:
            raise NodeLocked(f"pod {lock.namespace}/{lock.pod} cannot be read: {error}") from error
        return not holder.has_ended


def _pod_requests(key: PodKey) -> ObjectRequests:
    return ObjectRequests(
        resource=PODS, name=key.name, namespace=key.namespace, deadline_s=DEADLINE_S
    )


def _node_requests(name: str) -> ObjectRequests:
    return ObjectRequests(resource=NODES, name=name, deadline_s=DEADLINE_S)


def _annotate(node: str, current: _LockedMetadata, name: str, text: str | None) -> ApiRequest:
    """Return a request that changes exactly this version of a Node; `None` removes."""
    metadata = {"resourceVersion": current.resource_version, "annotations": {name: text}}
    return _node_requests(node).merge({"metadata": metadata})
