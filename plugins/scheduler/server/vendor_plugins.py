"""What vendors' own device plug-ins need before a binding: a lock on the node, a label on the pod.

Some of them give the devices to whichever pod of the node the kubelet asks for next. A lock on the
node lets one pod at a time through: the plug-in deletes it when it has served the pod.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from agent.clock import Clock, rfc3339
from agent.errors import AgentError, ParseError
from agent.kube.api import ApiClient, ObjectRequests
from agent.kube.errors import ApiError, Conflict, NotFound
from agent.kube.resources import NODES, PODS
from agent.wire_formats.json_values import JSON_ERRORS
from plugins.scheduler.cluster_state import ClusterState
from plugins.scheduler.devices.allocator import Grant
from plugins.scheduler.devices.grant_annotations import GrantMetadata, vendor_metadata
from plugins.scheduler.pod_object import PodKey, SchedulerPod, decode_scheduler_pod

LOCK_S = 300.0  # after that a lock counts for nothing
DEADLINE_S = 5.0
MAX_TRIES = 3  # of one lock: the kubelet writes the Node, too


class NodeLocked(AgentError):
    """Another pod holds the node's lock, or that cannot be told."""


class NodeLock(msgspec.Struct, frozen=True):
    """The lock as the node's annotation has it: `TIME,NAMESPACE,POD`."""

    wall_s: float
    namespace: str
    pod: str

    def is_expired(self, wall_s: float) -> bool:
        """Return whether the lock is too old to count."""
        return wall_s - self.wall_s > LOCK_S


class _LockedMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _LockedNode(msgspec.Struct):
    metadata: _LockedMetadata


def parse_lock(text: str) -> NodeLock | None:
    """Return the lock; `None` for text that is none, which locks nothing."""
    parts = text.split(",")
    if len(parts) != 3:
        return None
    try:
        wall_s = datetime.fromisoformat(parts[0]).timestamp()
    except (ValueError, OverflowError):
        return None
    return NodeLock(wall_s, parts[1], parts[2])


class VendorPlugins:
    """Prepares pods and nodes for vendors' device plug-ins. Belongs to the loop thread."""

    def __init__(self, api: ApiClient, state: ClusterState, clock: Clock) -> None:
        self._api = api
        self._state = state
        self._clock = clock

    def metadata(self, pod: SchedulerPod, node: str, grant: Grant) -> GrantMetadata:
        """Return what the plug-in of the node's vendor reads; raise `NodeRefused`."""
        state = self._state.state(node)
        device_labels = {} if state.table is None else state.table.labels
        now_ns = int(self._clock.wall() * 1e9)
        labels = {**device_labels, **state.labels}
        return vendor_metadata(grant, node, labels, pod.labels, now_ns)

    async def prepare(self, pod: SchedulerPod, node: str, metadata: GrantMetadata) -> str:
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
        return decode_scheduler_pod(response.body).resource_version

    async def _lock(self, key: PodKey, node: str, name: str) -> None:
        requests = ObjectRequests(resource=NODES, name=node, deadline_s=DEADLINE_S)
        for _ in range(MAX_TRIES):
            current = _decode_node((await self._api.call(requests.read())).body)
            lock = parse_lock((current.annotations or {}).get(name, ""))
            if lock is not None and (lock.namespace, lock.pod) == (key.namespace, key.name):
                return
            if lock is not None and await self._counts(lock):
                raise NodeLocked(f'node "{node}" has been locked')
            text = f"{rfc3339(self._clock.wall())},{key.namespace},{key.name}"
            patch = {
                "metadata": {
                    "resourceVersion": current.resource_version,
                    "annotations": {name: text},
                }
            }
            try:
                await self._api.call(requests.merge(patch))
            except Conflict:
                continue
            return
        raise NodeLocked(f'node "{node}" changes too often to be locked')

    async def _counts(self, lock: NodeLock) -> bool:
        """Return whether the lock is in force: it is young, and its pod is there."""
        if lock.is_expired(self._clock.wall()):
            return False
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


def _decode_node(data: bytes) -> _LockedMetadata:
    try:
        return msgspec.json.decode(data, type=_LockedNode).metadata
    except JSON_ERRORS as error:
        raise NodeLocked(f"the Node cannot be read: {type(error).__name__}") from error
