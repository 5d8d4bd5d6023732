"""Samples of the cluster side: the API server, watches, our objects, events, the kubelet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from agent.publish.families import NODE, Family
from agent.publish.series.text import Series, line, pairs

if TYPE_CHECKING:
    from agent.kube.session.state import SessionState
    from agent.kube.watch.account import WatchState
    from agent.kubelet.base import KubeletState
    from agent.publish.cluster.state import WriterState
    from agent.publish.eventing.sink import SinkState

SLO_STALE_S = 1800.0
KIND = (*NODE, "publisher", "kind")  # two publishers may write parts of one object
RESOURCE = (*NODE, "resource")
P = "xpu_agent_"
_Row = tuple[str, str, tuple[str, ...], str, str]  # name, type, labels, unit, help
_ROWS: tuple[_Row, ...] = (
    ("api_reachable", "gauge", NODE, "", "Whether the API server answered the last request."),
    (
        *("api_requests_total", "counter", (*NODE, "verb", "code"), ""),
        "Requests to the API server; code none: no answer.",
    ),
    (
        *("api_clock_skew_seconds", "gauge", NODE, "seconds"),
        "By how much the API server's clock is ahead of this node's, at least.",
    ),
    (
        *("api_credential_errors_total", "counter", NODE, ""),
        "Attempts to read or renew the token or the authorities that failed.",
    ),
    ("watch_synced", "gauge", RESOURCE, "", "Whether a list of the resource was complete once."),
    (
        *("watch_contact_age_seconds", "gauge", RESOURCE, "seconds"),
        "Time since the API server said anything of the resource: objects, or that none changed.",
    ),
    ("watch_lists_total", "counter", RESOURCE, "", "Complete lists of a resource."),
    ("watch_streams_total", "counter", RESOURCE, "", "Watches that were opened."),
    ("watch_events_total", "counter", RESOURCE, "", "Events of a watched resource."),
    ("watch_errors_total", "counter", RESOURCE, "", "Lists and watches that failed."),
    ("watch_malformed_total", "counter", RESOURCE, "", "Objects that could not be read."),
    (
        *("object_state", "gauge", (*KIND, "state"), ""),
        "Where the writing of an object stands: 1 for the state it is in.",
    ),
    ("object_writes_total", "counter", KIND, "", "Writes that the API server acknowledged."),
    (
        *("object_repairs_total", "counter", KIND, ""),
        "Writes because somebody had changed or removed what is ours.",
    ),
    ("object_failures_total", "counter", KIND, "", "Calls for an object that failed."),
    (
        *("object_ack_seconds", "gauge", KIND, "seconds"),
        "Time from the last change of an object to its acknowledgement.",
    ),
    ("object_rivals", "gauge", KIND, "", "Other writers that hold fields of ours."),
    (
        *("cluster_events_total", "counter", (*NODE, "result"), ""),
        "Kubernetes events by what became of them.",
    ),
    ("cluster_events_waiting", "gauge", NODE, "", "Kubernetes events that wait to be told."),
    (
        *("kubelet_state", "gauge", (*NODE, "state"), ""),
        "How the kubelet answered when it was asked for its pods last: 1 for that state.",
    ),
    (
        *("kubelet_looks_total", "counter", (*NODE, "state"), ""),
        "Times that the kubelet was asked for its pods, by how it answered.",
    ),
)
CLUSTER_FAMILIES: tuple[Family, ...] = tuple(
    Family(name=f"{P}{name}", type=kind, help=text, labels=labels, unit=unit)
    for name, kind, labels, unit, text in _ROWS
)


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How every part of the cluster side does at one moment."""

    session: SessionState
    watches: tuple[WatchState, ...]
    writers: tuple[WriterState, ...]
    events: SinkState | None  # None: switched off
    kubelet: KubeletState | None
    slo_stale_s: float = SLO_STALE_S  # a NodeSLO that was not confirmed that long is frozen


