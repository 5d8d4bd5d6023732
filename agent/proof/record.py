"""The runtime's own file about a container, which it keeps for runc: an OCI specification."""

from __future__ import annotations

import msgspec

from agent.proof.evidence import Limit, NodeFound, Record, Rule


class _Device(msgspec.Struct):
    path: str = ""
    type: str = ""
    major: int = -1
    minor: int = -1


class _Rule(msgspec.Struct):
    allow: bool = False
    type: str = "a"
    major: int | None = None
    minor: int | None = None
    access: str = "rwm"


class _Resources(msgspec.Struct):
    devices: list[_Rule] = []


class _Linux(msgspec.Struct):
    devices: list[_Device] = []
    resources: _Resources = msgspec.field(default_factory=_Resources)


class _Limit(msgspec.Struct):
    type: str = ""
    soft: int = 0
    hard: int = 0


class _Process(msgspec.Struct):
    env: list[str] = []
    rlimits: list[_Limit] = []


class _Mount(msgspec.Struct):
    destination: str = ""
    source: str = ""


class _Spec(msgspec.Struct):
    process: _Process = msgspec.field(default_factory=_Process)
    mounts: list[_Mount] = []
    linux: _Linux = msgspec.field(default_factory=_Linux)


_decoder = msgspec.json.Decoder(_Spec)


def parse_record(data: bytes) -> Record | None:
    """Return what the runtime was told; `None` for what is no such file."""
    try:
        spec = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    pairs = (item.partition("=") for item in spec.process.env)
    return Record(
        env=tuple((name, value) for name, equals, value in pairs if equals),
        mounts=tuple((mount.destination, mount.source) for mount in spec.mounts),
        nodes=tuple(NodeFound(d.path, d.type, d.major, d.minor) for d in spec.linux.devices),
        rules=tuple(_rule(rule) for rule in spec.linux.resources.devices),
        limits=tuple(Limit(one.type, one.soft, one.hard) for one in spec.process.rlimits),
    )


def _rule(rule: _Rule) -> Rule:
    """Return one rule; a number below zero stands for all, as an absent one does."""
    major = None if rule.major is None or rule.major < 0 else rule.major
    minor = None if rule.minor is None or rule.minor < 0 else rule.minor
    return Rule(rule.type or "a", major, minor, rule.access or "rwm", rule.allow)
