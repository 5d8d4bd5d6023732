"""The stream of pods, and who lets them run: kube-scheduler, the kubelets, the owner of a job."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import msgspec

from agent.clock import rfc3339
from plugins.scheduler.server.settings import scheduler_configuration
from tests.apiserver import ApiServer
from tests.kubescheduler import KubeScheduler, read_extenders

Object = dict[str, Any]
NAMESPACE = "demo"
MOST_PODS = 16  # that wait or run; no more are created meanwhile
_PREFIX = "koordinator.sh"
_SAME_ROOT = '{"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}'
_ONE_NUMA_NODE = '{"gpu": {"requiredTopologyScope": "NUMANode"}}'


class PodTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of pod, and for how long such a pod runs."""

    name: str
    about: str  # what it requests, for people
    amounts: Mapping[str, str]
    runs_s: float
    annotations: Mapping[str, str] = {}
    vendor: str = ""


def _share(core: str) -> dict[str, str]:
    return {
        f"{_PREFIX}/gpu.shared": "1",
        f"{_PREFIX}/gpu-core": core,
        f"{_PREFIX}/gpu-memory-ratio": core,
    }


TRAIN = PodTemplate(
    name="train",
    about="4 GPUs",
    amounts={f"{_PREFIX}/gpu": "400"},
    runs_s=40.0,
    vendor="nvidia",
)
NICS = PodTemplate(
    name="allreduce",
    about="2 GPUs with a NIC on the same PCIe root",
    amounts={f"{_PREFIX}/gpu": "200", f"{_PREFIX}/rdma": "100"},
    annotations={"scheduling.koordinator.sh/device-joint-allocate": _SAME_ROOT},
    runs_s=20.0,
    vendor="nvidia",
)
HALF = PodTemplate(
    name="serve", about="half a GPU", amounts=_share("50"), runs_s=30.0, vendor="nvidia"
)
PAIR = PodTemplate(
    name="pair",
    about="2 GPUs of one NUMA node",
    amounts={f"{_PREFIX}/gpu": "200"},
    annotations={"scheduling.koordinator.sh/device-allocate-hint": _ONE_NUMA_NODE},
    runs_s=15.0,
    vendor="nvidia",
)
NPUS = PodTemplate(
    name="npu",
    about="2 NPUs",
    amounts={"huawei.com/npu-core": "40", f"{_PREFIX}/gpu-memory-ratio": "200"},
    runs_s=25.0,
)
MLU = PodTemplate(
    name="mlu",
    about="a quarter of an MLU",
    amounts=_share("25"),
    runs_s=25.0,
    vendor="cambricon",
)
STORY = (TRAIN, NICS, HALF, HALF, NPUS, MLU, PAIR)
EXAMPLE = HALF  # of a pod that people create
WAITING = PAIR.name  # the pod of the story that has to wait: one GPU is left
LATER = ((TRAIN, 1), (NICS, 2), (HALF, 4), (PAIR, 2), (NPUS, 3), (MLU, 4))  # with weights


def story_pods() -> Iterator[tuple[float, PodTemplate]]:
    """Yield the pods of the story, then others without an end; with the pause before each."""
    for template in STORY:
        yield 0.5, template
    chance = random.Random(1)
    templates, weights = zip(*LATER, strict=True)
    while True:
        (template,) = chance.choices(templates, weights)
        yield chance.uniform(4.0, 9.0), template


def pod_object(template: PodTemplate, name: str) -> Object:
    """Return a pod as its owner creates it."""
    resources = {"requests": dict(template.amounts), "limits": dict(template.amounts)}
    selector = {"node.koordinator.sh/gpu-vendor": template.vendor} if template.vendor else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"app": template.name},
            "annotations": dict(template.annotations),
        },
        "spec": {
            "nodeSelector": selector,
            "containers": [{"name": "main", "image": "example/main", "resources": resources}],
        },
        "status": {"phase": "Pending"},
    }


