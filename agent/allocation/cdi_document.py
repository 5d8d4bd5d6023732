"""A CDI file as it is to be on the disk.

CDI documents from what devices give to containers, of the least version that fits. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from agent.errors import AgentError
from agent.snapshot.edits import ContainerEdits, DeviceNodeEdit, MountEdit


class CdiFile(msgspec.Struct, frozen=True, kw_only=True):
    """One specification: the name of its file, and its JSON text. Equal hosts give equal bytes."""

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
    """Say whether a device can be called so."""
    return _NAME.fullmatch(name) is not None


class CdiNameError(AgentError):
    """A kind or a device's name that no runtime would read; the whole file would be refused."""


class CdiHook(msgspec.Struct, frozen=True, kw_only=True):
    """A program that the runtime starts for a container; `args` begin with the program's name."""

    name: str  # createContainer, …
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


class CdiEdits(msgspec.Struct, frozen=True, kw_only=True):
    """One set of edits: a device's own, or those that all devices of a file have alike."""

    nodes: tuple[DeviceNodeEdit, ...] = ()
    mounts: tuple[MountEdit, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    hooks: tuple[CdiHook, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.nodes or self.mounts or self.env or self.hooks)


def to_cdi_edits(edits: ContainerEdits, variables: Collection[str] = ()) -> CdiEdits:
    """Return what CDI can say of edits; of the environment only these variables.

    Most variables list the devices of one container, which no file can know.
    """
    env = tuple(pair for pair in edits.env if pair[0] in variables)
    return CdiEdits(nodes=edits.nodes, mounts=edits.mounts, env=env)


def split_common(
    parts: Mapping[str, CdiEdits], own_paths: Mapping[str, Collection[str]]
) -> tuple[CdiEdits, dict[str, CdiEdits]]:
    """Return what all devices have alike, and what is each one's own.

    `own_paths` are, by device, host paths that are its own even if it is the only one. A device
    that would be left with nothing keeps all that it has: an empty one makes a file unreadable.
    """
    if not parts:
        return CdiEdits(), {}
    mine = {path for paths in own_paths.values() for path in paths}
    first, *others = parts.values()
    shared = CdiEdits(
        nodes=tuple(
            node
            for node in first.nodes
            if node.host_path not in mine and all(node in part.nodes for part in others)
        ),
        mounts=tuple(one for one in first.mounts if all(one in part.mounts for part in others)),
        env=tuple(one for one in first.env if all(one in part.env for part in others)),
    )
    own = {name: _subtract(part, shared) for name, part in parts.items()}
    if all(own.values()):
        return shared, own
    return CdiEdits(), dict(parts)


def _subtract(part: CdiEdits, shared: CdiEdits) -> CdiEdits:
    return CdiEdits(
        nodes=tuple(node for node in part.nodes if node not in shared.nodes),
        mounts=tuple(mount for mount in part.mounts if mount not in shared.mounts),
        env=tuple(pair for pair in part.env if pair not in shared.env),
        hooks=part.hooks,
    )


def build_document(kind: str, devices: Mapping[str, CdiEdits], shared: CdiEdits) -> CdiJson:
    """Return a document with these devices, in their order; raise `BadCdiName`."""
    if not _KIND.fullmatch(kind):
        raise CdiNameError(f"CDI kind {kind[:80]!r}")
    for name in devices:
        if not is_device_name(name):
            raise CdiNameError(f"CDI device {name[:80]!r} of {kind}")
    body: CdiJson = {
        "cdiVersion": lowest_version(kind, devices, shared),
        "kind": kind,
        "devices": [
            {"name": name, "containerEdits": _edits_json(part)} for name, part in devices.items()
        ],
    }
    if shared:
        body["containerEdits"] = _edits_json(shared)
    return body


def lowest_version(kind: str, devices: Mapping[str, CdiEdits], shared: CdiEdits) -> str:
    """Return the lowest version whose readers understand the content: old runtimes refuse more."""
    if "." in kind.partition("/")[2]:
        return "0.6.0"
    nodes = [node for part in (*devices.values(), shared) for node in part.nodes]
    moved = any(node.host_path != node.path for node in nodes)
    if moved or any(name[0].isdigit() for name in devices):
        return "0.5.0"
    return "0.3.0"


def encode_document(body: CdiJson) -> bytes:
    """Return a document's bytes: equal documents are equal files."""
    return msgspec.json.format(msgspec.json.encode(body), indent=1) + b"\n"


def _edits_json(part: CdiEdits) -> CdiJson:
    members: Sequence[tuple[str, list[object]]] = (
        ("env", [f"{name}={value}" for name, value in part.env]),
        ("deviceNodes", [_node_json(node) for node in part.nodes]),
        ("mounts", [_mount_json(mount) for mount in part.mounts]),
        ("hooks", [_hook_json(hook) for hook in part.hooks]),
    )
    return {name: items for name, items in members if items}


def _node_json(node: DeviceNodeEdit) -> CdiJson:
    moved: Iterable[tuple[str, object]] = (
        (("hostPath", node.host_path),) if node.host_path != node.path else ()
    )
    mode = {} if node.file_mode is None else {"fileMode": node.file_mode}
    numbers = {"type": "c", "major": node.major, "minor": node.minor}
    return {"path": node.path, **dict(moved), **numbers, **mode, "permissions": node.permissions}


def _mount_json(mount: MountEdit) -> CdiJson:
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.path,
        "options": list(mount.options),
    }


def _hook_json(hook: CdiHook) -> CdiJson:
    body: CdiJson = {"hookName": hook.name, "path": hook.path, "args": list(hook.args)}
    return body | ({"env": list(hook.env)} if hook.env else {})
