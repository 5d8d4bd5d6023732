"""NRI messages as plain data, and the agent's answers as NRI messages.

Parses pods, containers and resources; renders adjustments and updates; applies the runtime's
events to the runtime view. An event means the same whether it has its own method or comes by
StateChange. The runtime itself adds the device rule (read and write) of each device node. A
field is sent only if it changes something: if two plug-ins set one field, the runtime refuses
the container.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from agent.errors import ParseError
from agent.nri.runtime_view import RuntimeViewStore
from agent.nri.versions import CONTAINERD, RuntimePeer
from agent.nri.wire.errors import FAILED_PRECONDITION, CallError
from agent.snapshot.container import (
    NO_RESOURCES,
    UNLIMITED,
    Adjustment,
    ContainerSpec,
    ContainerState,
    HookRequest,
    HookStage,
    LinuxResources,
    PodSandbox,
    RuntimeContainer,
)
from agent.snapshot.device import DeviceNode, Pairs
from agent.snapshot.edits import NO_EDITS, ContainerEdits
from agent.wire_formats.kernel_text import parse_cpu_list
from proto.gen import nri_container_pb2 as wire
from proto.gen import nri_linux_pb2 as linux
from proto.gen import nri_plugin_pb2 as calls


class RuntimeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of the runtime for the hooks, and the sandbox or container that it is about."""

    request: HookRequest
    subject_id: str  # id of the sandbox or container
    peer: RuntimePeer = RuntimePeer()  # the runtime that reads the answer
    is_refusable: bool = True  # False: the runtime can do nothing with a refusal


NETWORK_NAMESPACE = "network"

_STATES = (
    ContainerState.UNKNOWN,
    ContainerState.CREATED,
    ContainerState.PAUSED,
    ContainerState.RUNNING,
    ContainerState.STOPPED,
)

_CHARACTER_DEVICES = ("c", "u")
_ALL_DEVICES = ("", "a")
_ALL_NUMBERS = -1  # of a device number


def parse_sandbox(pod: wire.PodSandbox) -> PodSandbox:
    """Return a pod's sandbox; a pod that the runtime did not describe has an id only."""
    spaces = pod.linux.namespaces
    return PodSandbox(
        id=pod.id,
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        labels=tuple(sorted(pod.labels.items())),
        annotations=tuple(sorted(pod.annotations.items())),
        cgroup_parent=pod.linux.cgroup_parent,
        runtime_handler=pod.runtime_handler,
        # a sandbox with a network of its own lists it; without namespaces the answer is unknown
        host_network=bool(spaces) and all(space.type != NETWORK_NAMESPACE for space in spaces),
    )


def has_stopped(pod: wire.PodSandbox, peer: RuntimePeer) -> bool:
    """Return whether a message describes a sandbox that has stopped: its process is gone.

    containerd describes such a sandbox until the kubelet removes it, since 2.1 with its namespaces.
    Other runtimes may run sandboxes without a process, but not without namespaces and a cgroup.
    """
    has_places = bool(pod.linux.namespaces or pod.linux.cgroups_path)
    return not pod.pid and (peer.name == CONTAINERD or not has_places)


def parse_runtime_container(container: wire.Container) -> RuntimeContainer:
    """Return the facts that the view needs of a container; pid 0 means no process."""
    return RuntimeContainer(
        id=container.id,
        sandbox_id=container.pod_sandbox_id,
        name=container.name,
        state=parse_container_state(container.state),
        pid=container.pid or None,
    )


def parse_container_state(number: int) -> ContainerState:
    """Return a container's state; a number that only newer runtimes use is unknown."""
    return _STATES[number] if 0 <= number < len(_STATES) else ContainerState.UNKNOWN


def parse_container(container: wire.Container, sandbox: PodSandbox) -> ContainerSpec:
    """Return a container as the hooks get it; all facts about its pod come from the sandbox."""
    has_user = container.HasField("user")  # since NRI 0.11
    return ContainerSpec(
        name=container.name,
        pod_uid=sandbox.uid,
        env=parse_environment(container.env),
        mounts=tuple([mount.destination for mount in container.mounts]),
        nodes=tuple(
            DeviceNode(path=node.path, major=node.major, minor=node.minor)
            for node in container.linux.devices
            if node.type in _CHARACTER_DEVICES
        ),
        runtime_handler=sandbox.runtime_handler,
        user=container.user.uid if has_user else None,
        privileged=allows_all_devices(container.linux.resources.devices),
        host_network=sandbox.host_network,
        labels=sandbox.labels,
        annotations=sandbox.annotations,
    )


def parse_environment(entries: Iterable[str]) -> Pairs:
    """Return the variables in their order; an entry without a name is left out."""
    pairs = [entry.partition("=") for entry in entries]
    return tuple([(name, value) for name, _, value in pairs if name])


def allows_all_devices(rules: Iterable[linux.LinuxDeviceCgroup]) -> bool:
    """Return whether the rules allow every device, as the runtime does for privileged containers.

    NRI has no field for privileged. Without device rules the answer is no.
    """
    return any(
        rule.allow
        and rule.type in _ALL_DEVICES
        and "w" in rule.access
        and _is_any_number(rule.HasField("major"), rule.major.value)
        and _is_any_number(rule.HasField("minor"), rule.minor.value)
        for rule in rules
    )


