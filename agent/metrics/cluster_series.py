"""Series of the API server, watches, written objects, events, the kubelet and the NodeSLO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.metrics.families import NODE, ExportedFamily
from agent.metrics.text_format import SeriesLines, label_pairs, sample_line
from agent.slo.status import is_frozen
from agent.snapshot.cluster import (
    SLO_STALE_S,
    ApiSessionStatus,
    EventSinkState,
    KubeletStatus,
    WatchStatus,
    WritePermission,
)
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.publications import WriterState

OBJECT_LABELS = (*NODE, "publisher", "kind")  # two publishers may write parts of one object
RESOURCE_LABELS = (*NODE, "resource")
PREFIX = "xpu_agent_"

_Row = tuple[str, str, tuple[str, ...], str, str]  # name, type, labels, unit, help

_ROWS: tuple[_Row, ...] = (
    (
        *("node_writes_allowed", "gauge", (*NODE, "reason"), ""),
        "Whether objects of the Node may be written; with a reason if they may not, or if nothing "
        "proves that the Node is this machine's.",
    ),
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
    (
        "watch_synced",
        "gauge",
        RESOURCE_LABELS,
        "",
        "Whether a list of the resource was complete once.",
    ),
    (
        *("watch_contact_age_seconds", "gauge", RESOURCE_LABELS, "seconds"),
        "Time since the API server said anything of the resource: objects, or that none changed.",
    ),
    ("watch_lists_total", "counter", RESOURCE_LABELS, "", "Complete lists of a resource."),
    ("watch_streams_total", "counter", RESOURCE_LABELS, "", "Watches that were opened."),
    ("watch_events_total", "counter", RESOURCE_LABELS, "", "Events of a watched resource."),
    ("watch_errors_total", "counter", RESOURCE_LABELS, "", "Lists and watches that failed."),
    ("watch_malformed_total", "counter", RESOURCE_LABELS, "", "Objects that could not be read."),
    (
        *("object_state", "gauge", (*OBJECT_LABELS, "state"), ""),
        "Where the writing of an object stands: 1 for the state it is in.",
    ),
    (
        "object_writes_total",
        "counter",
        OBJECT_LABELS,
        "",
        "Writes that the API server acknowledged.",
    ),
    (
        *("object_repairs_total", "counter", OBJECT_LABELS, ""),
        "Writes because somebody had changed or removed what is ours.",
    ),
    ("object_failures_total", "counter", OBJECT_LABELS, "", "Calls for an object that failed."),
    (
        *("object_ack_seconds", "gauge", OBJECT_LABELS, "seconds"),
        "Time from the last change of an object to its acknowledgement.",
    ),
    ("object_rivals", "gauge", OBJECT_LABELS, "", "Other writers that hold fields of ours."),
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

CLUSTER_FAMILIES: tuple[ExportedFamily, ...] = tuple(
    ExportedFamily(name=f"{PREFIX}{name}", type=kind, help=text, labels=labels, unit=unit)
    for name, kind, labels, unit, text in _ROWS
)


def cluster_series(snapshot: NodeSnapshot, now_s: float, label_prefix: str) -> SeriesLines:
    """Yield the families of the cluster service; none in standalone mode."""
    status = snapshot.cluster_service
    if status is None:
        return
    yield from _write_permission(status.write_permission, label_prefix)
    yield from _session(status.session, label_prefix)
    yield from _watches(status.watches, now_s, label_prefix)
    yield from _writers(status.writers, label_prefix)
    if status.events is not None:
        yield from _events(status.events, label_prefix)
    if status.kubelet is not None:
        yield from _kubelet(status.kubelet, label_prefix)


def _write_permission(permission: WritePermission, label_prefix: str) -> SeriesLines:
    name = f"{PREFIX}node_writes_allowed"
    reason = label_pairs(("reason",), (permission.reason,))
    yield name, [sample_line(name, label_prefix, int(permission.is_allowed), reason)]


def _session(state: ApiSessionStatus, label_prefix: str) -> SeriesLines:
    name = f"{PREFIX}api_reachable"
    reachable = () if state.reachable is None else (int(state.reachable),)
    yield name, [sample_line(name, label_prefix, value) for value in reachable]
    name = f"{PREFIX}api_requests_total"
    yield (
        name,
        [
            sample_line(name, label_prefix, count, label_pairs(("verb", "code"), key))
            for key, count in sorted(state.requests.items())
        ],
    )
    name = f"{PREFIX}api_clock_skew_seconds"
    skew = () if state.clock_skew_s is None else (round(state.clock_skew_s, 3),)
    yield name, [sample_line(name, label_prefix, value) for value in skew]
    name = f"{PREFIX}api_credential_errors_total"
    yield name, [sample_line(name, label_prefix, state.token_read_errors + state.ca_read_errors)]


def _watches(states: Iterable[WatchStatus], now_s: float, label_prefix: str) -> SeriesLines:
    labelled = [(label_pairs(("resource",), (state.resource,)), state) for state in states]
    columns: Mapping[str, list[tuple[str, float | None]]] = {
        "watch_synced": [(x, int(s.synced)) for x, s in labelled],
        "watch_contact_age_seconds": [(x, _age(s.contact_s(now_s), now_s)) for x, s in labelled],
        "watch_lists_total": [(x, s.lists) for x, s in labelled],
        "watch_streams_total": [(x, s.watches) for x, s in labelled],
        "watch_events_total": [(x, s.events) for x, s in labelled],
        "watch_errors_total": [(x, s.errors) for x, s in labelled],
        "watch_malformed_total": [(x, s.malformed) for x, s in labelled],
    }
    yield from _columns(columns, label_prefix)


def _writers(states: Iterable[WriterState], label_prefix: str) -> SeriesLines:
    names = ("publisher", "kind")
    labelled = [(label_pairs(names, (state.publisher, state.kind)), state) for state in states]
    name = f"{PREFIX}object_state"
    phases = [(f'{x},state="{p.value}"', s.phase is p) for x, s in labelled for p in type(s.phase)]
    yield name, [sample_line(name, label_prefix, int(value), extra) for extra, value in phases]
    columns: Mapping[str, list[tuple[str, float | None]]] = {
        "object_writes_total": [(x, s.written) for x, s in labelled],
        "object_repairs_total": [(x, s.repaired) for x, s in labelled],
        "object_failures_total": [(x, s.failed) for x, s in labelled],
        "object_ack_seconds": [(x, s.ack_latency_s) for x, s in labelled],
        "object_rivals": [(x, len(s.conflicts)) for x, s in labelled],
    }
    yield from _columns(columns, label_prefix)


def _events(state: EventSinkState, label_prefix: str) -> SeriesLines:
    counts = state.counts
    results = ("created", "repeated", "limited", "dropped", "refused")
    name = f"{PREFIX}cluster_events_total"
    results_with_labels = [
        (label_pairs(("result",), (result,)), getattr(counts, result)) for result in results
    ]
    yield (
        name,
        [sample_line(name, label_prefix, value, extra) for extra, value in results_with_labels],
    )
    name = f"{PREFIX}cluster_events_waiting"
    yield name, [sample_line(name, label_prefix, counts.waiting)]


def _kubelet(state: KubeletStatus, label_prefix: str) -> SeriesLines:
    name = f"{PREFIX}kubelet_state"
    known_states = {*(key for key, _ in state.polls), state.pods}
    states = [
        (label_pairs(("state",), (key,)), int(key == state.pods)) for key in sorted(known_states)
    ]
    yield name, [sample_line(name, label_prefix, value, extra) for extra, value in states]
    name = f"{PREFIX}kubelet_looks_total"
    polls = [(label_pairs(("state",), (key,)), count) for key, count in state.polls]
    yield name, [sample_line(name, label_prefix, count, extra) for extra, count in polls]


def _columns(
    columns: Mapping[str, list[tuple[str, float | None]]], label_prefix: str
) -> SeriesLines:
    for short, values in columns.items():
        name = f"{PREFIX}{short}"
        yield (
            name,
            [sample_line(name, label_prefix, v, extra) for extra, v in values if v is not None],
        )


def _age(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else round(max(0.0, now_s - at_s), 3)


_SLO_ROWS = (
    ("found", "", "Whether this node has a NodeSLO, as far as the API server told."),
    (
        "age_seconds",
        "seconds",
        "Time since the API server told or confirmed what NodeSLO there is.",
    ),
    ("frozen", "", "Whether the NodeSLO in force may be outdated: nothing is changed by it then."),
    ("refused_values", "", "Values of the NodeSLO that are wrong: their defaults stand."),
    ("unknown_fields", "", "Fields of the NodeSLO that this release does not know."),
)

SLO_FAMILIES: tuple[ExportedFamily, ...] = tuple(
    ExportedFamily(
        name=f"xpu_agent_node_slo_{name}", type="gauge", help=text, labels=NODE, unit=unit
    )
    for name, unit, text in _SLO_ROWS
)


def slo_series(snapshot: NodeSnapshot, now_s: float, label_prefix: str) -> SeriesLines:
    """Yield the families of the NodeSLO; none outside of a cluster."""
    cluster, service = snapshot.cluster, snapshot.cluster_service
    stale_s = SLO_STALE_S if service is None else service.slo_stale_s
    if not cluster.is_clustered:
        return
    view, age_s = cluster.slo.value, cluster.slo.age_s(now_s)
    values = (
        int(view.found),
        None if age_s is None else round(age_s, 3),
        int(is_frozen(cluster.slo, now_s, stale_s)),
        view.refused_count,
        view.unknown_fields,
    )
    for family, value in zip(SLO_FAMILIES, values, strict=True):
        if value is not None:
            yield family.name, [sample_line(family.name, label_prefix, value)]
