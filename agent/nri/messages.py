"""NRI messages: parses pods and containers.

Applies events to the runtime view, renders adjustments as responses.

What hooks decide as the runtime's messages: an adjustment of a new container, an update. Pure.
The runtime makes the device rule (read and write) of each node itself. A field is sent only
where it changes something: two plug-ins that set one field keep the container from being
created.

What the runtime tells of pods and containers: into the picture, and as questions to the hooks.
An event has one meaning, whether it comes by its own method or by StateChange.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from agent.errors import ParseError
from agent.nri.runtime_view import RuntimeViewStore
from agent.nri.versions import RuntimePeer
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
    """Return a pod's sandbox; one that the runtime told nothing of is empty but for its id."""
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
        # a sandbox in a network of its own says so; one that names no namespace says nothing
        host_network=bool(spaces) and all(space.type != NETWORK_NAMESPACE for space in spaces),
    )


def parse_runtime_container(container: wire.Container) -> RuntimeContainer:
    """Return what is kept of a container; a pid of 0 is none."""
    return RuntimeContainer(
        id=container.id,
        sandbox_id=container.pod_sandbox_id,
        name=container.name,
        state=parse_container_state(container.state),
        pid=container.pid or None,
    )


def parse_container_state(number: int) -> ContainerState:
    """Return a container's state; one of a newer runtime is unknown."""
    return _STATES[number] if 0 <= number < len(_STATES) else ContainerState.UNKNOWN


def parse_container(container: wire.Container, sandbox: PodSandbox) -> ContainerSpec:
    """Return a container as hooks get it; all facts about its pod are those of the sandbox."""
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
    """Return variables in their order; what has no name is none, an empty value is one."""
    pairs = [entry.partition("=") for entry in entries]
    return tuple([(name, value) for name, _, value in pairs if name])


def allows_all_devices(rules: Iterable[linux.LinuxDeviceCgroup]) -> bool:
    """Say whether device rules allow every device, which is what runtimes give the privileged.

    NRI has no word for privileged. A runtime that tells no device rules leaves it unknown: no.
    """
    return any(
        rule.allow
        and rule.type in _ALL_DEVICES
        and "w" in rule.access
        and _is_any_number(rule.HasField("major"), rule.major.value)
        and _is_any_number(rule.HasField("minor"), rule.minor.value)
        for rule in rules
    )


def parse_resources(told: linux.LinuxResources) -> LinuxResources:
    """Return CPU and memory; 0 and the empty set are what nobody asked for."""
    cpu, memory_bytes = told.cpu, told.memory.limit.value
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


def _is_any_number(told: bool, number: int) -> bool:
    return not told or number == _ALL_NUMBERS


DEFAULT_PERIOD_US = 100_000  # the kernel's own, where nobody asked for another


def render_creation(adjustment: Adjustment, asked: LinuxResources, peer: RuntimePeer) -> bytes:
    """Return CreateContainerResponse; without a byte where nothing changes.

    Raises `CallFailed` for edits that this runtime would drop: the container would lack them.
    """
    edits, change = adjustment.edits, changed_resources(adjustment.resources, asked)
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


def render_update(container_id: str, adjustment: Adjustment, asked: LinuxResources) -> bytes:
    """Return UpdateContainerResponse for what was asked for; without an update if it stays so."""
    change = changed_resources(adjustment.resources, asked)
    if change is NO_RESOURCES:
        return b""
    update = wire.ContainerUpdate(container_id=container_id)
    _set_resources(update.linux.resources, change)
    return calls.UpdateContainerResponse(update=(update,)).SerializeToString()


def changed_resources(wanted: LinuxResources, asked: LinuxResources) -> LinuxResources:
    """Return what of the wanted differs from what was asked for; a quota with its period.

    An empty CPU set is left out: NRI cannot say it.
    """
    if wanted is NO_RESOURCES:
        return NO_RESOURCES
    change = LinuxResources(
        shares=_value_if_different(wanted.shares, asked.shares),
        quota_us=_value_if_different(wanted.quota_us, asked.quota_us),
        period_us=_value_if_different(wanted.period_us, asked.period_us),
        cpus=None if _is_same_cpus(wanted.cpus, asked.cpus) else wanted.cpus or None,
        memory_bytes=_value_if_different(wanted.memory_bytes, asked.memory_bytes),
    )
    if change.quota_us is None and change.period_us is not None:
        change = replace(change, quota_us=wanted.quota_us or asked.quota_us)
    elif change.quota_us is not None and change.period_us is None:
        change = replace(change, period_us=wanted.period_us or asked.period_us or DEFAULT_PERIOD_US)
    return NO_RESOURCES if change == NO_RESOURCES else change


def _value_if_different(wanted: int | None, asked: int | None) -> int | None:
    return wanted if wanted != asked else None


def _is_same_cpus(wanted: str | None, asked: str | None) -> bool:
    """Say whether two lists are the same CPUs: others write them in more parts than we do."""
    if wanted == asked or not wanted or not asked:
        return wanted == asked
    with contextlib.suppress(ParseError):
        return parse_cpu_list(wanted) == parse_cpu_list(asked)
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
    """Add what there is; a field that is only looked at would be in the answer, empty.

    Each part is made where it belongs: one that is made apart would be copied, at twice the price.
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


def _set_resources(told: linux.LinuxResources, change: LinuxResources) -> None:
    """Set what is there; a wrapper with 0 in it is set to 0, one that is absent leaves as is."""
    for wrapper, value in (
        (told.cpu.shares if change.shares is not None else None, change.shares),
        (told.cpu.quota if change.quota_us is not None else None, change.quota_us),
        (told.cpu.period if change.period_us is not None else None, change.period_us),
        (told.memory.limit if change.memory_bytes is not None else None, change.memory_bytes),
    ):
        if wrapper is not None and value is not None:
            wrapper.value = value
            wrapper.SetInParent()
    if change.cpus:
        told.cpu.cpus = change.cpus


class RuntimeEvents:
    """Reads the runtime's messages and updates the view by them. Belongs to the loop thread."""

    def __init__(self, view_store: RuntimeViewStore) -> None:
        self._view_store = view_store

    def create_container(
        self, told: calls.CreateContainerRequest, peer: RuntimePeer
    ) -> RuntimeRequest:
        """Ask what a container gets that is being created."""
        asked = parse_resources(told.container.linux.resources)
        request = self._hook_request(HookStage.CREATE, told.pod, told.container, asked)
        return RuntimeRequest(request=request, subject_id=told.container.id, peer=peer)

    def update_container(self, told: calls.UpdateContainerRequest) -> RuntimeRequest:
        """Ask what becomes of resources asked for: of those, never of what is in force."""
        asked, key = parse_resources(told.linux_resources), told.container.id
        return RuntimeRequest(
            request=self._hook_request(HookStage.UPDATE, told.pod, told.container, asked),
            subject_id=key,
        )

    def handle_event(
        self, number: int, pod: wire.PodSandbox, container: wire.Container | None
    ) -> RuntimeRequest | None:
        """Take in one of the events without an answer of their own; those of no use are passed."""
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
        self._view_store.update(
            container=RuntimeContainer(
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
        asked: LinuxResources,
    ) -> HookRequest:
        """Return the question; of a pod that is known nothing is read a second time."""
        known = self._view_store.sandbox(pod.id or container.pod_sandbox_id)
        usable = known is not None and pod.uid in ("", known.uid)
        sandbox = known if known is not None and usable else parse_sandbox(pod)
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
            resources=asked,
        )
