"""The NRI version of a runtime, and the events and fields that it supports."""

from __future__ import annotations

import re
from bisect import bisect_right

import msgspec

Version = tuple[int, int, int]

DEFAULT_NRI_VERSION: Version = (0, 8, 0)  # of a runtime whose version is unknown
PLUGIN_VERSION = "v0.12.2"  # version of the message definitions that the agent uses

# rows: since this version of the runtime, this NRI version; "-pre" counts as the release itself
_CONTAINERD: tuple[tuple[Version, Version], ...] = (
    ((1, 7, 0), (0, 3, 0)),
    ((1, 7, 7), (0, 4, 0)),
    ((1, 7, 14), (0, 6, 0)),
    ((1, 7, 16), (0, 6, 1)),
    ((1, 7, 26), (0, 8, 0)),
    ((2, 2, 0), (0, 10, 0)),
    ((2, 2, 1), (0, 11, 0)),
    ((2, 3, 0), (0, 12, 0)),
    ((2, 4, 0), (0, 12, 2)),
)
_CRIO: tuple[tuple[Version, Version], ...] = (
    ((1, 26, 0), (0, 2, 0)),
    ((1, 26, 2), (0, 3, 0)),
    ((1, 26, 4), (0, 3, 1)),
    ((1, 27, 0), (0, 3, 0)),
    ((1, 27, 1), (0, 3, 1)),
    ((1, 29, 0), (0, 5, 0)),
    ((1, 29, 2), (0, 6, 0)),
    ((1, 31, 0), (0, 6, 1)),
    ((1, 32, 0), (0, 9, 0)),
    ((1, 33, 0), (0, 9, 1)),
    ((1, 34, 0), (0, 10, 0)),
    ((1, 35, 0), (0, 11, 0)),
)
CONTAINERD = "containerd"  # name by which it registers
_TABLES = {CONTAINERD: _CONTAINERD, "cri-o": _CRIO}
_CDI_SINCE: dict[str, Version] = {CONTAINERD: (2, 1, 0), "cri-o": (1, 34, 0)}

_VERSION = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?![0-9])")
_MAX_NAME = 64

RUN_POD = 0x0001
STOP_POD = 0x0002
REMOVE_POD = 0x0004
CREATE = 0x0008
POST_START = 0x0040
UPDATE = 0x0080
STOP = 0x0200
REMOVE = 0x0400
# every event holds up all pods of the node, so the agent subscribes only to those it uses
SUBSCRIBED_EVENTS = RUN_POD | STOP_POD | REMOVE_POD | CREATE | POST_START | UPDATE | STOP | REMOVE


class RuntimePeer(msgspec.Struct, frozen=True, kw_only=True):
    """The runtime as it described itself; timeouts in seconds."""

    name: str = ""
    version: str = ""
    nri: Version = DEFAULT_NRI_VERSION
    request_timeout_s: float = 2.0

    @property
    def takes_cdi(self) -> bool:
        """Return whether the runtime resolves CDI names of an adjustment; others drop them."""
        since, version = _CDI_SINCE.get(self.name), parse_version(self.version)
        return (
            self.nri >= (0, 7, 0) and since is not None and version is not None and version >= since
        )

    @property
    def takes_rlimits(self) -> bool:
        """Return whether the runtime applies rlimits of an adjustment."""
        return self.nri >= (0, 4, 0)

    @property
    def takes_oom_score(self) -> bool:
        """Return whether the runtime applies the OOM score of an adjustment."""
        return self.nri >= (0, 7, 0)


def parse_peer(name: str, version: str, nri: str, request_timeout_ms: int) -> RuntimePeer:
    """Return the runtime described by Configure; 0 ms means the runtimes' default."""
    runtime = name.lower()
    return RuntimePeer(
        name=runtime[:_MAX_NAME],
        version=version[:_MAX_NAME],
        nri=nri_version(runtime, version, nri),
        request_timeout_s=request_timeout_ms / 1e3 if request_timeout_ms > 0 else 2.0,
    )


def nri_version(name: str, version: str, nri: str) -> Version:
    """Return the NRI version: reported (`v…`), else by the runtime's version, else a default."""
    reported = parse_version(nri) if nri.startswith("v") else None
    if reported is not None:
        return reported
    runtime_version, table = parse_version(version), _TABLES.get(name, ())
    at = (
        0
        if runtime_version is None
        else bisect_right(table, runtime_version, key=lambda row: row[0])
    )
    return table[at - 1][1] if at else DEFAULT_NRI_VERSION


def supported_events(nri: Version) -> int:
    """Return all events that this NRI version has; the runtime disconnects on any other bit."""
    return 0x3FFF if nri >= (0, 10, 0) else 0x07FF


def event_mask(nri: Version, events: int = SUBSCRIBED_EVENTS) -> int:
    """Return the events to subscribe to; never 0, which would mean all events."""
    return events & supported_events(nri) or CREATE


def parse_version(text: str) -> Version | None:
    """Return the numbers at the start of a version; `None` if it is not a version."""
    match = _VERSION.match(text)
    if match is None:
        return None
    major, minor, patch = match.groups()
    return int(major), int(minor), int(patch or 0)
