"""What the kubelet makes a runtime do, and what plug-ins make of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from proto.gen import nri_container_pb2 as pb
from proto.gen import nri_linux_pb2 as linux
from proto.gen import nri_plugin_pb2 as nri
from tests.runtime.owners import Conflict, Owners
from tests.runtime.plugin import Plugin
from tests.runtime.plugin_calls import Asking, Failed
from tests.runtime.pods import (
    CreatedContainer,
    Pod,
    as_listed,
    as_told,
    as_told_container,
    container,
    sandbox,
)
from tests.runtime.spec import Refused, Spec
from tests.runtime.versions import Version


@dataclass(frozen=True, slots=True)
class Rival:
    """Another plug-in, inside the runtime: `adjust` is what it wants of each container."""

    index: str
    name: str
    adjust: Callable[[pb.PodSandbox, pb.Container], pb.ContainerAdjustment]


class Runtime(Asking):
    """See the package: this is what tests use."""

    def __init__(
        self,
        folder: Path,
        version: Version,
        *,
        registration_s: float = 5.0,
        request_s: float = 2.0,
        tell_limits: bool = True,
    ) -> None:
        super().__init__(
            folder,
            version,
            registration_s=registration_s,
            request_s=request_s,
            tell_limits=tell_limits,
        )
        self.pods: list[Pod] = []
        self.rivals: list[Rival] = []
        self.cdi_names: set[str] = set()
        self._number = 0

    async def __aenter__(self) -> Runtime:
        await self.listen()
        return self

    def picture(self) -> tuple[list[pb.PodSandbox], list[pb.Container]]:
        """Return the pods that are not removed, and their containers that do not rest."""
        pods = [pod for pod in self.pods if pod.told]
        return (
            [as_listed(self.version, pod) for pod in pods],
            [
                as_told_container(self.version, created.message)
                for pod in pods
                for created in pod.containers
                if created.state not in ("unknown", "stopped")
            ],
        )

    def pod(
        self,
        name: str,
        *,
        namespace: str = "default",
        uid: str = "",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        host_network: bool = False,
    ) -> Pod:
        """Return a new pod of which nobody was told."""
        self._number += 1
        return Pod(
            sandbox(
                name,
                number=self._number,
                namespace=namespace,
                pod_uid=uid,
                labels=labels,
                annotations=annotations,
                host_network=host_network,
            )
        )

    def populate(self, *, pods: int, containers: int = 1) -> list[Pod]:
        """Return pods with running containers, of which no plug-in was told: it was not here."""
        created = [self.pod(f"old-{number}") for number in range(pods)]
        for pod in created:
            pod.told = True
            for number in range(containers):
                message = self._container(pod, f"c{number}", {}, {}, 0)
                message.state = pb.CONTAINER_RUNNING
                message.pid = 20_000 + self._number
                pod.containers.append(CreatedContainer(pod, message, Spec.of(message)))
        self.pods += created
        return created

    def forget(self, created: CreatedContainer) -> None:
        """Let a container vanish without a word."""
        created.pod.containers.remove(created)

    async def run_pod(self, pod: Pod) -> None:
        """Make its sandbox. `Failed` if a plug-in refuses, after it was undone."""
        self.pods.append(pod)
        pod.told = True
        try:
            async with self.lock:
                await self._event(nri.RUN_POD_SANDBOX, pod, None, fatal=True)
        except Failed:
            await self.stop_pod(pod)
            await self.remove_pod(pod)
            raise

    async def stop_pod(self, pod: Pod) -> None:
        """Stop its containers, then tell of it."""
        for created in list(pod.containers):
            if created.state != "stopped":
                await self.stop(created)
        pod.stopped = True
        async with self.lock:
            await self._event(nri.STOP_POD_SANDBOX, pod, None, fatal=True)

    async def remove_pod(self, pod: Pod) -> None:
        """Remove its containers and itself."""
        for created in list(pod.containers):
            await self.remove(created)
        async with self.lock:
            await self._event(nri.REMOVE_POD_SANDBOX, pod, None, fatal=True)
        self.pods.remove(pod)

    async def create(
        self,
        pod: Pod,
        name: str,
        *,
        env: Mapping[str, str] | None = None,
        cpu: Mapping[str, int | str] | None = None,
        memory_bytes: int = 0,
    ) -> CreatedContainer:
        """Create a container. `Failed`, after it was undone, if it cannot be as plug-ins say."""
        message = self._container(pod, name, env or {}, cpu or {}, memory_bytes)
        created = CreatedContainer(pod, message, Spec.of(message))
        pod.containers.append(created)
        try:
            async with self.lock:
                await self._adjust(created)
        except Failed:
            await self.stop(created)
            await self.remove(created)
            raise
        message.state = pb.CONTAINER_CREATED
        async with self.lock:
            created.missed += await self._event(nri.POST_CREATE_CONTAINER, pod, created)
        return created

    async def start(self, created: CreatedContainer, *, exits: bool = False) -> None:
        """Start its process; if it exits at once, its end is told before its start, as running."""
        async with self.lock:
            await self._event(nri.START_CONTAINER, created.pod, created, fatal=True)
        self._number += 1
        created.message.pid = 20_000 + self._number
        if exits:
            await self.stop(created)
        created.message.state = pb.CONTAINER_RUNNING
        async with self.lock:
            await self._event(nri.POST_START_CONTAINER, created.pod, created)
        if exits:
            created.message.state = pb.CONTAINER_STOPPED

    async def update(
        self,
        created: CreatedContainer,
        *,
        cpu: Mapping[str, int | str] | None = None,
        memory_bytes: int = 0,
    ) -> None:
        """Change its limits: what plug-ins answer lies over what is asked for."""
        desired = _limits(cpu or {}, memory_bytes)
        async with self.lock:
            for plugin in self._for(nri.UPDATE_CONTAINER):
                request = nri.UpdateContainerRequest(
                    pod=as_told(self.version, created.pod.message),
                    container=as_told_container(self.version, created.message),
                    linux_resources=desired,
                )
                answer = await self._ask(
                    plugin, "UpdateContainer", request, nri.UpdateContainerResponse, created.missed
                )
                for update in answer.update if answer is not None else ():
                    if update.container_id != created.id:
                        self.broke(f"an update of {update.container_id!r} instead of {created.id}")
                    else:
                        desired.MergeFrom(update.linux.resources)
            created.spec.limit(_without_zeros(desired))
            await self._event(nri.POST_UPDATE_CONTAINER, created.pod, created)

    async def stop(self, created: CreatedContainer) -> None:
        """Stop it; told once."""
        created.message.state = pb.CONTAINER_STOPPED
        request = nri.StopContainerRequest(
            pod=as_told(self.version, created.pod.message),
            container=as_told_container(self.version, created.message),
        )
        async with self.lock:
            for plugin in self._for(nri.STOP_CONTAINER):
                await self._ask(
                    plugin,
                    "StopContainer",
                    request,
                    nri.StopContainerResponse,
                    created.missed,
                    fatal=False,
                )

    async def remove(self, created: CreatedContainer) -> None:
        """Remove it; one that was not stopped is stopped first."""
        if created.state != "stopped":
            await self.stop(created)
        async with self.lock:
            await self._event(nri.REMOVE_CONTAINER, created.pod, created)
        created.pod.containers.remove(created)

    def _container(
        self,
        pod: Pod,
        name: str,
        env: Mapping[str, str],
        cpu: Mapping[str, int | str],
        memory_bytes: int,
    ) -> pb.Container:
        self._number += 1
        return container(
            pod.message, name, number=self._number, env=env, cpu=cpu, memory_bytes=memory_bytes
        )

    async def _adjust(self, created: CreatedContainer) -> None:
        owners = Owners()
        request = nri.CreateContainerRequest(
            pod=as_told(self.version, created.pod.message),
            container=as_told_container(self.version, created.message),
        )
        one_by_one: list[Plugin | Rival] = [*self._for(nri.CREATE_CONTAINER), *self.rivals]
        for plugin in sorted(one_by_one, key=lambda one: one.index):
            if isinstance(plugin, Rival):
                adjust = plugin.adjust(request.pod, request.container)
            else:
                answer = await self._ask(
                    plugin, "CreateContainer", request, nri.CreateContainerResponse, created.missed
                )
                if answer is None:
                    continue
                adjust = answer.adjust
                if any(update.container_id == created.id for update in answer.update):
                    raise Failed(f"asked update of {created.id} during creation")
            try:
                owners.claim(plugin.name, adjust)
                created.spec.apply(adjust, self.version, self.cdi_names)
            except (Conflict, Refused) as error:
                raise Failed(str(error)) from error


def _limits(cpu: Mapping[str, int | str], memory_bytes: int) -> linux.LinuxResources:
    """Return what an update asks for: every number is there, 0 for those not asked for."""
    limits = linux.LinuxResources()
    for name in ("shares", "quota", "period"):
        wrapper = getattr(limits.cpu, name)
        wrapper.SetInParent()
        wrapper.value = int(cpu.get(name, 0))
    for name in ("cpus", "mems"):
        setattr(limits.cpu, name, cpu.get(name, ""))
    limits.memory.limit.SetInParent()
    limits.memory.limit.value = memory_bytes
    return limits


def _without_zeros(limits: linux.LinuxResources) -> linux.LinuxResources:
    """Return the limits that are really asked for."""
    linux_resources = linux.LinuxResources()
    linux_resources.CopyFrom(limits)
    for name in ("shares", "quota", "period"):
        if not getattr(linux_resources.cpu, name).value:
            linux_resources.cpu.ClearField(name)
    return linux_resources
