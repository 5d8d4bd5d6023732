"""What happens in the cluster, as lines for people, and which parts of the story have been seen."""

from __future__ import annotations

import enum
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from agent.errors import ParseError
from agent.snapshot.allocation import AllocatedDevice
from agent.wire_formats.device_allocated import ANNOTATION, decode_allocated
from tests.apiserver import ApiServer
from tests.demo_cluster.workload import NAMESPACE, STORY, WAITING

Object = dict[str, Any]
DeviceKey = tuple[str, str, int | None]  # node, type, minor
HTTP_TIMEOUT_S = 5.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback needs no proxy
WHOLE = 100  # percent of a card


class Chapter(enum.Enum):
    """A part of the story; the value says what has been seen."""

    DEVICES = "each node has a Device object"
    ALLOCATIONS = "pods are bound with the devices that they requested"
    SHARED = "two pods share one card"
    WAITING = "a pod waits, with its reason"
    FAULT = "a failing card shows in the Device object, an event, the page and the metrics"
    RECOVERY = "the card is in service again"
    BOUND_LATER = "the pod that waited is bound"


class ShownFault:
    """A card that the Device object shows as failed, and where else it has to show."""

    def __init__(self, key: DeviceKey, reason: str, *, is_repeated: bool) -> None:
        """Repeats of an event are counted in it, at most once a minute: they are not waited for."""
        self.key = key
        self.reason = reason
        self.places = ("page", "metrics") if is_repeated else ("event", "page", "metrics")
        self.missing = set(self.places)
        self.began_s = time.time()  # when the Device object showed it; better: the event's time

    def line(self) -> str:
        """Return the line for people, once nothing is missing."""
        late_ms = (time.time() - self.began_s) * 1e3
        node, kind, minor = self.key
        return (
            f"card {kind} {minor} of {node}: {self.reason} shows in the Device object, "
            f"{', '.join(self.places)}, after {late_ms:.0f} ms"
        )


