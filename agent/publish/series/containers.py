"""Samples of the way into containers: the runtime, hooks, the kubelet's plug-in, files, proof."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from agent.model.grant.proof import Verdict
from agent.model.snapshot import Counts, NodeSnapshot
from agent.publish.families import NODE, Family
from agent.publish.series.text import Series, line, number, pairs

if TYPE_CHECKING:
    from agent.deviceplugin.serve.figures import ResourceFigures
    from agent.nri.figures import NriState

P = "xpu_agent_"
METHOD, HOOK, RESOURCE = (*NODE, "method"), (*NODE, "hook"), (*NODE, "resource")
_Row = tuple[str, str, tuple[str, ...], str, str]  # name, type, labels, unit, help
_ROWS: tuple[_Row, ...] = (
    (
        *("runtime_state", "gauge", (*NODE, "state"), ""),
        "How the agent stands with the container runtime: 1 for the state it is in.",
    ),
    (
        *("runtime_requests_total", "counter", (*METHOD, "result"), ""),
        "Questions of the container runtime; late: answered with no change by the budget.",
    ),
    (
        *("runtime_request_seconds", "histogram", METHOD, "seconds"),
        "Time from the arrival of a question of the runtime until its answer was written.",
    ),
    ("runtime_connections_total", "counter", NODE, "", "Connections to the runtime's socket."),
    (
        *("runtime_ends_total", "counter", (*NODE, "reason"), ""),
        "Connections to the runtime, and tries of one, that ended.",
    ),
    ("runtime_adjustments_total", "counter", NODE, "", "Containers changed at their creation."),
    (
        "runtime_updates_total",
        "counter",
        NODE,
        "",
        "Updates of running containers that we changed.",
    ),
    (
        *("runtime_oddities_total", "counter", (*NODE, "kind"), ""),
        "Unknown methods, oversized messages, and pods and containers that could not be read.",
    ),
    ("hook_calls_total", "counter", HOOK, "", "Questions that a hook was asked."),
    ("hook_seconds_total", "counter", HOOK, "seconds", "Time that a hook took."),
    ("hook_failures_total", "counter", HOOK, "", "Answers that a bug of a hook cost."),
    (
        *("hook_planned_total", "counter", HOOK, ""),
        "Changes that a hook in plan mode would have made.",
    ),
    (
        *("container_refusals_total", "counter", (*NODE, "reason"), ""),
        "Containers that were kept from starting without what their pod was granted.",
    ),
    ("grants", "gauge", (*NODE, "state"), "", "Pods with a grant that is held, or was refused."),
    (
        *("allocation_verified", "gauge", (*NODE, "namespace", "pod", "container"), ""),
        "Whether a running container has what was granted and nothing else; absent: not known. "
        "0 also of a container without devices of its own that has a card of another pod.",
    ),
    (
        *("allocations", "gauge", (*NODE, "verdict"), ""),
        "Running containers by what a look into them found: all that have a grant or a device of "
        "the agent's device plug-in, and others that have a card of another pod.",
    ),
    (
        *("deviceplugin_state", "gauge", (*RESOURCE, "state"), ""),
        "How a resource stands with the kubelet: 1 for the state it is in.",
    ),
    ("deviceplugin_devices", "gauge", (*RESOURCE, "health"), "", "Devices told to the kubelet."),
    (
        *("deviceplugin_devices_withdrawn", "gauge", RESOURCE, ""),
        "Devices told to the kubelet as unhealthy because they are in use by pods whose device the "
        "kubelet does not account, and nothing can be exchanged for them.",
    ),
    (
        *("deviceplugin_devices_exchanged", "gauge", RESOURCE, ""),
        "Devices that containers without a grant have in place of those that the kubelet accounts.",
    ),
    (
        *("deviceplugin_allocations_total", "counter", (*RESOURCE, "result"), ""),
        "Allocations that the kubelet asked for.",
    ),
    (
        *("deviceplugin_allocation_seconds", "histogram", RESOURCE, "seconds"),
        "Time that an allocation took.",
    ),
    (
        *("deviceplugin_registrations_total", "counter", (*RESOURCE, "result"), ""),
        "Registrations with the kubelet.",
    ),
    ("pod_files_written_total", "counter", NODE, "", "Files of pods that were changed."),
    ("pod_files_left", "gauge", NODE, "", "Files of pods that are not as wanted."),
    ("slices_reclaimed_total", "counter", NODE, "", "Slices taken back from pods that are gone."),
)
CONTAINER_FAMILIES: tuple[Family, ...] = tuple(
    Family(name=f"{P}{name}", type=kind, help=text, labels=labels, unit=unit)
    for name, kind, labels, unit, text in _ROWS
)
RUNTIME_STATES = ("off", "waiting", "refused", "registered", "synchronized")


class HookRow(msgspec.Struct, frozen=True, kw_only=True):
    """One hook's counters since the agent's start."""

    hook: str
    calls: int = 0
    spent_s: float = 0.0
    failures: int = 0
    planned: int = 0


class ContainerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How every part of the way into containers does at one moment."""

    nri: NriState | None = None  # None: the runtime is not dialled
    hooks: tuple[HookRow, ...] = ()  # by name
    refusals: Counts = ()  # by reason
    plugin: tuple[ResourceFigures, ...] = ()
    files_written: int = 0
    files_left: int | None = None  # None: no cycle yet
    reclaimed: int = 0


