"""Explains a pod, device or file: its allocation, edits, values and verification, with reasons."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from aiohttp import web

from agent.snapshot.allocation import PodAllocation
from agent.snapshot.device import Device
from agent.snapshot.node import NodeSnapshot, VendorState
from agent.snapshot.pod import EvictionRuleView, PodEvictionView, PodView
from agent.snapshot.publications import EventLine
from agent.snapshot.self_check import (
    EnforcementView,
    FileExplanation,
    FileRequest,
    ResctrlActionKind,
    ResctrlView,
    StrategyState,
)
from agent.web.device_json import device_json
from agent.web.view import AgentView
from agent.wire_formats.annotations import priority_class, qos_class
from agent.wire_formats.snapshot_json import encode_json, to_json_data

Document = Mapping[str, object]
MAX_NAME = 512  # characters of a requested name
MAX_EVENTS = 20
MAX_CHANGES = 50  # changes of all files of a pod
DEADLINE_S = 8.0  # the thread that has the explanations may be busy
JSON_TYPE = "application/json"
RESCTRL_POINT = "/sys/fs/resctrl"
RESCTRL = "resctrl"  # name of the strategy
CLASS_OF_QOS = {"LSE": "LSR", "LSR": "LSR", "LS": "LS", "BE": "BE"}  # group of each class of pods


class UnknownSubject(Exception):
    """There is no such pod, device or file; the message has its name and where to find others."""


def explain_pod(view: AgentView, namespace: str, name: str) -> Document:
    """Return all facts about one pod; raises `UnknownSubject`."""
    snapshot = view.snapshot()
    pod = next(
        (one for one in snapshot.pods.value if (one.namespace, one.name) == (namespace, name)), None
    )
    if pod is None:
        raise UnknownSubject(
            f"no pod {namespace}/{name} is on this node; it has {_count(snapshot)}"
        )
    files = view.explanations.explain_group(pod.cgroup) if pod.cgroup else ()
    below = f"{pod.cgroup}/"
    changes = [record for record in snapshot.audit if pod.cgroup and below in f"{record.path}/"]
    allocation = snapshot.allocations.value.pods.get(pod.uid)
    return {
        "pod": _pod_json(pod, snapshot),
        "grant": None if allocation is None else to_json_data(allocation),
        "injection": [
            {
                "container": one.container,
                "refusal": one.refusal or None,
                "edits": to_json_data(one.edits),
            }
            for one in view.explanations.explain_injection(pod.uid)
        ],
        "verification": [
            to_json_data(one)
            for _, one in sorted(snapshot.verification.value.containers.items())
            if one.pod_uid == pod.uid
        ],
        "kubelet": [
            to_json_data(one) for one in snapshot.served.value.held if one.pod_uid == pod.uid
        ],
        "resctrl": _resctrl_json(pod, snapshot.resctrl),
        "eviction": _eviction_json(view.explanations.explain_eviction(pod.uid)),
        "strategies": _inactive_strategies(snapshot.enforcement.value),
        "files": [_file_json(file) for file in files],
        "changes": [to_json_data(change) for change in changes[-MAX_CHANGES:]],
        "events": _events_about(snapshot, f"{namespace}/{name}", name),
    }


def explain_device(view: AgentView, name: str) -> Document:
    """Return all facts about one device, named by bus id, uuid, minor or the uuid of its slice.

    Raises `UnknownSubject`.
    """
    snapshot = view.snapshot()
    device = next((one for one in snapshot.devices.value.devices if _is_called(one, name)), None)
    if device is None:
        text = f"no device is called {name[:80]!r}; see xpu-agent devices"
        raise UnknownSubject(text)
    allocations, state = snapshot.allocations.value, _vendor_of(snapshot, device)
    uids = allocations.held.get(device.info.key, ())
    holders = [allocations.pods[uid] for uid in uids if uid in allocations.pods]
    slices = {part.uuid for part in device.info.partitions}
    names = {device.info.uuid or "", device.info.bus_id or "", *slices} - {""}
    return {
        "device": device_json(device),
        "vendor": None
        if state is None
        else {
            "name": state.vendor,
            "state": state.state,
            "reason": state.reason or None,
            "message": state.message or None,
        },
        "pods": [_holder_json(holder, snapshot) for holder in holders],
        "kubelet": [
            to_json_data(allocation)
            for allocation in snapshot.served.value.held
            if not names.isdisjoint(allocation.device_ids)
        ],
        "resources": [
            to_json_data(resource)
            for resource in snapshot.served.value.resources
            if state is not None and resource.vendor == state.vendor
        ],
        "events": _events_about(snapshot, *names),
    }


def explain_file(view: AgentView, path: str) -> Document:
    """Return the requested values of a file, and the result of its writes.

    Raises `UnknownSubject`.
    """
    explanation = view.explanations.explain_file(path) or _explain_group(view.snapshot(), path)
    if explanation is None:
        text = (
            f"{path[:MAX_NAME]}: no hook and no strategy wants a value of it, and none was written;"
            " name a file as the node has it, such as one of /api/v1/audit; xpu-agent plan tells"
            " which strategies wait, and for what"
        )
        raise UnknownSubject(text)
    return {
        "file": _file_json(explanation),
        "strategies": _inactive_strategies(view.snapshot().enforcement.value),
    }


def _inactive_strategies(view: EnforcementView) -> list[Document]:
    """Return the strategies that set no new value now although they may be asked to, and why."""
    working = (StrategyState.ACTIVE, StrategyState.IDLE)
    return [
        {
            "strategy": strategy.name,
            "mode": strategy.mode,
            "state": strategy.state.value if strategy.state not in working else "stopped",
            "reason": view.brake if strategy.state in working else strategy.message or None,
        }
        for strategy in view.strategies
        if (strategy.state not in working or view.brake)
        and (strategy.state is not StrategyState.OFF or strategy.message)
    ]


def _explain_group(snapshot: NodeSnapshot, path: str) -> FileExplanation | None:
    """Return the explanation of the schemata of a resctrl group of the agent."""
    view = snapshot.resctrl
    name = path.removeprefix(f"{RESCTRL_POINT}/").removesuffix("/schemata")
    group = next(
        (one for one in view.groups if path == f"{RESCTRL_POINT}/{one.name}/schemata"), None
    )
    changes = tuple(record for record in snapshot.audit if record.path == path)[-MAX_CHANGES:]
    if group is None and not changes:
        return None
    waiting = [
        one for one in view.planned if one.kind is ResctrlActionKind.WRITE and one.path == name
    ]
    current = None if group is None else group.schemata
    sources = [change.source for change in changes if change.source]
    value = waiting[0].text.strip() if waiting else current
    reason = waiting[0].reason if waiting else next(reversed(sources), "")
    request = FileRequest(
        owner=RESCTRL, mode=view.mode, value=value or "", wins=view.mode == "on", source=reason
    )
    return FileExplanation(
        path=path,
        current=current,
        requests=(request,) if value else (),
        refusal=next((problem.message for problem in view.problems if name in problem.message), ""),
        changes=changes,
    )


def _resctrl_json(pod: PodView, view: ResctrlView) -> Document | None:
    """Return the group that the pod's containers are in; `None`: the root group."""
    own = next((one for one in view.groups if one.pod_uid == pod.uid), None)
    qos = CLASS_OF_QOS.get(qos_class(pod), "")
    name = own.name if own is not None else view.group_of_class(qos, pod.namespace)
    group = next((one for one in view.groups if one.name == name), None)
    if group is None:
        return None
    return {"group": group.name, "classes": list(group.classes), "schemata": group.schemata}