class Scheduling:
    """kube-scheduler in a thread: pods that were refused are tried again after each change."""

    def __init__(self, api: ApiServer, extender_url: str) -> None:
        extenders = read_extenders(scheduler_configuration(extender_url))
        self.scheduler = KubeScheduler(api, extenders, scale=0.2)
        self._api = api
        self._new: list[Object] = []
        self._condition = threading.Condition()
        self._is_stopping = False
        self._written: dict[str, str] = {}  # text of the last event by pod
        self._event_number = count(1)
        self._thread = threading.Thread(target=self._run, name="kube-scheduler", daemon=True)
        self._thread.start()

    def add(self, pod: Object) -> None:
        """Schedule a pod that was created."""
        with self._condition:
            self._new.append(pod)
            self._condition.notify()

    def wake(self) -> None:
        """Try refused pods again: an object of the cluster has changed."""
        self.scheduler.wake()
        with self._condition:
            self._condition.notify()

    def stop(self) -> None:
        """End the thread after its present call."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify()
        self._thread.join(10.0)

    def _run(self) -> None:
        while True:
            with self._condition:
                if not self._new:
                    self._condition.wait(1.0)
                if self._is_stopping:
                    return
                new, self._new = self._new, []
            self.scheduler.add(*new)
            with contextlib.suppress(TimeoutError):  # pods in back-off: the next call continues
                self.scheduler.run(patience_s=1.0)
            self._write_events()

    def _write_events(self) -> None:
        """Write kube-scheduler's events for `kubectl`, repeats left out."""
        events, self.scheduler.events = self.scheduler.events, []
        for event in events:
            pod = self._api.get("pod", event.pod, NAMESPACE)
            if pod is None or self._written.get(event.pod) == event.note:
                continue
            self._written[event.pod] = event.note
            is_bound = event.reason == "Scheduled"
            self._api.put(
                {
                    "apiVersion": "events.k8s.io/v1",
                    "kind": "Event",
                    "metadata": {
                        "name": f"{event.pod}.{next(self._event_number)}",
                        "namespace": NAMESPACE,
                    },
                    "eventTime": rfc3339(time.time()).replace("Z", ".000000Z"),
                    "reportingController": "default-scheduler",
                    "reportingInstance": "default-scheduler-demo",
                    "action": "Binding" if is_bound else "Scheduling",
                    "reason": event.reason,
                    "type": "Normal" if is_bound else "Warning",
                    "note": event.note,
                    "regarding": {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "name": event.pod,
                        "namespace": NAMESPACE,
                        "uid": pod["metadata"]["uid"],
                    },
                }
            )


class PodStream:
    """Creates pods, lets bound ones run for their time, and replaces those on a failed card.

    Pods that people create in the same namespace are scheduled as well, and run until they are
    deleted. All times are divided by `speed`.
    """

    def __init__(
        self, api: ApiServer, scheduling: Scheduling, start_s: float, speed: float = 1.0
    ) -> None:
        self._api = api
        self._scheduling = scheduling
        self._speed = speed
        self._stream = story_pods()
        pause_s, self._next = next(self._stream)
        self._next_s = start_s + pause_s / speed
        self._numbers: dict[str, Iterator[int]] = {}
        self._templates: dict[str, PodTemplate] = {}
        self._ends_s: dict[str, float] = {}  # by name of a running pod
        self._scheduled: set[str] = set()  # uids

    def step(self, now_s: float) -> list[str]:
        """Do what is due; return lines for people."""
        lines: list[str] = []
        live = {pod["metadata"]["name"]: pod for pod in self._api.list("pods", NAMESPACE)}
        for name, pod in live.items():
            lines += self._attend(name, pod, now_s)
        for name in [name for name, end_s in self._ends_s.items() if end_s <= now_s]:
            lines.append(f"pod {name}: done")
            self._remove(name)
        for name in self._ends_s.keys() - live.keys():
            lines.append(f"pod {name}: deleted")
            self._remove(name)
        if now_s >= self._next_s and len(live) < MOST_PODS:
            lines.append(self._create(self._next))
            pause_s, self._next = next(self._stream)
            self._next_s = now_s + pause_s / self._speed
        return lines

    def _attend(self, name: str, pod: Object, now_s: float) -> Iterator[str]:
        """Do for a pod what its node's kubelet does; let pods of other people be scheduled."""
        if pod["metadata"].get("deletionTimestamp"):
            self._api.delete("pod", name, NAMESPACE)
        elif pod["spec"].get("nodeName"):
            if name not in self._ends_s:
                self._start(name, pod, now_s)
        elif pod["metadata"]["uid"] not in self._scheduled:
            self._schedule(pod)
            yield f"pod {name}: created by you"

    def _schedule(self, pod: Object) -> None:
        self._scheduled.add(pod["metadata"]["uid"])
        self._scheduling.add(pod)

    def replace(self, name: str) -> str:
        """Delete a pod as the controller of its job does, and create it anew; return a line."""
        if name not in self._templates:
            return f"pod {name}: stays, because nothing but you owns it"
        self._remove(name)
        return f"pod {name}: its job deletes it; {self._create(self._templates[name])}"

    def _create(self, template: PodTemplate) -> str:
        number = next(self._numbers.setdefault(template.name, count()))
        name = f"{template.name}-{number}"
        self._templates[name] = template
        self._schedule(self._api.put(pod_object(template, name)))
        return f"pod {name}: requests {template.about}"

    def _start(self, name: str, pod: Object, now_s: float) -> None:
        """Do what the node's kubelet does once the containers run."""
        template = self._templates.get(name)
        runs_s = template.runs_s if template is not None else float("inf")
        self._ends_s[name] = now_s + runs_s / self._speed
        started = rfc3339(time.time())
        container = {
            "name": "main",
            "image": "example/main",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": started}},
        }
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": started}
        status = {"phase": "Running", "startTime": started, "containerStatuses": [container]}
        self._api.put({**pod, "kind": "Pod", "status": {**status, "conditions": [ready]}})

    def _remove(self, name: str) -> None:
        self._ends_s.pop(name, None)
        self._api.delete("pod", name, NAMESPACE)
        self._scheduling.wake()
