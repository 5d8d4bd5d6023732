"""Containers start where the loop would put them; a pod's group exists before its containers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from agent.allocation.index import AllocationIndex
from agent.containers.dispatch import Answers, ContainerAdjuster
from agent.containers.resctrl import GROUP_MISSING, RESCTRL, ResctrlHook
from agent.messages import MessageQueue
from agent.snapshot.container import (
    Adjustment,
    ContainerSpec,
    HookRequest,
    HookStage,
    PodSandbox,
    RuntimeView,
    sandbox_from_pod,
)
from agent.snapshot.node import SnapshotStore
from agent.snapshot.pod import KubeQos, PodView
from agent.wire_formats.annotations import QOS_LABEL
from tests.resctrl.host import LAYOUT
from tests.resctrl.machine import DEFAULT_MACHINE, Machine
from tests.unit.resctrl.scene import HALF, Scene, group, qos, uid

CGROUP_OF_QOS = {
    KubeQos.GUARANTEED: "/kubepods/pod",
    KubeQos.BURSTABLE: "/kubepods/burstable/pod",
    KubeQos.BEST_EFFORT: "/kubepods/besteffort/pod",
}


class Runtime:
    """A container runtime that asks the agent, and the agent's thread for files of pods."""

    def __init__(self, scene: Scene, files: ThreadPoolExecutor) -> None:
        self.scene = scene
        self.store = SnapshotStore(scene.snapshot)
        self.messages = MessageQueue()
        self.adjuster = ContainerAdjuster(
            (ResctrlHook(),),
            {"resctrl": "on"},
            self.store,
            scene.clock,
            messages=self.messages,
            pod_files=self,
            files=files,
            index=AllocationIndex(),
        )

    def write_pod(self, request: HookRequest) -> None:
        """Make a pod's group, as the thread for files of pods does."""
        report = self.scene.manager.prepare_pod(request, self.store.current, LAYOUT)
        if report is not None:
            self.store.put(resctrl=report.view)

    def record_requested_values(self, request: HookRequest, answers: Answers) -> None:
        """Nothing is requested here."""

    def prioritise_missed_pods(self, before: RuntimeView, now: RuntimeView) -> None:
        """No container is missed here."""

    def start(self, pod: PodSandbox) -> str | None:
        """Start a pod with one container; return the class that the container gets."""
        asyncio.run(self._ask(HookRequest(stage=HookStage.RUN_POD, pod=pod)))
        spec = ContainerSpec(name="main", pod_uid=pod.uid)
        request = HookRequest(stage=HookStage.CREATE, pod=pod, container=spec)
        return asyncio.run(self._ask(request)).rdt_class

    async def _ask(self, request: HookRequest) -> Adjustment:
        answer = self.adjuster.adjust(request)
        return answer if isinstance(answer, Adjustment) else await answer


@pytest.fixture
def files() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def sandbox(number: int, label: str = "LS", annotation: str | None = HALF) -> PodSandbox:
    return PodSandbox(
        id=f"{number:064x}",
        uid=uid(number),
        name=f"pod-{number}",
        namespace="test",
        labels=((QOS_LABEL, label),),
        annotations=((RESCTRL, annotation),) if annotation is not None else (),
    )


def test_the_first_container_of_a_pod_starts_in_its_own_group(files: ThreadPoolExecutor) -> None:
    scene = Scene()
    runtime = Runtime(scene, files)
    order: list[str] = []
    scene.host.resctrl.before_change = lambda operation, path: order.append(f"{operation} {path}")
    assert runtime.start(sandbox(1)) == group(1)
    assert order == [f"make {group(1)}", f"write {group(1)}/schemata"]


def test_without_a_free_group_a_pod_starts_in_that_of_its_class(files: ThreadPoolExecutor) -> None:
    scene = Scene(Machine(mb_closids=3))
    scene.set_class("BE", qos(0, 30))
    scene.cycle()
    runtime = Runtime(scene, files)
    runtime.store.put(resctrl=scene.manager.view)
    assert runtime.start(sandbox(1, "BE")) == group(1)
    assert runtime.start(sandbox(2, "BE")) == "BE"
    assert GROUP_MISSING in {event.reason for event in runtime.messages.drain_events()}