def cluster_series(status: ClusterStatus | None, now_s: float, opened: str) -> Series:
    """Yield the families of the cluster side; none in standalone mode."""
    if status is None:
        return
    yield from _session(status.session, opened)
    yield from _watches(status.watches, now_s, opened)
    yield from _writers(status.writers, opened)
    if status.events is not None:
        yield from _events(status.events, opened)
    if status.kubelet is not None:
        yield from _kubelet(status.kubelet, opened)


def _session(state: SessionState, opened: str) -> Series:
    name = f"{P}api_reachable"
    known = () if state.reachable is None else (int(state.reachable),)
    yield name, [line(name, opened, value) for value in known]
    name = f"{P}api_requests_total"
    yield (
        name,
        [
            line(name, opened, count, pairs(("verb", "code"), key))
            for key, count in sorted(state.requests.items())
        ],
    )
    name = f"{P}api_clock_skew_seconds"
    skew = () if state.clock_skew_s is None else (round(state.clock_skew_s, 3),)
    yield name, [line(name, opened, value) for value in skew]
    name = f"{P}api_credential_errors_total"
    yield name, [line(name, opened, state.token_read_errors + state.ca_read_errors)]


def _watches(states: Iterable[WatchState], now_s: float, opened: str) -> Series:
    labelled = [(pairs(("resource",), (state.resource,)), state) for state in states]
    columns: Mapping[str, list[tuple[str, float | None]]] = {
        "watch_synced": [(x, int(s.synced)) for x, s in labelled],
        "watch_contact_age_seconds": [(x, _age(s.contact_s(now_s), now_s)) for x, s in labelled],
        "watch_lists_total": [(x, s.lists) for x, s in labelled],
        "watch_streams_total": [(x, s.watches) for x, s in labelled],
        "watch_events_total": [(x, s.events) for x, s in labelled],
        "watch_errors_total": [(x, s.errors) for x, s in labelled],
        "watch_malformed_total": [(x, s.malformed) for x, s in labelled],
    }
    yield from _columns(columns, opened)


def _writers(states: Iterable[WriterState], opened: str) -> Series:
    names = ("publisher", "kind")
    labelled = [(pairs(names, (state.publisher, state.kind)), state) for state in states]
    name = f"{P}object_state"
    phases = [(f'{x},state="{p.value}"', s.phase is p) for x, s in labelled for p in type(s.phase)]
    yield name, [line(name, opened, int(value), extra) for extra, value in phases]
    columns: Mapping[str, list[tuple[str, float | None]]] = {
        "object_writes_total": [(x, s.written) for x, s in labelled],
        "object_repairs_total": [(x, s.repaired) for x, s in labelled],
        "object_failures_total": [(x, s.failed) for x, s in labelled],
        "object_ack_seconds": [(x, s.ack_latency_s) for x, s in labelled],
        "object_rivals": [(x, len(s.rivals)) for x, s in labelled],
    }
    yield from _columns(columns, opened)


def _events(state: SinkState, opened: str) -> Series:
    counts = state.counts
    results = ("created", "repeated", "limited", "dropped", "refused")
    name = f"{P}cluster_events_total"
    told = [(pairs(("result",), (result,)), getattr(counts, result)) for result in results]
    yield name, [line(name, opened, value, extra) for extra, value in told]
    name = f"{P}cluster_events_waiting"
    yield name, [line(name, opened, counts.waiting)]


def _kubelet(state: KubeletState, opened: str) -> Series:
    name = f"{P}kubelet_state"
    seen = {*(key for key, _ in state.looks), state.pods}
    states = [(pairs(("state",), (key,)), int(key == state.pods)) for key in sorted(seen)]
    yield name, [line(name, opened, value, extra) for extra, value in states]
    name = f"{P}kubelet_looks_total"
    looks = [(pairs(("state",), (key,)), count) for key, count in state.looks]
    yield name, [line(name, opened, count, extra) for extra, count in looks]


def _columns(columns: Mapping[str, list[tuple[str, float | None]]], opened: str) -> Series:
    for short, values in columns.items():
        name = f"{P}{short}"
        yield name, [line(name, opened, v, extra) for extra, v in values if v is not None]


def _age(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else round(max(0.0, now_s - at_s), 3)
