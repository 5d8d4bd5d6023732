"""A strict reader of CDI documents, from the table of fields: it refuses what runtimes would."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
_PART = r"[A-Za-z](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_KIND = re.compile(rf"{_PART}/{_PART}")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:-]*[A-Za-z0-9])?")


class Refused(Exception):
    """No runtime would take it."""


class _Strict(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Every member is known, and of its type."""


class DeviceNode(_Strict):
    path: str
    host_path: str = ""
    type: Literal["", "b", "c", "u", "p"] = ""
    major: int = 0
    minor: int = 0
    file_mode: int = 0
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class Mount(_Strict):
    host_path: str
    container_path: str
    options: list[str] = []
    type: str = ""


class Hook(_Strict):
    hook_name: Literal[
        "prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"
    ]
    path: str
    args: list[str] = []
    env: list[str] = []
    timeout: int | None = None


class Edits(_Strict):
    env: list[str] = []
    device_nodes: list[DeviceNode] = []
    mounts: list[Mount] = []
    hooks: list[Hook] = []
    additional_gids: list[int] = msgspec.field(name="additionalGids", default=[])


class Device(_Strict):
    name: str
    container_edits: Edits
    annotations: dict[str, str] = {}


class Spec(_Strict):
    cdi_version: str
    kind: str
    devices: list[Device]
    container_edits: Edits | None = None
    annotations: dict[str, str] = {}


def read(text: bytes) -> Spec:
    """Return a document; raise `Refused` for one that breaks any rule."""
    try:
        spec = msgspec.json.decode(text, type=Spec)
    except msgspec.MsgspecError as error:
        raise Refused(str(error)) from error
    _require(spec.cdi_version in VERSIONS, f"version {spec.cdi_version}")
    _require(bool(_KIND.fullmatch(spec.kind)), f"kind {spec.kind}")
    names = [device.name for device in spec.devices]
    _require(bool(names), "no devices")
    _require(len(set(names)) == len(names), "one name twice")
    for device in spec.devices:
        _require(bool(_DEVICE.fullmatch(device.name)), f"name {device.name}")
        _require(device.container_edits != Edits(), f"{device.name} is empty")
        _edits(device.container_edits)
    if spec.container_edits is not None:
        _edits(spec.container_edits)
    _require(spec.cdi_version >= _least(spec), f"{spec.cdi_version} is below {_least(spec)}")
    return spec


def _edits(edits: Edits) -> None:
    for pair in edits.env:
        _require("=" in pair[1:], f"env {pair}")
    for node in edits.device_nodes:
        _require(node.path.startswith("/"), f"node {node.path}")
        _require(set(node.permissions) <= set("rwm"), f"permissions {node.permissions}")
    for mount in edits.mounts:
        _require(bool(mount.host_path and mount.container_path), "mount without a path")
    for hook in edits.hooks:
        _require(hook.path.startswith("/"), f"hook {hook.path}")


def _least(spec: Spec) -> str:
    every = [device.container_edits for device in spec.devices]
    every += [spec.container_edits] if spec.container_edits else []
    needs = ["0.3.0"]
    if any(edits.additional_gids for edits in every):
        needs.append("0.7.0")
    if (
        spec.annotations
        or any(d.annotations for d in spec.devices)
        or "." in spec.kind.split("/")[1]
    ):
        needs.append("0.6.0")
    if any(node.host_path for edits in every for node in edits.device_nodes):
        needs.append("0.5.0")
    if any(device.name[0].isdigit() for device in spec.devices):
        needs.append("0.5.0")
    if any(mount.type for edits in every for mount in edits.mounts):
        needs.append("0.4.0")
    return max(needs)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise Refused(what)
