"""Makes the pods of the agent's DaemonSet restore their nodes, and waits until all have done so.

The DaemonSet gets another pod template: an init container restores the node, and the container of
the agent only waits. A pod is ready when its node is restored.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from agent.clock import Clock
from agent.errors import AgentError
from agent.kube.api import ApiClient, ApiRequest, ApiResource, ObjectRequests, decode_object
from agent.kube.errors import ApiError, Conflict, ServerError, Throttled, Unreachable
from agent.kube.resources import PODS
from agent.wire_formats.json_values import JSON_ERRORS, JsonDict

DAEMON_SETS = ApiResource(
    group="apps", version="v1", plural="daemonsets", kind="DaemonSet", namespaced=True
)
AGENT_CONTAINER, RESTORE_CONTAINER = "agent", "restore"
POLL_S = 1.0
MAX_ATTEMPTS = 5  # of the patch, while others change the DaemonSet
# of the agent's container: a pod that restores serves nothing
_SERVING_FIELDS = ("command", "args", "ports", "startupProbe", "livenessProbe", "readinessProbe")
_PASSING = (Unreachable, ServerError, Throttled)


class NotTheAgent(AgentError):
    """The DaemonSet has no container of the agent."""


class RolloutProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How many nodes have a pod that restored them."""

    nodes: int
    restored: int
    is_current: bool  # the controller has seen the new template

    @property
    def is_done(self) -> bool:
        """Return whether every node is restored."""
        return self.is_current and self.restored >= self.nodes

    def __str__(self) -> str:
        """Return one line for people."""
        if not self.is_current:
            return "the controller of DaemonSets has not seen the change yet"
        return f"{self.restored} of {self.nodes} nodes are restored"


class UnrestoredNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose pod is not ready."""

    node: str
    message: str

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.node}: {self.message}"


class _Status(msgspec.Struct, rename="camel"):
    observed_generation: int = 0
    desired_number_scheduled: int = 0
    updated_number_scheduled: int = 0
    number_ready: int = 0


class _Metadata(msgspec.Struct):
    generation: int = 0


class _DaemonSet(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    status: _Status = msgspec.field(default_factory=_Status)


class _Terminated(msgspec.Struct, rename="camel"):
    exit_code: int = 0
    message: str = ""


class _Waiting(msgspec.Struct):
    reason: str = ""
    message: str = ""


class _ContainerState(msgspec.Struct):
    terminated: _Terminated | None = None
    waiting: _Waiting | None = None


class _ContainerStatus(msgspec.Struct, rename="camel"):
    name: str = ""
    state: _ContainerState = msgspec.field(default_factory=_ContainerState)
    last_state: _ContainerState = msgspec.field(default_factory=_ContainerState)


class _PodCondition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _PodStatus(msgspec.Struct, rename="camel"):
    conditions: list[_PodCondition] = []
    init_container_statuses: list[_ContainerStatus] = []


class _PodSpec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Pod(msgspec.Struct):
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class _PodList(msgspec.Struct):
    items: list[_Pod] = []


def restore_patch(daemon_set: JsonDict, *, purge: bool = False) -> JsonDict:
    """Return the merge patch that makes the pods of a DaemonSet restore their nodes.

    With `purge` they also remove the agent's state. Raises `NotTheAgent`.
    """
    pod = _member(_member(_member(daemon_set, "spec"), "template"), "spec")
    containers = pod.get("containers")
    agent = next(
        (
            one
            for one in (containers if isinstance(containers, list) else ())
            if isinstance(one, dict) and one.get("name") == AGENT_CONTAINER
        ),
        None,
    )
    if agent is None:
        raise NotTheAgent(f"the DaemonSet has no container named {AGENT_CONTAINER!r}")
    base = {key: value for key, value in agent.items() if key not in _SERVING_FIELDS}
    command = ["restore", "--purge"] if purge else ["restore"]
    restoring = {**base, "name": RESTORE_CONTAINER, "args": command}
    waiting = {**base, "args": [*command, "--stay"]}
    return {
        "metadata": {"resourceVersion": _member(daemon_set, "metadata").get("resourceVersion")},
        "spec": {
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": "100%", "maxSurge": None},
            },
            "template": {"spec": {"initContainers": [restoring], "containers": [waiting]}},
        },
    }


def _member(value: JsonDict, key: str) -> JsonDict:
    member = value.get(key)
    return member if isinstance(member, dict) else {}


def progress_of(body: bytes) -> RolloutProgress:
    """Return the progress that the status of a DaemonSet reports; raise a `JSON_ERRORS`."""
    one = msgspec.json.decode(body, type=_DaemonSet)
    status = one.status
    return RolloutProgress(
        nodes=status.desired_number_scheduled,
        restored=min(status.updated_number_scheduled, status.number_ready),
        is_current=status.observed_generation >= one.metadata.generation,
    )


def unrestored_nodes(body: bytes) -> Iterator[UnrestoredNode]:
    """Yield the nodes of a list of pods that are not ready; raise a `JSON_ERRORS`."""
    for pod in msgspec.json.decode(body, type=_PodList).items:
        if any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions):
            continue
        yield UnrestoredNode(node=pod.spec.node_name or "no node yet", message=_cause(pod))


def _cause(pod: _Pod) -> str:
    for one in pod.status.init_container_statuses:
        for state in (one.state, one.last_state):
            if state.terminated is not None and state.terminated.exit_code != 0:
                text = state.terminated.message.strip().splitlines()
                return text[-1] if text else f"exit status {state.terminated.exit_code}"
        if one.state.waiting is not None:
            return one.state.waiting.message or one.state.waiting.reason
    return "its pod has not started"


async def start_restore(
    api: ApiClient, requests: ObjectRequests, *, purge: bool = False
) -> dict[str, object]:
    """Give the DaemonSet the template that restores; return it as it was. Raise an `ApiError`."""
    for attempt in range(MAX_ATTEMPTS):
        daemon_set = decode_object((await api.call(requests.read())).body)
        try:
            await api.call(requests.merge(restore_patch(daemon_set, purge=purge)))
        except Conflict:  # its controller has written the status
            if attempt == MAX_ATTEMPTS - 1:
                raise
            continue
        return daemon_set
    raise AssertionError("the loop returns or raises")


async def wait_until_restored(
    api: ApiClient,
    requests: ObjectRequests,
    clock: Clock,
    timeout_s: float,
    report: Callable[[str], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> bool:
    """Return whether all nodes were restored within the time; report each change."""
    until_s, text = clock.monotonic() + timeout_s, ""
    while True:
        try:
            progress = progress_of((await api.call(requests.read())).body)
        except _PASSING as error:
            current, is_done = str(error), False
        except JSON_ERRORS:
            current, is_done = "the answer of the API server is no DaemonSet", False
        else:
            current = str(progress)
            is_done = progress.is_done
        if current != text:
            report(current)
            text = current
        if is_done:
            return True
        if clock.monotonic() >= until_s:
            return False
        await sleep(POLL_S)


async def list_unrestored_nodes(
    api: ApiClient, namespace: str, daemon_set: JsonDict
) -> tuple[UnrestoredNode, ...]:
    """Return the nodes that are not restored; none where the pods cannot be listed."""
    labels = _member(_member(_member(daemon_set, "spec"), "selector"), "matchLabels")
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    request = ApiRequest(
        method="GET",
        path=PODS.path(namespace=namespace),
        query=(("labelSelector", selector),),
    )
    try:
        return tuple(unrestored_nodes((await api.call(request)).body))
    except (ApiError, *JSON_ERRORS):
        return ()


_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")  # of an object, as the API allows


def parse_daemon_set_name(text: str) -> tuple[str, str] | None:
    """Return namespace and name of NAMESPACE/NAME; `None` for anything else."""
    namespace, slash, name = text.partition("/")
    parts = (namespace, name)
    if not slash or not all(_NAME.fullmatch(part) for part in parts):
        return None
    return parts
