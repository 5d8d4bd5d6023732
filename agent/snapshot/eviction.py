"""Evictions of pods: what is requested of the API server, what came of it, and the figures."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from agent.snapshot.part import Counts
from agent.snapshot.pod import PodRef

MESSAGE = "trigger by koordlet feature {feature}, kill pod: {name}"  # Koordinator's text


class EvictionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One pod to evict. With container ids the runtime stops them instead, without any budget."""

    pod: PodRef
    feature: str  # Koordinator's name of the rule: "BEMemoryEvict"
    is_planned: bool = False  # record the event only
    container_ids: tuple[str, ...] = ()
    grace_s: int = 0  # of the containers' stop

    @property
    def message(self) -> str:
        """Return why the pod is evicted, in Koordinator's words."""
        return MESSAGE.format(feature=self.feature, name=self.pod.name)


class EvictionOutcome(enum.Enum):
    """What came of a request."""

    EVICTED = "evicted"  # the API server deletes the pod
    KILLED = "killed"  # the runtime stopped its containers
    PLANNED = "planned"  # plan mode: nothing was requested
    BLOCKED = "blocked"  # a PodDisruptionBudget forbids it now
    GONE = "gone"  # the pod has ended, or another one has its name
    REFUSED = "refused"  # no permission, or an answer that a repeat does not change
    THROTTLED = "throttled"  # the API server takes no requests now
    UNKNOWN = "unknown"  # no answer: the pod may be evicted or not


class EvictionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one request."""

    request: EvictionRequest
    outcome: EvictionOutcome
    message: str = ""  # why it failed
    retry_after_s: float | None = None  # the wait that the API server requested


class EvictionFeedback(msgspec.Struct, frozen=True, kw_only=True):
    """What strategies have to know of the cluster before the next evictions."""

    results: tuple[EvictionResult, ...] = ()  # since the last cycle
    metric_published_s: float | None = None  # monotonic, the last NodeMetric; None: none yet


PodEvictions = Mapping[tuple[str, str, str], int]  # by namespace, name and feature


def _no_pods() -> PodEvictions:
    return {}


class EvictionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What evictions did since the agent started, and what they wait for."""

    outcomes: tuple[tuple[str, Counts], ...] = ()  # by feature, then outcome
    pods: PodEvictions = msgspec.field(default_factory=_no_pods)  # the last ones, bounded
    blocked: tuple[str, ...] = ()  # pods that a budget protects now: namespace/name
    problem: str = ""  # of the last request that failed for another reason
