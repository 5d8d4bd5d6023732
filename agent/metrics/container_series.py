"""Series of the container runtime, hooks, the device plug-in, files of pods and verification."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from agent.metrics.families import NODE, ExportedFamily
from agent.metrics.text_format import SeriesLines, format_value, label_pairs, sample_line
from agent.snapshot.allocation import VerificationStatus
from agent.snapshot.container import ContainerServiceStatus
from agent.snapshot.device_plugin import ResourceStatistics
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import Counts, Histogram

PREFIX = "xpu_agent_"
METHOD, HOOK, RESOURCE = (*NODE, "method"), (*NODE, "hook"), (*NODE, "resource")
_Row = tuple[str, str, tuple[str, ...], str, str]  # name, type, labels, unit, help
_ROWS: tuple[_Row, ...] = (
    (
        *("runtime_state", "gauge", (*NODE, "state"), ""),
        "How the agent stands with the container runtime: 1 for the state it is in.",
    ),
    (
        *("runtime_requests_total", "counter", (*METHOD, "result"), ""),
        "Questions of the container runtime; late: answered by the budget, without the hooks.",
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
CONTAINER_FAMILIES: tuple[ExportedFamily, ...] = tuple(
    ExportedFamily(name=f"{PREFIX}{name}", type=kind, help=text, labels=labels, unit=unit)
    for name, kind, labels, unit, text in _ROWS
)
RUNTIME_STATES = ("off", "waiting", "refused", "registered", "synchronized")


def container_series(snapshot: NodeSnapshot, label_prefix: str) -> SeriesLines:
    """Yield the families; none for a command that reads the host once."""
    status = snapshot.container_service
    if status is None:
        return
    yield from _runtime(snapshot, status, label_prefix)
    yield from _hooks(status, label_prefix)
    yield from _allocations(snapshot, label_prefix)
    yield from _device_plugin(snapshot, status.plugin, label_prefix)
    yield (
        f"{PREFIX}pod_files_written_total",
        [sample_line(f"{PREFIX}pod_files_written_total", label_prefix, status.files_written)],
    )
    unwritten = () if status.files_left is None else (status.files_left,)
    yield (
        f"{PREFIX}pod_files_left",
        [sample_line(f"{PREFIX}pod_files_left", label_prefix, value) for value in unwritten],
    )
    name = f"{PREFIX}slices_reclaimed_total"
    yield name, [sample_line(name, label_prefix, status.reclaimed)]


def _runtime(
    snapshot: NodeSnapshot, status: ContainerServiceStatus, label_prefix: str
) -> SeriesLines:
    name, state = f"{PREFIX}runtime_state", snapshot.runtime.value.state
    states = [(label_pairs(("state",), (key,)), int(key == state)) for key in RUNTIME_STATES]
    yield name, [sample_line(name, label_prefix, value, extra) for extra, value in states]
    if status.nri is None:
        return
    methods = status.nri.methods
    name = f"{PREFIX}runtime_requests_total"
    yield (
        name,
        [
            sample_line(
                name,
                label_prefix,
                count,
                label_pairs(("method", "result"), (method.method, result)),
            )
            for method in methods
            for result, count in method.results
        ],
    )
    name = f"{PREFIX}runtime_request_seconds"
    yield (
        name,
        [
            text
            for method in methods
            for text in histogram_lines(
                name,
                label_prefix,
                label_pairs(("method",), (method.method,)),
                method.latency,
            )
        ],
    )
    name = f"{PREFIX}runtime_connections_total"
    yield name, [sample_line(name, label_prefix, status.nri.connections)]
    yield from _counts("runtime_ends_total", "reason", status.nri.ends, label_prefix)
    name = f"{PREFIX}runtime_adjustments_total"
    yield name, [sample_line(name, label_prefix, status.nri.adjustments)]
    name = f"{PREFIX}runtime_updates_total"
    yield name, [sample_line(name, label_prefix, status.nri.updates)]
    counts = (
        ("unknown_methods", status.nri.unknown_methods),
        ("oversized", status.nri.oversized),
        ("left_out", status.nri.dropped),
    )
    yield from _counts("runtime_oddities_total", "kind", counts, label_prefix)


def _hooks(status: ContainerServiceStatus, label_prefix: str) -> SeriesLines:
    rows = [(label_pairs(("hook",), (row.hook,)), row) for row in status.hooks]
    name = f"{PREFIX}hook_calls_total"
    yield name, [sample_line(name, label_prefix, row.calls, extra) for extra, row in rows]
    name = f"{PREFIX}hook_seconds_total"
    yield (
        name,
        [sample_line(name, label_prefix, round(row.spent_s, 6), extra) for extra, row in rows],
    )
    name = f"{PREFIX}hook_failures_total"
    yield name, [sample_line(name, label_prefix, row.failures, extra) for extra, row in rows]
    name = f"{PREFIX}hook_planned_total"
    yield name, [sample_line(name, label_prefix, row.planned, extra) for extra, row in rows]
    yield from _counts("container_refusals_total", "reason", status.refusals, label_prefix)


def _allocations(snapshot: NodeSnapshot, label_prefix: str) -> SeriesLines:
    allocations = snapshot.allocations.value.pods.values()
    refused = sum(bool(allocation.refusal) for allocation in allocations)
    counts = (("held", len(allocations) - refused), ("refused", refused))
    yield from _counts("grants", "state", counts, label_prefix)
    verifications = snapshot.verification.value.containers
    name = f"{PREFIX}allocation_verified"
    yield (
        name,
        [
            sample_line(
                name,
                label_prefix,
                int(verification.verdict is VerificationStatus.VERIFIED),
                label_pairs(
                    ("namespace", "pod", "container"),
                    (verification.namespace, verification.pod, verification.container),
                ),
            )
            for _, verification in sorted(verifications.items())
            if verification.verdict is not VerificationStatus.UNKNOWN
        ],
    )
    verdict_counts = Counter(verification.verdict for verification in verifications.values())
    verdicts = tuple((verdict.value, verdict_counts[verdict]) for verdict in VerificationStatus)
    yield from _counts("allocations", "verdict", verdicts, label_prefix)


def _device_plugin(
    snapshot: NodeSnapshot, statistics: Iterable[ResourceStatistics], label_prefix: str
) -> SeriesLines:
    resources = snapshot.served.value.resources
    name = f"{PREFIX}deviceplugin_state"
    yield (
        name,
        [
            sample_line(
                name,
                label_prefix,
                1,
                label_pairs(("resource", "state"), (resource.name, resource.state)),
            )
            for resource in resources
        ],
    )
    name = f"{PREFIX}deviceplugin_devices"
    health_counts = [
        (resource.name, health, count)
        for resource in resources
        for health, count in (
            ("healthy", resource.healthy),
            ("unhealthy", resource.devices - resource.healthy),
        )
    ]
    keys = ("resource", "health")
    yield (
        name,
        [
            sample_line(name, label_prefix, count, label_pairs(keys, (r, h)))
            for r, h, count in health_counts
        ],
    )
    plugin_view = snapshot.served.value
    for short, counts in (
        ("withdrawn", [(resource.name, len(resource.withdrawn_ids)) for resource in resources]),
        (
            "exchanged",
            [(resource.name, len(plugin_view.exchanges(resource.name))) for resource in resources],
        ),
    ):
        name = f"{PREFIX}deviceplugin_devices_{short}"
        yield (
            name,
            [
                sample_line(name, label_prefix, n, label_pairs(("resource",), (r,)))
                for r, n in counts
            ],
        )
    statistics = tuple(statistics)
    if not statistics:
        return
    for short, rows in (
        ("deviceplugin_allocations_total", [(f.name, f.allocations) for f in statistics]),
        ("deviceplugin_registrations_total", [(f.name, f.registrations) for f in statistics]),
    ):
        name = f"{PREFIX}{short}"
        yield (
            name,
            [
                sample_line(
                    name,
                    label_prefix,
                    count,
                    label_pairs(("resource", "result"), (resource, result)),
                )
                for resource, counts in rows
                for result, count in counts
            ],
        )
    name = f"{PREFIX}deviceplugin_allocation_seconds"
    yield (
        name,
        [
            text
            for counters in statistics
            for text in histogram_lines(
                name,
                label_prefix,
                label_pairs(("resource",), (counters.name,)),
                counters.latency,
            )
        ],
    )


def _counts(short: str, label: str, counts: Counts, label_prefix: str) -> SeriesLines:
    name = f"{PREFIX}{short}"
    yield (
        name,
        [
            sample_line(name, label_prefix, count, label_pairs((label,), (key,)))
            for key, count in counts
        ],
    )


def histogram_lines(
    name: str,
    label_prefix: str,
    extra: str,
    histogram: Histogram,
) -> Iterable[str]:
    """Yield the lines of one histogram; `extra` are its labels beside those of every sample."""
    comma = "," if extra else ""
    bounds = (*histogram.bounds, float("inf"))
    for bound, count in zip(bounds, histogram.buckets, strict=True):
        yield sample_line(
            f"{name}_bucket",
            label_prefix,
            count,
            f'{extra}{comma}le="{format_value(float(bound))}"',
        )
    yield sample_line(f"{name}_sum", label_prefix, round(histogram.sum_s, 6), extra)
    yield sample_line(f"{name}_count", label_prefix, histogram.buckets[-1], extra)