def container_series(snapshot: NodeSnapshot, status: ContainerStatus | None, opened: str) -> Series:
    """Yield the families; none of a command that looks once."""
    if status is None:
        return
    yield from _runtime(snapshot, status, opened)
    yield from _hooks(status, opened)
    yield from _grants(snapshot, opened)
    yield from _plugin(snapshot, status.plugin, opened)
    yield (
        f"{P}pod_files_written_total",
        [line(f"{P}pod_files_written_total", opened, status.files_written)],
    )
    left = () if status.files_left is None else (status.files_left,)
    yield f"{P}pod_files_left", [line(f"{P}pod_files_left", opened, value) for value in left]
    name = f"{P}slices_reclaimed_total"
    yield name, [line(name, opened, status.reclaimed)]


def _runtime(snapshot: NodeSnapshot, status: ContainerStatus, opened: str) -> Series:
    name, now = f"{P}runtime_state", snapshot.runtime.value.state
    states = [(pairs(("state",), (key,)), int(key == now)) for key in RUNTIME_STATES]
    yield name, [line(name, opened, value, extra) for extra, value in states]
    if status.nri is None:
        return
    methods = status.nri.methods
    name = f"{P}runtime_requests_total"
    yield (
        name,
        [
            line(name, opened, count, pairs(("method", "result"), (one.method, result)))
            for one in methods
            for result, count in one.results
        ],
    )
    # imported here: an agent that dials no runtime does without
    from agent.nri.figures import BOUNDS_S  # noqa: PLC0415 - see above

    name = f"{P}runtime_request_seconds"
    yield (
        name,
        [
            text
            for one in methods
            for text in _histogram(
                name, opened, pairs(("method",), (one.method,)), BOUNDS_S, one.buckets, one.sum_s
            )
        ],
    )
    name = f"{P}runtime_connections_total"
    yield name, [line(name, opened, status.nri.connections)]
    yield from _counts("runtime_ends_total", "reason", status.nri.ends, opened)
    name = f"{P}runtime_adjustments_total"
    yield name, [line(name, opened, status.nri.adjustments)]
    name = f"{P}runtime_updates_total"
    yield name, [line(name, opened, status.nri.updates)]
    odd = ("unknown_methods", "oversized", "left_out")
    counts = tuple((kind, getattr(status.nri, kind)) for kind in odd)
    yield from _counts("runtime_oddities_total", "kind", counts, opened)


def _hooks(status: ContainerStatus, opened: str) -> Series:
    rows = [(pairs(("hook",), (row.hook,)), row) for row in status.hooks]
    name = f"{P}hook_calls_total"
    yield name, [line(name, opened, row.calls, extra) for extra, row in rows]
    name = f"{P}hook_seconds_total"
    yield name, [line(name, opened, round(row.spent_s, 6), extra) for extra, row in rows]
    name = f"{P}hook_failures_total"
    yield name, [line(name, opened, row.failures, extra) for extra, row in rows]
    name = f"{P}hook_planned_total"
    yield name, [line(name, opened, row.planned, extra) for extra, row in rows]
    yield from _counts("container_refusals_total", "reason", status.refusals, opened)


