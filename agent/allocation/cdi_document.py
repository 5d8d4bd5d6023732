"""CDI documents, rendered from the edits of devices in the lowest version that fits. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from agent.errors import AgentError
from agent.snapshot.edits import CdiEdits, CdiHook, ContainerEdits, DeviceNodeEdit, MountEdit


class CdiFile(msgspec.Struct, frozen=True, kw_only=True):
    """One specification: its file name and its JSON text. Equal hosts give equal bytes."""

    name: str  # xpu-agent-npu.json
    kind: str  # xpu-agent.io/npu
    devices: tuple[str, ...]  # names, in order
    text: bytes


_KIND = re.compile(
    r"[A-Za-z](?:[A-Za-z0-9._-]*[A-Za-z0-9])?/[A-Za-z](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
)

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:-]*[A-Za-z0-9])?")

CdiJson = dict[str, object]


def is_device_name(name: str) -> bool:
    """Return whether CDI allows this name of a device."""
    return _NAME.fullmatch(name) is not None


class CdiNameError(AgentError):
    """An invalid kind or device name, for which a runtime would refuse the whole file."""


def to_cdi_edits(edits: ContainerEdits, variables: Collection[str] = ()) -> CdiEdits:
    """Return the CDI form of edits, with only these environment variables.

    Most variables list the devices of one container, which a file cannot know.
    """
    env = tuple(pair for pair in edits.env if pair[0] in variables)
    return CdiEdits(nodes=edits.nodes, mounts=edits.mounts, env=env)


def split_common(
    edits_by_device: Mapping[str, CdiEdits], own_paths: Mapping[str, Collection[str]]
) -> tuple[CdiEdits, dict[str, CdiEdits]]:
    """Return the edits that all devices have in common, and the other edits of each device.

    `own_paths` are host paths, by device, that belong to the device even if there is only one. If a
    device had no edits left, nothing is split: an empty device makes a file invalid.
    """
    if not edits_by_device:
        return CdiEdits(), {}
    own_path_set = {path for paths in own_paths.values() for path in paths}
    first, *others = edits_by_device.values()
    shared = CdiEdits(
        nodes=tuple(
            node
            for node in first.nodes
            if node.host_path not in own_path_set and all(node in edits.nodes for edits in others)
        ),
        mounts=tuple(
            mount for mount in first.mounts if all(mount in edits.mounts for edits in others)
        ),
        env=tuple(one for one in first.env if all(one in edits.env for edits in others)),
    )
    own = {name: _subtract(edits, shared) for name, edits in edits_by_device.items()}
    if all(own.values()):
        return shared, own
    return CdiEdits(), dict(edits_by_device)


def _subtract(edits: CdiEdits, shared: CdiEdits) -> CdiEdits:
    return CdiEdits(
        nodes=tuple(node for node in edits.nodes if node not in shared.nodes),
        mounts=tuple(mount for mount in edits.mounts if mount not in shared.mounts),
        env=tuple(pair for pair in edits.env if pair not in shared.env),
        hooks=edits.hooks,
    )


def build_document(kind: str, devices: Mapping[str, CdiEdits], shared: CdiEdits) -> CdiJson:
    """Return a document with these devices, in their order; raise `CdiNameError`."""
    if not _KIND.fullmatch(kind):
        raise CdiNameError(f"CDI kind {kind[:80]!r}")
    for name in devices:
        if not is_device_name(name):
            raise CdiNameError(f"CDI device {name[:80]!r} of {kind}")
    body: CdiJson = {
        "cdiVersion": lowest_version(kind, devices, shared),
        "kind": kind,
        "devices": [
            {"name": name, "containerEdits": _edits_json(edits)} for name, edits in devices.items()
        ],
    }
    if shared:
        body["containerEdits"] = _edits_json(shared)
    return body


def lowest_version(kind: str, devices: Mapping[str, CdiEdits], shared: CdiEdits) -> str:
    """Return the lowest version that fits the content, because old runtimes refuse higher ones."""
    if "." in kind.partition("/")[2]:
        return "0.6.0"
    nodes = [node for edits in (*devices.values(), shared) for node in edits.nodes]
    is_renamed = any(node.host_path != node.path for node in nodes)
    if is_renamed or any(name[0].isdigit() for name in devices):
        return "0.5.0"
    return "0.3.0"


def encode_document(body: CdiJson) -> bytes:
    """Return a document's bytes; equal documents give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(body), indent=1) + b"\n"


def _edits_json(edits: CdiEdits) -> CdiJson:
    members: Sequence[tuple[str, list[object]]] = (
        ("env", [f"{name}={value}" for name, value in edits.env]),
        ("deviceNodes", [_node_json(node) for node in edits.nodes]),
        ("mounts", [_mount_json(mount) for mount in edits.mounts]),
        ("hooks", [_hook_json(hook) for hook in edits.hooks]),
    )
    return {name: items for name, items in members if items}


def _node_json(node: DeviceNodeEdit) -> CdiJson:
    host_path: Iterable[tuple[str, object]] = (
        (("hostPath", node.host_path),) if node.host_path != node.path else ()
    )
    mode = {} if node.file_mode is None else {"fileMode": node.file_mode}
    numbers = {"type": "c", "major": node.major, "minor": node.minor}
    return {
        "path": node.path,
        **dict(host_path),
        **numbers,
        **mode,
        "permissions": node.permissions,
    }


def _mount_json(mount: MountEdit) -> CdiJson:
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.path,
        "options": list(mount.options),
    }


def _hook_json(hook: CdiHook) -> CdiJson:
    body: CdiJson = {"hookName": hook.name, "path": hook.path, "args": list(hook.args)}
    return body | ({"env": list(hook.env)} if hook.env else {})
