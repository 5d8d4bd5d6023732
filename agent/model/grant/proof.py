"""Whether running containers have what they were granted, as somebody looked from the host."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class Verdict(enum.Enum):
    """What a look found. `UNKNOWN` is no verdict: it could not be looked."""

    VERIFIED = "verified"
    MISSING = "missing"  # something granted is not there
    EXCESS = "excess"  # a device is there that was not granted; something may be missing, too
    UNKNOWN = "unknown"

    @property
    def is_wrong(self) -> bool:
        """Return whether a container differs from what it must have."""
        return self in (Verdict.MISSING, Verdict.EXCESS)


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """One container's verdict; `details` name each thing, for people."""

    container_id: str
    container: str = ""  # name
    pod_uid: str = ""
    namespace: str = ""
    pod: str = ""
    verdict: Verdict = Verdict.UNKNOWN
    details: tuple[str, ...] = ()
    way: str = ""  # by which the container got it: nri, kubelet; empty: by none of ours
    looked_s: float = 0.0  # wall clock


def _none() -> Mapping[str, Proof]:
    return MappingProxyType({})


class ProofView(msgspec.Struct, frozen=True, kw_only=True):
    """By container id: those that were granted devices, or got them by our device plug-in.

    Of the others only those that have a card of another pod.
    """

    containers: Mapping[str, Proof] = msgspec.field(default_factory=_none)