class Observer:
    """Compares the objects of the server with those of the last look."""

    def __init__(self, api: ApiServer, pages: Mapping[str, str]) -> None:
        """Take the addresses of the agents by node."""
        self._api = api
        self._pages = pages
        self._versions: dict[str, str] = {}  # of the Device objects
        self._node_versions: set[str] = set()
        self._health: dict[DeviceKey, bool] = {}
        self._bound: dict[str, frozenset[DeviceKey]] = {}  # devices by pod
        self._bound_templates: set[str] = set()
        self._reasons: dict[str, str] = {}  # why a pod waits
        self._faults: list[ShownFault] = []
        self._failed_before: set[DeviceKey] = set()
        self.seen: set[Chapter] = set()
        self.has_changed = False  # a Device object or a Node, at the last look
        self.pods_on_failed_cards: set[str] = set()

    def step(self) -> list[str]:
        """Return lines about what is new."""
        versions = {node["metadata"]["resourceVersion"] for node in self._api.list("nodes")}
        self.has_changed = versions != self._node_versions
        self._node_versions = versions
        lines = [line for device in self._api.list("devices") for line in self._see_device(device)]
        pods = {pod["metadata"]["name"]: pod for pod in self._api.list("pods", NAMESPACE)}
        for name, pod in pods.items():
            lines += self._see_pod(name, pod)
        self._bound = {name: self._bound[name] for name in self._bound if name in pods}
        self._reasons = {name: self._reasons[name] for name in self._reasons if name in pods}
        lines += self._look_for_faults()
        self._note_allocations()
        return lines

    def _see_device(self, device: Object) -> Iterator[str]:
        node, version = device["metadata"]["name"], device["metadata"]["resourceVersion"]
        is_new = node not in self._versions
        if self._versions.get(node) == version:
            return
        self._versions[node] = version
        self.has_changed = True
        entries = device["spec"].get("devices", [])
        if is_new:
            yield f"node {node}: Device object with {_counts(entries)}"
        if self._versions.keys() == self._pages.keys():
            self.seen.add(Chapter.DEVICES)
        for entry in entries:
            key = (node, entry["type"], entry["minor"])
            was_healthy = self._health.get(key)
            self._health[key] = entry["health"]
            condition: Object = next(iter(entry.get("conditions", ())), {})
            if was_healthy is not False and not entry["health"]:
                yield from self._see_fault(key, condition, is_new=is_new)
            elif was_healthy is False and entry["health"]:
                self.seen.add(Chapter.RECOVERY)
                yield f"card {entry['type']} {entry['minor']} of {node}: in service again"

    def _see_fault(self, key: DeviceKey, condition: Object, *, is_new: bool) -> Iterator[str]:
        node, kind, minor = key
        reason = condition.get("reason", "?")
        message = condition.get("message", "").partition("; looks well again")[0]
        pods = sorted(name for name, devices in self._bound.items() if key in devices)
        users = f"; in use by {', '.join(pods)}" if pods else ""
        yield f"card {kind} {minor} of {node}: FAILED, {reason}: {message}{users}"
        if not is_new:
            is_repeated = key in self._failed_before
            self._failed_before.add(key)
            self._faults.append(ShownFault(key, reason, is_repeated=is_repeated))
            self.pods_on_failed_cards.update(pods)

    def _see_pod(self, name: str, pod: Object) -> Iterator[str]:
        node = pod["spec"].get("nodeName")
        if node and name not in self._bound:
            allocation = _allocation(pod)
            self._bound[name] = frozenset((node, one.type, one.minor) for one in allocation)
            if name in self._reasons:
                self.seen.add(Chapter.BOUND_LATER)
            yield f"pod {name}: bound to {node} with {_allocation_text(allocation)}"
            return
        for condition in pod.get("status", {}).get("conditions", ()):
            reason = condition.get("message", "")
            is_refused = condition.get("reason") == "Unschedulable"
            if not node and is_refused and name not in self._reasons:
                self._reasons[name] = reason
                if name.startswith(f"{WAITING}-"):
                    self.seen.add(Chapter.WAITING)
                yield f"pod {name}: waits, {reason.partition(' no new claims')[0]}"

    def _note_allocations(self) -> None:
        self._bound_templates.update(
            name.rpartition("-")[0] for name, devices in self._bound.items() if devices
        )
        if self._bound_templates >= {template.name for template in STORY} - {WAITING}:
            self.seen.add(Chapter.ALLOCATIONS)
        users = Counter(key for devices in self._bound.values() for key in devices)
        if any(count > 1 for count in users.values()):
            self.seen.add(Chapter.SHARED)

    def _look_for_faults(self) -> Iterator[str]:
        for fault in list(self._faults):
            self._look_for(fault)
            if not fault.missing:
                self._faults.remove(fault)
                self.seen.add(Chapter.FAULT)
                yield fault.line()

    def _look_for(self, fault: ShownFault) -> None:
        node, _, minor = fault.key
        for event in self._api.list("events") if "event" in fault.missing else ():
            is_of_node = event["regarding"]["name"] == node
            if (
                is_of_node
                and event["reason"] == "DeviceUnhealthy"
                and fault.reason in event["note"]
            ):
                fault.missing.discard("event")
                fault.began_s = datetime.fromisoformat(event["eventTime"]).timestamp()
        page = self._pages[node]
        if "page" in fault.missing and fault.reason in _get(page):
            fault.missing.discard("page")
        if "metrics" in fault.missing:
            lines = _get(f"{page}/metrics").splitlines()
            start, label = "xpu_device_healthy{", f'minor="{minor}"'
            healthy = [line for line in lines if line.startswith(start) and label in line]
            if any(line.endswith(" 0") for line in healthy):
                fault.missing.discard("metrics")


def _get(url: str) -> str:
    try:
        with _OPENER.open(url, timeout=HTTP_TIMEOUT_S) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, OSError):
        return ""  # the next look asks again


def _counts(entries: list[Object]) -> str:
    kinds = [entry["type"] for entry in entries]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))) or "no devices"


def _allocation(pod: Object) -> tuple[AllocatedDevice, ...]:
    """Return the devices of a pod; nothing for an annotation that cannot be read."""
    try:
        return decode_allocated(pod["metadata"].get("annotations", {}).get(ANNOTATION, "{}"))
    except ParseError:
        return ()


def _allocation_text(allocation: Iterable[AllocatedDevice]) -> str:
    """Return `gpu 0, 1; rdma 0`, with the part of a card that is shared."""
    names: dict[str, list[str]] = {}
    for one in allocation:
        core = dict(one.resources).get("koordinator.sh/gpu-core", WHOLE)
        share = "" if core == WHOLE else f" ({core} %)"
        names.setdefault(one.type, []).append(f"{one.minor}{share}")
    texts = [f"{kind} {', '.join(of_kind)}" for kind, of_kind in names.items()]
    return "; ".join(texts) or "no devices"
