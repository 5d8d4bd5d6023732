"""What hooks decide as the runtime's messages: an adjustment of a new container, an update. Pure.

The runtime makes the device rule (read and write) of each node itself. A field is sent only where
it changes something: two plug-ins that set one field keep the container from being created.
"""

from __future__ import annotations

import contextlib

from msgspec.structs import replace

from agent.errors import ParseError
from agent.model.grant.edits import NONE, ContainerEdits
from agent.model.runtime.adjustment import NO_RESOURCES, Adjustment, Resources
from agent.nri.versions import Peer
from agent.nri.wire.errors import FAILED_PRECONDITION, CallFailed
from agent.topology.text import parse_cpu_list
from proto.gen import nri_container_pb2 as wire
from proto.gen import nri_linux_pb2 as linux
from proto.gen import nri_plugin_pb2 as calls

PERIOD_US = 100_000  # the kernel's own, where nobody asked for another


def created(adjustment: Adjustment, asked: Resources, peer: Peer) -> bytes:
    """Return CreateContainerResponse; without a byte where nothing changes.

    Raises `CallFailed` for edits that this runtime would drop: the container would lack them.
    """
    edits, change = adjustment.edits, changes(adjustment.resources, asked)
    _must_carry(edits, peer)
    answer = calls.CreateContainerResponse()
    if edits is not NONE:
        _edit(answer, edits)
    if change is not NO_RESOURCES:
        _fill(answer.adjust.linux.resources, change)
    if adjustment.rdt_class:
        answer.adjust.linux.resources.rdt_class.value = adjustment.rdt_class
    if adjustment.oom_score_adj is not None and peer.takes_oom_score:
        score = answer.adjust.linux.oom_score_adj
        score.value = adjustment.oom_score_adj
        score.SetInParent()  # also of 0
    return answer.SerializeToString()


def updated(container_id: str, adjustment: Adjustment, asked: Resources) -> bytes:
    """Return UpdateContainerResponse for what was asked for; without an update if it stays so."""
    change = changes(adjustment.resources, asked)
    if change is NO_RESOURCES:
        return b""
    update = wire.ContainerUpdate(container_id=container_id)
    _fill(update.linux.resources, change)
    return calls.UpdateContainerResponse(update=(update,)).SerializeToString()


def changes(wanted: Resources, asked: Resources) -> Resources:
    """Return what of the wanted differs from what was asked for; a quota with its period.

    An empty CPU set is left out: NRI cannot say it.
    """
    if wanted is NO_RESOURCES:
        return NO_RESOURCES
    change = Resources(
        shares=_new(wanted.shares, asked.shares),
        quota_us=_new(wanted.quota_us, asked.quota_us),
        period_us=_new(wanted.period_us, asked.period_us),
        cpus=None if _same_cpus(wanted.cpus, asked.cpus) else wanted.cpus or None,
        memory_bytes=_new(wanted.memory_bytes, asked.memory_bytes),
    )
    if change.quota_us is None and change.period_us is not None:
        change = replace(change, quota_us=wanted.quota_us or asked.quota_us)
    elif change.quota_us is not None and change.period_us is None:
        change = replace(change, period_us=wanted.period_us or asked.period_us or PERIOD_US)
    return NO_RESOURCES if change == NO_RESOURCES else change


def _new(wanted: int | None, asked: int | None) -> int | None:
    return wanted if wanted != asked else None


def _same_cpus(wanted: str | None, asked: str | None) -> bool:
    """Say whether two lists are the same CPUs: others write them in more parts than we do."""
    if wanted == asked or not wanted or not asked:
        return wanted == asked
    with contextlib.suppress(ParseError):
        return parse_cpu_list(wanted) == parse_cpu_list(asked)
    return False


def _must_carry(edits: ContainerEdits, peer: Peer) -> None:
    lacking = ""
    if edits.cdi and not peer.takes_cdi:
        lacking = "CDINotTaken: CDI devices"
    elif edits.rlimits and not peer.takes_rlimits:
        lacking = "RlimitsNotTaken: limits"
    if lacking:
        runtime = f"{peer.name or 'the runtime'} {peer.version}".strip()
        text = f"{lacking} of a container cannot be given to {runtime}; upgrade it"
        raise CallFailed(FAILED_PRECONDITION, text)


def _edit(answer: calls.CreateContainerResponse, edits: ContainerEdits) -> None:
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


def _fill(told: linux.LinuxResources, change: Resources) -> None:
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