def _eviction_json(one: PodEvictionView | None) -> Document | None:
    """Return whether the pod may be evicted and why; `None`: no strategy of evictions knows it."""
    if one is None:
        return None
    return {
        "protected": one.protection or None,
        "eviction_priority": one.eviction_priority,
        "priority": one.priority,
        "label_priority": one.label_priority,
        "used": dict(one.used),
        "requested": dict(one.requested),
        "recently": one.recently or None,
        "rules": [_rule_json(rule) for rule in one.rules],
    }


def _rule_json(one: EvictionRuleView) -> Document:
    return {
        "rule": one.rule,
        "mode": one.mode,
        "state": one.state,
        "reason": one.reason or None,
        "to_release": dict(one.release),
        "candidate": not one.exclusion,
        "exclusion": one.exclusion or None,
        "place": one.place or None,
        "candidates": one.candidates,
    }


def _count(snapshot: NodeSnapshot) -> str:
    count = sum(bool(pod.name) for pod in snapshot.pods.value)
    return f"{count} pod" + ("" if count == 1 else "s")


def _pod_json(pod: PodView, snapshot: NodeSnapshot) -> Document:
    missed = snapshot.runtime.value.missed
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "phase": pod.phase or None,
        "protected": pod.namespace in snapshot.resctrl.protected_namespaces,
        "qos": pod.qos.value,
        "koordinator_qos": qos_class(pod) if pod.name else None,
        "priority": pod.priority,
        "priority_class": priority_class(pod) if pod.name else None,
        "labels": {key: value for key, value in pod.labels if "koordinator.sh" in key},
        "cgroup": pod.cgroup or None,
        "containers": [
            {
                "name": container.name or None,
                "id": container.id,
                "cgroup": container.cgroup or None,
                "missed": missed.get(container.id),
            }
            for container in pod.containers
        ],
    }