def parse_resources(resources: linux.LinuxResources) -> LinuxResources:
    """Return CPU and memory limits; 0 and the empty set mean that the pod requests none."""
    cpu, memory_bytes = resources.cpu, resources.memory.limit.value
    shares, quota_us, period_us = cpu.shares.value, cpu.quota.value, cpu.period.value
    if not (shares or quota_us or period_us or cpu.cpus or memory_bytes):
        return NO_RESOURCES
    return LinuxResources(
        shares=shares or None,
        quota_us=max(UNLIMITED, quota_us) or None,
        period_us=period_us or None,
        cpus=cpu.cpus or None,
        memory_bytes=max(UNLIMITED, memory_bytes) or None,
    )


def _is_any_number(is_set: bool, number: int) -> bool:
    return not is_set or number == _ALL_NUMBERS


DEFAULT_PERIOD_US = 100_000  # the kernel's default


def render_creation(adjustment: Adjustment, requested: LinuxResources, peer: RuntimePeer) -> bytes:
    """Return CreateContainerResponse; empty if nothing changes.

    Raises `CallError` for edits that this runtime would drop: the container would lack them.
    """
    edits, change = adjustment.edits, changed_resources(adjustment.resources, requested)
    _check_runtime_support(edits, peer)
    answer = calls.CreateContainerResponse()
    if edits is not NO_EDITS:
        _add_edits(answer, edits)
    if change is not NO_RESOURCES:
        _set_resources(answer.adjust.linux.resources, change)
    if adjustment.rdt_class:
        answer.adjust.linux.resources.rdt_class.value = adjustment.rdt_class
    if adjustment.oom_score_adj is not None and peer.takes_oom_score:
        score = answer.adjust.linux.oom_score_adj
        score.value = adjustment.oom_score_adj
        score.SetInParent()  # also of 0
    return answer.SerializeToString()


def render_update(container_id: str, adjustment: Adjustment, requested: LinuxResources) -> bytes:
    """Return UpdateContainerResponse for requested resources; empty if they do not change."""
    change = changed_resources(adjustment.resources, requested)
    if change is NO_RESOURCES:
        return b""
    update = wire.ContainerUpdate(container_id=container_id)
    _set_resources(update.linux.resources, change)
    return calls.UpdateContainerResponse(update=(update,)).SerializeToString()


def changed_resources(desired: LinuxResources, requested: LinuxResources) -> LinuxResources:
    """Return the desired resources that differ from the requested; a quota with its period.

    An empty CPU set is left out: NRI cannot express it.
    """
    if desired is NO_RESOURCES:
        return NO_RESOURCES
    change = LinuxResources(
        shares=_value_if_different(desired.shares, requested.shares),
        quota_us=_value_if_different(desired.quota_us, requested.quota_us),
        period_us=_value_if_different(desired.period_us, requested.period_us),
        cpus=None if _is_same_cpus(desired.cpus, requested.cpus) else desired.cpus or None,
        memory_bytes=_value_if_different(desired.memory_bytes, requested.memory_bytes),
    )
    if change.quota_us is None and change.period_us is not None:
        change = replace(change, quota_us=desired.quota_us or requested.quota_us)
    elif change.quota_us is not None and change.period_us is None:
        change = replace(
            change, period_us=desired.period_us or requested.period_us or DEFAULT_PERIOD_US
        )
    return NO_RESOURCES if change == NO_RESOURCES else change


def _value_if_different(desired: int | None, requested: int | None) -> int | None:
    return desired if desired != requested else None


def _is_same_cpus(desired: str | None, requested: str | None) -> bool:
    """Return whether two lists name the same CPUs: others may split ranges differently."""
    if desired == requested or not desired or not requested:
        return desired == requested
    with contextlib.suppress(ParseError):
        return parse_cpu_list(desired) == parse_cpu_list(requested)
    return False


def _check_runtime_support(edits: ContainerEdits, peer: RuntimePeer) -> None:
    lacking = ""
    if edits.cdi and not peer.takes_cdi:
        lacking = "CDINotTaken: CDI devices"
    elif edits.rlimits and not peer.takes_rlimits:
        lacking = "RlimitsNotTaken: limits"
    if lacking:
        runtime = f"{peer.name or 'the runtime'} {peer.version}".strip()
        text = f"{lacking} of a container cannot be given to {runtime}; upgrade it"
        raise CallError(FAILED_PRECONDITION, text)


def _add_edits(answer: calls.CreateContainerResponse, edits: ContainerEdits) -> None:
    """Add the edits; reading an absent field would create it, empty, in the answer.

    Each part is created in place: adding a message built elsewhere copies it.
    """
    for mount in edits.mounts:
        answer.adjust.mounts.add(
            destination=mount.path, type="bind", source=mount.host_path, options=mount.options
        )
    for name, value in edits.env:
        answer.adjust.env.add(key=name, value=value)
    for name in edits.cdi:
        answer.adjust.CDI_devices.add(name=name)
    for limit in edits.rlimits:
        answer.adjust.rlimits.add(type=limit.name, hard=limit.hard, soft=limit.soft)
    for node in edits.nodes:
        device = answer.adjust.linux.devices.add(
            path=node.path, type="c", major=node.major, minor=node.minor
        )
        if node.file_mode is not None:
            device.file_mode.value = node.file_mode


