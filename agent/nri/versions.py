"""Which NRI a runtime has, and what follows from it: the events it knows, the fields it reads."""

from __future__ import annotations

import re
from bisect import bisect_right

import msgspec

Version = tuple[int, int, int]

DEFAULT_NRI_VERSION: Version = (0, 8, 0)  # of a runtime that cannot be told
PLUGIN_VERSION = "v0.12.2"  # whose messages ours are

# from each version of a runtime on; "-pre" counts as the version it came before
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
_TABLES = {"containerd": _CONTAINERD, "cri-o": _CRIO}
_CDI_SINCE: dict[str, Version] = {"containerd": (2, 1, 0), "cri-o": (1, 34, 0)}

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
# each event is waited for by all pods of the node, so none is here that is not used
SUBSCRIBED_EVENTS = RUN_POD | STOP_POD | REMOVE_POD | CREATE | POST_START | UPDATE | STOP | REMOVE


class RuntimePeer(msgspec.Struct, frozen=True, kw_only=True):
    """The runtime as it described itself; timeouts in seconds."""

    name: str = ""
    version: str = ""
    nri: Version = DEFAULT_NRI_VERSION
    request_timeout_s: float = 2.0

    @property
    def takes_cdi(self) -> bool:
        """Say whether CDI names of an adjustment are resolved; elsewhere they are dropped."""
        since, found = _CDI_SINCE.get(self.name), parse_version(self.version)
        return self.nri >= (0, 7, 0) and since is not None and found is not None and found >= since

    @property
    def takes_rlimits(self) -> bool:
        """Say whether limits of an adjustment are read."""
        return self.nri >= (0, 4, 0)

    @property
    def takes_oom_score(self) -> bool:
        """Say whether the OOM score of an adjustment is read."""
        return self.nri >= (0, 7, 0)


def parse_peer(name: str, version: str, nri: str, request_timeout_ms: int) -> RuntimePeer:
    """Return what a runtime says of itself in Configure; 0 ms is the runtimes' default."""
    known = name.lower()
    return RuntimePeer(
        name=known[:_MAX_NAME],
        version=version[:_MAX_NAME],
        nri=nri_version(known, version, nri),
        request_timeout_s=request_timeout_ms / 1e3 if request_timeout_ms > 0 else 2.0,
    )


def nri_version(name: str, version: str, nri: str) -> Version:
    """Return the NRI version: said (`v…`), else inferred from the runtime's, else assumed."""
    said = parse_version(nri) if nri.startswith("v") else None
    if said is not None:
        return said
    found, table = parse_version(version), _TABLES.get(name, ())
    at = 0 if found is None else bisect_right(table, found, key=lambda row: row[0])
    return table[at - 1][1] if at else DEFAULT_NRI_VERSION


def supported_events(nri: Version) -> int:
    """Return all events that such a runtime knows; any other bit ends the connection."""
    return 0x3FFF if nri >= (0, 10, 0) else 0x07FF


def event_mask(nri: Version, wanted: int = SUBSCRIBED_EVENTS) -> int:
    """Return the events to subscribe to; never 0, which stands for all of them."""
    return wanted & supported_events(nri) or CREATE


def parse_version(text: str) -> Version | None:
    """Return the numbers that a version begins with; `None` for what is no version."""
    found = _VERSION.match(text)
    if found is None:
        return None
    major, minor, patch = found.groups()
    return int(major), int(minor), int(patch or 0)