def _grants(snapshot: NodeSnapshot, opened: str) -> Series:
    grants = snapshot.grants.value.pods.values()
    refused = sum(bool(grant.refusal) for grant in grants)
    counts = (("held", len(grants) - refused), ("refused", refused))
    yield from _counts("grants", "state", counts, opened)
    proofs = snapshot.proof.value.containers
    name = f"{P}allocation_verified"
    yield (
        name,
        [
            line(
                name,
                opened,
                int(proof.verdict is Verdict.VERIFIED),
                pairs(
                    ("namespace", "pod", "container"),
                    (proof.namespace, proof.pod, proof.container),
                ),
            )
            for _, proof in sorted(proofs.items())
            if proof.verdict is not Verdict.UNKNOWN
        ],
    )
    found = Counter(proof.verdict for proof in proofs.values())
    verdicts = tuple((verdict.value, found[verdict]) for verdict in Verdict)
    yield from _counts("allocations", "verdict", verdicts, opened)


def _plugin(snapshot: NodeSnapshot, figures: Iterable[ResourceFigures], opened: str) -> Series:
    resources = snapshot.served.value.resources
    name = f"{P}deviceplugin_state"
    yield (
        name,
        [
            line(name, opened, 1, pairs(("resource", "state"), (one.name, one.state)))
            for one in resources
        ],
    )
    name = f"{P}deviceplugin_devices"
    told = [
        (one.name, health, count)
        for one in resources
        for health, count in (("healthy", one.healthy), ("unhealthy", one.devices - one.healthy))
    ]
    keys = ("resource", "health")
    yield name, [line(name, opened, count, pairs(keys, (r, h))) for r, h, count in told]
    served = snapshot.served.value
    for short, counts in (
        ("withdrawn", [(one.name, len(one.withdrawn_ids)) for one in resources]),
        ("exchanged", [(one.name, len(served.exchanges(one.name))) for one in resources]),
    ):
        name = f"{P}deviceplugin_devices_{short}"
        yield name, [line(name, opened, n, pairs(("resource",), (r,))) for r, n in counts]
    figures = tuple(figures)
    if not figures:
        return
    # imported here: few agents serve the kubelet
    from agent.deviceplugin.serve.figures import BOUNDS_S  # noqa: PLC0415 - see above

    for short, rows in (
        ("deviceplugin_allocations_total", [(f.name, f.allocations) for f in figures]),
        ("deviceplugin_registrations_total", [(f.name, f.registrations) for f in figures]),
    ):
        name = f"{P}{short}"
        yield (
            name,
            [
                line(name, opened, count, pairs(("resource", "result"), (resource, result)))
                for resource, counts in rows
                for result, count in counts
            ],
        )
    name = f"{P}deviceplugin_allocation_seconds"
    yield (
        name,
        [
            text
            for one in figures
            for text in _histogram(
                name, opened, pairs(("resource",), (one.name,)), BOUNDS_S, one.buckets, one.sum_s
            )
        ],
    )


def _counts(short: str, label: str, counts: Counts, opened: str) -> Series:
    name = f"{P}{short}"
    yield name, [line(name, opened, count, pairs((label,), (key,))) for key, count in counts]


def _histogram(
    name: str,
    opened: str,
    extra: str,
    bounds: Sequence[float],
    buckets: Sequence[int],
    sum_s: float,
) -> Iterable[str]:
    """Yield the lines of one histogram; `buckets` add up, and have one more for the slowest."""
    for bound, count in zip((*bounds, float("inf")), buckets, strict=True):
        yield line(f"{name}_bucket", opened, count, f'{extra},le="{number(float(bound))}"')
    yield line(f"{name}_sum", opened, round(sum_s, 6), extra)
    yield line(f"{name}_count", opened, buckets[-1], extra)
