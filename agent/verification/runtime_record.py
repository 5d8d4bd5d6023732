"""Parses the OCI specification that the runtime stores for a container."""

from __future__ import annotations

import msgspec

from agent.verification.observation import DeviceRule, ObservedNode, ResourceLimit, RuntimeRecord
from agent.wire_formats.json_values import JSON_ERRORS


class _OciDevice(msgspec.Struct):
    path: str = ""
    type: str = ""
    major: int = -1
    minor: int = -1


class _OciRule(msgspec.Struct):
    allow: bool = False
    type: str = "a"
    major: int | None = None
    minor: int | None = None
    access: str = "rwm"


class _OciResources(msgspec.Struct):
    devices: list[_OciRule] = []


class _OciLinux(msgspec.Struct):
    devices: list[_OciDevice] = []
    resources: _OciResources = msgspec.field(default_factory=_OciResources)


class _OciLimit(msgspec.Struct):
    type: str = ""
    soft: int = 0
    hard: int = 0


class _OciProcess(msgspec.Struct):
    env: list[str] = []
    rlimits: list[_OciLimit] = []


class _OciMount(msgspec.Struct):
    destination: str = ""
    source: str = ""


class _OciSpec(msgspec.Struct):
    process: _OciProcess = msgspec.field(default_factory=_OciProcess)
    mounts: list[_OciMount] = []
    linux: _OciLinux = msgspec.field(default_factory=_OciLinux)


_decoder = msgspec.json.Decoder(_OciSpec)


def parse_runtime_record(data: bytes) -> RuntimeRecord | None:
    """Parse the stored specification; return `None` if the file is invalid."""
    try:
        spec = _decoder.decode(data)
    except JSON_ERRORS:
        return None
    pairs = (item.partition("=") for item in spec.process.env)
    return RuntimeRecord(
        env=tuple((name, value) for name, equals, value in pairs if equals),
        mounts=tuple((mount.destination, mount.source) for mount in spec.mounts),
        nodes=tuple(ObservedNode(d.path, d.type, d.major, d.minor) for d in spec.linux.devices),
        rules=tuple(_device_rule(rule) for rule in spec.linux.resources.devices),
        limits=tuple(
            ResourceLimit(rlimit.type, rlimit.soft, rlimit.hard) for rlimit in spec.process.rlimits
        ),
    )


def _device_rule(rule: _OciRule) -> DeviceRule:
    """Return one rule; a negative or absent number means all."""
    major = None if rule.major is None or rule.major < 0 else rule.major
    minor = None if rule.minor is None or rule.minor < 0 else rule.minor
    return DeviceRule(rule.type or "a", major, minor, rule.access or "rwm", rule.allow)
