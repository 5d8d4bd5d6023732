"""The runtime's messages as the hooks and the snapshot know pods and containers. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent.model.device import DeviceNode, Pairs
from agent.model.grant.container import Container
from agent.model.runtime.adjustment import NO_RESOURCES, UNLIMITED, Resources
from agent.model.runtime.seen import ContainerSeen, ContainerState, SandboxSeen
from proto.gen import nri_container_pb2 as wire
from proto.gen import nri_linux_pb2 as linux

NETWORK = "network"
_STATES = (
    ContainerState.UNKNOWN,
    ContainerState.CREATED,
    ContainerState.PAUSED,
    ContainerState.RUNNING,
    ContainerState.STOPPED,
)
_CHARACTER = ("c", "u")
_ANY = ("", "a")
_ALL = -1  # of a device number


def sandbox_of(pod: wire.PodSandbox) -> SandboxSeen:
    """Return a pod's sandbox; one that the runtime told nothing of is empty but for its id."""
    spaces = pod.linux.namespaces
    return SandboxSeen(
        id=pod.id,
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        labels=tuple(sorted(pod.labels.items())),
        annotations=tuple(sorted(pod.annotations.items())),
        cgroup_parent=pod.linux.cgroup_parent,
        runtime_handler=pod.runtime_handler,
        # a sandbox in a network of its own says so; one that names no namespace says nothing
        host_network=bool(spaces) and all(space.type != NETWORK for space in spaces),
    )


def seen_of(container: wire.Container) -> ContainerSeen:
    """Return what is kept of a container; a pid of 0 is none."""
    return ContainerSeen(
        id=container.id,
        sandbox_id=container.pod_sandbox_id,
        name=container.name,
        state=state_of(container.state),
        pid=container.pid or None,
    )


def state_of(number: int) -> ContainerState:
    """Return a container's state; one of a newer runtime is unknown."""
    return _STATES[number] if 0 <= number < len(_STATES) else ContainerState.UNKNOWN


def container_of(
    container: wire.Container, sandbox: SandboxSeen, *, protected: bool = False
) -> Container:
    """Return a container as hooks see it; of its pod all is taken from the sandbox."""
    has_user = container.HasField("user")  # since NRI 0.11
    return Container(
        name=container.name,
        pod_uid=sandbox.uid,
        env=env_of(container.env),
        mounts=tuple([mount.destination for mount in container.mounts]),
        nodes=tuple(
            DeviceNode(path=node.path, major=node.major, minor=node.minor)
            for node in container.linux.devices
            if node.type in _CHARACTER
        ),
        runtime_handler=sandbox.runtime_handler,
        user=container.user.uid if has_user else None,
        privileged=may_use_all(container.linux.resources.devices),
        protected=protected,
        host_network=sandbox.host_network,
        labels=sandbox.labels,
        annotations=sandbox.annotations,
    )


def env_of(entries: Iterable[str]) -> Pairs:
    """Return variables in their order; what has no name is none, an empty value is one."""
    pairs = [entry.partition("=") for entry in entries]
    return tuple([(name, value) for name, _, value in pairs if name])


def may_use_all(rules: Iterable[linux.LinuxDeviceCgroup]) -> bool:
    """Say whether device rules allow every device, which is what runtimes give the privileged.

    NRI has no word for privileged. A runtime that tells no device rules leaves it unknown: no.
    """
    return any(
        rule.allow
        and rule.type in _ANY
        and "w" in rule.access
        and _any_number(rule.HasField("major"), rule.major.value)
        and _any_number(rule.HasField("minor"), rule.minor.value)
        for rule in rules
    )


def resources_of(told: linux.LinuxResources) -> Resources:
    """Return CPU and memory; 0 and the empty set are what nobody asked for."""
    cpu, memory_bytes = told.cpu, told.memory.limit.value
    shares, quota_us, period_us = cpu.shares.value, cpu.quota.value, cpu.period.value
    if not (shares or quota_us or period_us or cpu.cpus or memory_bytes):
        return NO_RESOURCES
    return Resources(
        shares=shares or None,
        quota_us=max(UNLIMITED, quota_us) or None,
        period_us=period_us or None,
        cpus=cpu.cpus or None,
        memory_bytes=max(UNLIMITED, memory_bytes) or None,
    )


def _any_number(told: bool, number: int) -> bool:
    return not told or number == _ALL
