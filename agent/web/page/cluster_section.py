"""The section of the status page about the cluster."""

from __future__ import annotations

from agent.slo.status import is_frozen
from agent.snapshot.cluster import ClusterServiceStatus, ClusterView, WatchPhase, WatchStatus
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.publications import FieldConflict, WriterPhase, WriterState
from agent.web.page.html import badge, grid, section, tag, text

MAX_CONFLICT_FIELDS = 4  # fields of one other writer
_WRITER_STATES = {
    WriterPhase.IDLE: "healthy",
    WriterPhase.PENDING: "probing",
    WriterPhase.WRITING: "probing",
    WriterPhase.IN_CONFLICT: "suspect",
    WriterPhase.FORBIDDEN: "failed",
    WriterPhase.REFUSED: "failed",
}
_FOLLOWING_PHASES = (WatchPhase.WATCHING, WatchPhase.LISTING)


def cluster_section(snapshot: NodeSnapshot, now_s: float, wall_s: float) -> str:
    """Return the sources, the written objects with their conflicts, and wrong NodeSLO values.

    Nothing in standalone mode.
    """
    status = snapshot.cluster_service
    if status is None:
        return ""
    rows = [_server_row(status, now_s), *(_watch_row(watch, now_s) for watch in status.watches)]
    if status.kubelet is not None:
        pods = status.kubelet.pods
        tone = "healthy" if pods == "ok" else "suspect"
        rows.append(["kubelet", badge(tone, pods), text(status.kubelet.detail)])
    rows.append(_slo_row(snapshot.cluster, status, now_s))
    written = [_object_row(state, wall_s) for state in status.writers]
    names = ("object", "state", "acknowledged", "writes", "why", "other writers")
    return section(
        "cluster",
        "Cluster",
        grid(("source", "state", "what it says"), rows, "What the agent hears"),
        grid(names, written, "What the agent writes") if written else "",
        _refused_values(snapshot.cluster),
    )


def _server_row(status: ClusterServiceStatus, now_s: float) -> list[str]:
    state = status.session
    if state.reachable is None:
        return ["API server", badge("unmanaged", "not asked yet"), "–"]
    message = f"answered {_ago(state.last_answer_s, now_s)}"
    if not state.reachable:
        message = f"{state.last_error}; {message}"
    if state.clock_skew_s:
        message += f"; its clock is {state.clock_skew_s:+.0f} s from ours"
    tone = badge("healthy", "answers") if state.reachable else badge("failed", "away")
    return ["API server", tone, text(message)]


def _watch_row(state: WatchStatus, now_s: float) -> list[str]:
    tone = "healthy" if state.phase in _FOLLOWING_PHASES and not state.last_error else "suspect"
    if state.phase is WatchPhase.ABSENT:
        tone = "unmanaged"
    message = f"{state.objects} {'object' if state.objects == 1 else 'objects'}"
    message += f", heard {_ago(state.contact_s(now_s), now_s)}"
    if state.malformed:
        message += f"; {state.malformed} times something that could not be read"
    if state.last_error:
        message += f"; {state.last_error}"
    return [text(state.resource), badge(tone, state.phase.value), text(message)]


def _slo_row(cluster: ClusterView, status: ClusterServiceStatus, now_s: float) -> list[str]:
    view, part = cluster.slo.value, cluster.slo
    frozen = is_frozen(part, now_s, status.slo_stale_s)
    message = f"confirmed {_ago(part.taken_s, now_s)}"
    if view.found:
        message = f"version {view.resource_version or '?'}, {message}"
        message += f"; refused values: {view.refused_count}, unknown fields: {view.unknown_fields}"
    if view.problem:
        message += f"; a newer one cannot be used: {view.problem}"
    tone = "in force" if view.found else "none: defaults"
    return [
        "NodeSLO",
        badge("suspect", f"{tone}, frozen") if frozen else badge("healthy", tone),
        text(message),
    ]


def _object_row(state: WriterState, wall_s: float) -> list[str]:
    error = state.phase is WriterPhase.PENDING and state.error
    tone = "suspect" if error else _WRITER_STATES.get(state.phase, "unmanaged")
    return [
        text(state.kind) + tag("div", text(state.publisher), class_="quiet"),
        badge(tone, state.phase.value),
        text(_ago(state.last_ack_s, wall_s)),
        text(state.written),
        text(state.error),
        "".join(tag("div", text(_conflict_text(rival, wall_s))) for rival in state.conflicts)
        or "–",
    ]


def _conflict_text(rival: FieldConflict, wall_s: float) -> str:
    more = len(rival.fields) - MAX_CONFLICT_FIELDS
    fields = ", ".join(rival.fields[:MAX_CONFLICT_FIELDS]) + (
        f" and {more} more" if more > 0 else ""
    )
    return f"{rival.manager}: {fields} ({_ago(rival.time_s, wall_s)})"


def _refused_values(cluster: ClusterView) -> str:
    view = cluster.slo.value
    if not view.refused:
        return ""
    rows = [[tag("code", text(one.path)), text(one.why)] for one in view.refused]
    more = view.refused_count - len(rows)
    caption = "Values of the NodeSLO that are not used" + (f" (and {more} more)" if more else "")
    return grid(("value", "why"), rows, caption)


def _ago(at_s: float | None, now_s: float) -> str:
    return "never" if at_s is None else f"{max(0.0, now_s - at_s):.0f} s ago"