def _set_resources(resources: linux.LinuxResources, change: LinuxResources) -> None:
    """Set the changed fields; a wrapper that is present with 0 sets 0, an absent one does not."""
    for wrapper, value in (
        (resources.cpu.shares if change.shares is not None else None, change.shares),
        (resources.cpu.quota if change.quota_us is not None else None, change.quota_us),
        (resources.cpu.period if change.period_us is not None else None, change.period_us),
        (resources.memory.limit if change.memory_bytes is not None else None, change.memory_bytes),
    ):
        if wrapper is not None and value is not None:
            wrapper.value = value
            wrapper.SetInParent()
    if change.cpus:
        resources.cpu.cpus = change.cpus


class RuntimeEvents:
    """Turns messages into requests to the hooks; updates the view. Belongs to the loop thread."""

    def __init__(self, view_store: RuntimeViewStore) -> None:
        self._view_store = view_store

    def create_container(
        self, message: calls.CreateContainerRequest, peer: RuntimePeer
    ) -> RuntimeRequest:
        """Return the request to the hooks for a container that is being created."""
        resources = parse_resources(message.container.linux.resources)
        request = self._hook_request(HookStage.CREATE, message.pod, message.container, resources)
        return RuntimeRequest(request=request, subject_id=message.container.id, peer=peer)

    def update_container(self, message: calls.UpdateContainerRequest) -> RuntimeRequest:
        """Return the request to the hooks for newly requested resources."""
        resources, key = parse_resources(message.linux_resources), message.container.id
        return RuntimeRequest(
            request=self._hook_request(HookStage.UPDATE, message.pod, message.container, resources),
            subject_id=key,
        )

    def handle_event(
        self,
        number: int,
        pod: wire.PodSandbox,
        container: wire.Container | None,
        peer: RuntimePeer,
    ) -> RuntimeRequest | None:
        """Apply an event to the view; return a request if hooks handle the event."""
        if number == calls.RUN_POD_SANDBOX:
            return self._run_pod(pod)
        if number == calls.STOP_POD_SANDBOX:
            self._view_store.mark_stopped(pod.id)
        if number == calls.REMOVE_POD_SANDBOX:
            return self._remove_pod(pod)
        if container is not None:
            if number == calls.POST_START_CONTAINER:
                self._start_container(pod, container)
            elif number in (calls.STOP_CONTAINER, calls.REMOVE_CONTAINER):
                self._view_store.remove_container(container.id)
            if number == calls.REMOVE_CONTAINER and peer.name == CONTAINERD and not pod.pid:
                # it does not report the end of a sandbox that was there before it started
                self._view_store.mark_stopped_if_empty(container.pod_sandbox_id or pod.id)
        return None

    def _run_pod(self, pod: wire.PodSandbox) -> RuntimeRequest:
        sandbox = parse_sandbox(pod)
        self._view_store.update(sandbox)
        request = HookRequest(stage=HookStage.RUN_POD, pod=sandbox)
        return RuntimeRequest(request=request, subject_id=sandbox.id)

    def _remove_pod(self, pod: wire.PodSandbox) -> RuntimeRequest:
        sandbox = self._view_store.sandbox(pod.id) or parse_sandbox(pod)
        self._view_store.remove_sandbox(pod.id)
        request = HookRequest(stage=HookStage.REMOVE_POD, pod=sandbox)
        return RuntimeRequest(request=request, subject_id=pod.id, is_refusable=False)

    def _start_container(self, pod: wire.PodSandbox, container: wire.Container) -> None:
        self._view_store.mark_started(
            RuntimeContainer(
                id=container.id,
                sandbox_id=container.pod_sandbox_id or pod.id,
                name=container.name,
                state=ContainerState.RUNNING,
                pid=container.pid or None,
            )
        )

    def _hook_request(
        self,
        stage: HookStage,
        pod: wire.PodSandbox,
        container: wire.Container,
        resources: LinuxResources,
    ) -> HookRequest:
        """Return the request; reuse the sandbox of the view if the pod is the same.

        A sandbox in which a container is created runs, even if a list had it without a process.
        """
        present = self._view_store.sandbox(pod.id or container.pod_sandbox_id)
        usable = present is not None and pod.uid in ("", present.uid)
        if present is not None and present.stopped and stage is HookStage.CREATE:
            present = replace(present, stopped=False)
            self._view_store.update(present)
        sandbox = present if present is not None and usable else parse_sandbox(pod)
        if stage is HookStage.CREATE:
            self._view_store.add_requested(
                None if usable else sandbox, parse_runtime_container(container)
            )
        elif not usable:
            self._view_store.update(sandbox)
        return HookRequest(
            stage=stage,
            pod=sandbox,
            container=parse_container(container, sandbox),
            resources=resources,
        )