def test_a_group_that_the_kernel_refuses_is_not_named(files: ThreadPoolExecutor) -> None:
    scene = Scene()
    runtime = Runtime(scene, files)

    def refuse(operation: str, path: str) -> None:
        if (operation, path) == ("write", f"{group(1)}/schemata"):
            raise OSError(5, "EIO")

    scene.host.resctrl.before_change = refuse
    assert runtime.start(sandbox(1)) is None


def test_a_static_pod_that_the_kubelet_did_not_list_keeps_its_group_and_its_mirror_gets_none(
    files: ThreadPoolExecutor,
) -> None:
    scene, pod = Scene(), sandbox(1)
    assert Runtime(scene, files).start(pod) == group(1)
    tasks = scene.add_pod(1, "LS", HALF)
    scene.sandboxes = {pod.id: pod}
    bare = replace(scene.pods[1], name="", namespace="", labels=(), annotations=())
    mirror = PodView(
        uid=uid(2),
        qos=KubeQos.BURSTABLE,
        name=pod.name,
        namespace=pod.namespace,
        annotations=(("kubernetes.io/config.mirror", uid(1)), (RESCTRL, HALF)),
        phase="Running",
    )
    scene.pods = {1: bare, 2: mirror}
    scene.cycle(120)  # longer than a pod that starts may be unlisted
    assert scene.groups() == {group(1)}
    assert scene.members(group(1)) == set(tasks)


@pytest.mark.parametrize("annotation", [None, HALF])
def test_a_pod_of_a_protected_namespace_is_in_no_group_of_a_class_from_its_start_on(
    annotation: str | None, files: ThreadPoolExecutor
) -> None:
    scene = Scene(protected_namespaces=("test",))
    scene.set_class("BE", qos(0, 30))
    tasks = scene.add_pod(1, "BE", annotation)
    scene.cycle(2)
    place = "" if annotation is None else group(1)
    assert set(tasks) <= scene.members(place)
    runtime = Runtime(scene, files)
    runtime.store.put(resctrl=scene.manager.view)
    assert runtime.start(sandbox(1, "BE", annotation)) == (place or None)


def test_without_a_group_of_its_own_a_pod_of_a_protected_namespace_is_in_the_root_group(
    files: ThreadPoolExecutor,
) -> None:
    scene = Scene(Machine(mb_closids=2), protected_namespaces=("test",))
    scene.set_class("BE", qos(0, 30))
    scene.cycle()
    runtime = Runtime(scene, files)
    runtime.store.put(resctrl=scene.manager.view)
    assert runtime.start(sandbox(1, "BE")) is None


@pytest.mark.parametrize("machine", [DEFAULT_MACHINE, Machine(mb_closids=3)])
@pytest.mark.parametrize("annotation", [None, HALF])
@pytest.mark.parametrize("kube", KubeQos)
@pytest.mark.parametrize("label", ["LSE", "LSR", "LS", "BE", "SYSTEM", "none", None])
def test_a_container_starts_where_the_loop_puts_its_tasks(
    machine: Machine, annotation: str | None, kube: KubeQos, label: str | None
) -> None:
    scene = Scene(machine)
    scene.set_class("BE", qos(0, 30))
    scene.set_class("LS", qos(20, 100))
    scene.set_class("LSR", qos(50, 100))
    tasks = scene.add_pod(1, "BE", annotation)
    labels = () if label is None else ((QOS_LABEL, label),)
    pod: PodView = replace(scene.pods[1], qos=kube, labels=labels)
    scene.pods[1] = pod
    view = scene.cycle(2)
    place = next(name for name in ("", *scene.groups()) if set(tasks) <= scene.members(name))
    parent = replace(sandbox_from_pod(pod), cgroup_parent=f"{CGROUP_OF_QOS[kube]}{pod.uid}")
    spec = ContainerSpec(name="main", pod_uid=pod.uid)
    request = HookRequest(stage=HookStage.CREATE, pod=parent, container=spec)
    answer = ResctrlHook().adjust(request, replace(scene.snapshot, resctrl=view))
    assert (answer.rdt_class or "") == place
