"""What the runtime tells of pods and containers: into the picture, and as questions to the hooks.

An event has one meaning, whether it comes by its own method or by StateChange.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from agent.model.runtime.adjustment import Adjustment, Resources
from agent.model.runtime.request import HookRequest, Stage
from agent.model.runtime.seen import ContainerSeen, ContainerState, SandboxSeen
from agent.nri import answering
from agent.nri.asking import Question
from agent.nri.picture import Picture
from agent.nri.reading import container_of, resources_of, sandbox_of, seen_of
from agent.nri.versions import Peer
from proto.gen import nri_container_pb2 as wire
from proto.gen import nri_plugin_pb2 as calls

Protects = Callable[[SandboxSeen], bool]


class Events:
    """Keeps the picture by what is told. Belongs to the loop thread."""

    def __init__(self, picture: Picture, protects: Protects) -> None:
        """`protects` says of a pod whether its containers are to be left alone."""
        self._picture = picture
        self._protects = protects

    def create(self, told: calls.CreateContainerRequest, peer: Peer) -> Question:
        """Ask what a container gets that is being created."""
        asked = resources_of(told.container.linux.resources)
        request = self._about(Stage.CREATE, told.pod, told.container, asked)
        return Question(
            request=request,
            subject=told.container.id,
            render=partial(answering.created, asked=asked, peer=peer),
        )

    def update(self, told: calls.UpdateContainerRequest) -> Question:
        """Ask what becomes of resources asked for: of those, never of what is in force."""
        asked, key = resources_of(told.linux_resources), told.container.id
        return Question(
            request=self._about(Stage.UPDATE, told.pod, told.container, asked),
            subject=key,
            render=partial(answering.updated, key, asked=asked),
        )

    def event(
        self, number: int, pod: wire.PodSandbox, container: wire.Container | None
    ) -> Question | None:
        """Take in one of the events without an answer of their own; those of no use are passed."""
        if number == calls.RUN_POD_SANDBOX:
            return self._run(pod)
        if number == calls.STOP_POD_SANDBOX:
            self._picture.stopped(pod.id)
        if number == calls.REMOVE_POD_SANDBOX:
            return self._remove(pod)
        if container is not None:
            if number == calls.POST_START_CONTAINER:
                self._started(pod, container)
            elif number in (calls.STOP_CONTAINER, calls.REMOVE_CONTAINER):
                self._picture.ended(container.id)
        return None

    def _run(self, pod: wire.PodSandbox) -> Question:
        sandbox = sandbox_of(pod)
        self._picture.told(sandbox)
        request = HookRequest(stage=Stage.RUN_POD, pod=sandbox)
        return Question(request=request, subject=sandbox.id, render=_nothing)

    def _remove(self, pod: wire.PodSandbox) -> Question:
        sandbox = self._picture.sandbox(pod.id) or sandbox_of(pod)
        self._picture.removed(pod.id)
        request = HookRequest(stage=Stage.REMOVE_POD, pod=sandbox)
        return Question(request=request, subject=pod.id, render=_nothing, refusable=False)

    def _started(self, pod: wire.PodSandbox, container: wire.Container) -> None:
        self._picture.told(
            container=ContainerSeen(
                id=container.id,
                sandbox_id=container.pod_sandbox_id or pod.id,
                name=container.name,
                state=ContainerState.RUNNING,
                pid=container.pid or None,
            )
        )

    def _about(
        self, stage: Stage, pod: wire.PodSandbox, container: wire.Container, asked: Resources
    ) -> HookRequest:
        """Return the question; of a pod that is known nothing is read a second time."""
        known = self._picture.sandbox(pod.id or container.pod_sandbox_id)
        usable = known is not None and pod.uid in ("", known.uid)
        sandbox = known if known is not None and usable else sandbox_of(pod)
        if stage is Stage.CREATE:
            self._picture.asked(None if usable else sandbox, seen_of(container))
        elif not usable:
            self._picture.told(sandbox)
        return HookRequest(
            stage=stage,
            pod=sandbox,
            container=container_of(container, sandbox, protected=self._protects(sandbox)),
            resources=asked,
        )


def _nothing(adjustment: Adjustment) -> bytes:  # noqa: ARG001 - of a pod nothing is answered
    return b""
