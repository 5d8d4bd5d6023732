"""The name of this node, and whether the Node of that name is this machine."""

from __future__ import annotations

import os
import re

import msgspec

from agent.config.settings import Settings
from agent.errors import BadConfig
from agent.host.files import read_text
from agent.host.kernel import BOOT_ID_FILE
from agent.recording.host_source import HostSource
from agent.snapshot.cluster import ANOTHER_MACHINE, NodeView, WritePermission
from agent.snapshot.host_files import HostFiles
from agent.snapshot.part import SnapshotPart

FALLBACK_NAME = "node"  # of a recorded host without a name
NODE_ROOT = "/host"  # where a container has the node's files: its `/etc` is that of the image
MACHINE_ID_FILES = tuple(
    f"{root}{path}"
    for root in (NODE_ROOT, "")
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id")  # in the kubelet's order
)
MAX_ID_CHARACTERS = 8  # characters of an id in messages: the whole id is confidential

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_ID = re.compile(r"[0-9a-f]{32}")


def node_name(host_source: HostSource, settings: Settings) -> str:
    """Return the name in the settings, else that of the host or of the recording."""
    host_name = (
        os.uname().nodename if host_source.spec is None else host_source.source.split(".")[0]
    )
    return settings.node.name or host_name or FALLBACK_NAME


def cluster_name(host_source: HostSource, settings: Settings) -> str:
    """Return the name of the Node object: as set, else the host's in lower case, as the kubelet.

    Raises `BadConfig` for an invalid name: the name becomes part of paths.
    """
    name = settings.node.name or node_name(host_source, settings).strip().lower()
    if len(name) > 253 or not _NAME.fullmatch(name):
        raise BadConfig(
            f"node.name: {name[:80]!r} is no name of a Node; set it, or "
            "XPU_AGENT_NODE__NAME from the field spec.nodeName"
        )
    return name


class MachineIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of the machine and of its boot; empty where they cannot be read."""

    machine_id: str = ""
    boot_id: str = ""


def read_machine(files: HostFiles) -> MachineIdentity:
    """Read the ids where the kubelet reads them; an unreadable or invalid id stays empty."""
    ids = (_normalise_id(read_text(files, path, 128) or "") for path in MACHINE_ID_FILES)
    return MachineIdentity(
        machine_id=next((one for one in ids if one), ""),
        boot_id=_normalise_id(read_text(files, BOOT_ID_FILE, 128) or ""),
    )


def explain_mismatch(machine: MachineIdentity, node: NodeView) -> str | None:
    """Return why the Node is another machine's; `None` if it is not, or if nothing proves it.

    The kernel creates a boot id at each boot: equal ids prove the machine. Different ids prove
    nothing: the kubelet reports a new boot with a delay.
    """
    if is_same_machine(machine, node):
        return None
    machine_id, theirs = machine.machine_id, _normalise_id(node.machine_id)
    if not machine_id or not theirs:
        return None
    return (
        f"Node {node.name} is another machine: its machine id is {theirs[:MAX_ID_CHARACTERS]}…, "
        f"this machine's {machine_id[:MAX_ID_CHARACTERS]}…; nothing is written for it. Set "
        "node.name (XPU_AGENT_NODE__NAME) to this machine's own Node"
    )


def is_same_machine(machine: MachineIdentity, node: NodeView) -> bool:
    """Return whether an id proves that the Node is this machine's."""
    pairs = ((machine.boot_id, node.boot_id), (machine.machine_id, node.machine_id))
    return any(own_id and own_id == _normalise_id(theirs) for own_id, theirs in pairs)


def decide_write_permission(
    machine: MachineIdentity, name: str, node: SnapshotPart[NodeView | None]
) -> WritePermission:
    """Return whether objects of this Node may be written.

    The last Node that was read counts while the API server is away. A Node that was deleted and
    created again, with a new uid, is checked as any other.
    """
    view = node.value
    if view is None and node.taken_s is None:
        waiting = f"Node {name} was not read yet: {node.error or 'the API server is being asked'}"
        return WritePermission(is_allowed=False, reason="NodeNotRead", message=waiting)
    if view is None:
        absent = (
            f"there is no Node {name}: its kubelet has not registered yet, the Node was deleted "
            "or renamed, or node.name is wrong; nothing is written until it is there"
        )
        return WritePermission(is_allowed=False, reason="NodeAbsent", message=absent)
    problem = explain_mismatch(machine, view)
    if problem is not None:
        return WritePermission(is_allowed=False, reason=ANOTHER_MACHINE, message=problem)
    if not is_same_machine(machine, view):
        unknown = "this machine" if not machine.machine_id else f"Node {name}"
        trusted = f"{unknown} tells no machine id: Node {name} is taken for this machine's"
        return WritePermission(is_allowed=True, reason="NodeNotVerified", message=trusted)
    return WritePermission(is_allowed=True)


def _normalise_id(raw: str) -> str:
    """Return an id in lower case without dashes; empty if it is invalid, as `uninitialized`."""
    plain = raw.strip().lower().replace("-", "")
    return plain if _ID.fullmatch(plain) else ""