def _file_json(one: FileExplanation) -> Document:
    return {
        "path": one.path,
        "current": one.current,
        "requests": [
            {
                "by": request.owner,
                "mode": request.mode,
                "value": request.value,
                "wins": request.wins,
                "message": request.message or None,
                "source": request.source or None,
            }
            for request in one.requests
        ],
        "original": one.original,
        "owner": one.owner or None,
        "own_values": list(one.own_values),
        "refusal": one.refusal or None,
        "contested": one.is_contested,
        "changes": [to_json_data(change) for change in one.changes],
    }


def _is_called(device: Device, name: str) -> bool:
    info = device.info
    names = {info.key, info.uuid, info.bus_id, *(part.uuid for part in info.partitions)}
    names |= {vf.bus_id for group in info.vf_groups for vf in group.vfs}
    is_minor = info.minor is not None and name == str(info.minor)
    return name in names or is_minor


def _vendor_of(snapshot: NodeSnapshot, device: Device) -> VendorState | None:
    for state in snapshot.vendors:
        inventory = state.inventory.value
        if inventory is not None and any(one.key == device.info.key for one in inventory.devices):
            return state
    return None


def _holder_json(allocation: PodAllocation, snapshot: NodeSnapshot) -> Document:
    verdicts = [
        {"container": one.container, "verdict": one.verdict.value, "details": list(one.details)}
        for _, one in sorted(snapshot.verification.value.containers.items())
        if one.pod_uid == allocation.uid
    ]
    document = to_json_data(allocation)
    return {**(document if isinstance(document, dict) else {}), "verification": verdicts}


def _events_about(snapshot: NodeSnapshot, *names: str) -> list[object]:
    def is_about(event: EventLine) -> bool:
        return any(name in event.about or name in event.message for name in names)

    return [to_json_data(one) for one in snapshot.events if is_about(one)][-MAX_EVENTS:]


class ExplanationHandlers:
    """The handlers of the three routes, for the page's server and for the admin socket."""

    def __init__(self, view: AgentView) -> None:
        self._view = view

    async def pod(self, request: web.Request) -> web.Response:
        """Explain `{namespace}/{name}`."""
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        return await self._respond(lambda: explain_pod(self._view, namespace, name))

    async def device(self, request: web.Request) -> web.Response:
        """Explain the device with this bus id, uuid or minor."""
        name = request.match_info["name"]
        return await self._respond(lambda: explain_device(self._view, name))

    async def file(self, request: web.Request) -> web.Response:
        """Explain the file at this path."""
        path = f"/{request.match_info['path']}"
        return await self._respond(lambda: explain_file(self._view, path))

    def add_routes(self, app: web.Application) -> None:
        """Add the three routes."""
        app.router.add_get("/api/v1/explain/pod/{namespace}/{name}", self.pod)
        app.router.add_get("/api/v1/explain/device/{name}", self.device)
        app.router.add_get("/api/v1/explain/file/{path:.+}", self.file)

    async def _respond(self, explain: Callable[[], Document]) -> web.Response:
        """Explain on the thread that writes the files, since only it may read their records."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                body = await self._view.offload(lambda: encode_json(explain()))
        except UnknownSubject as error:
            return web.json_response({"error": str(error)}, status=404)
        except TimeoutError:
            return web.json_response({"error": "the collector is stuck; see /healthz"}, status=503)
        return web.Response(body=body, content_type=JSON_TYPE)
