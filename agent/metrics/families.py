"""Every metric family that the agent exports; vendors declare theirs in `metrics.py`.

Names follow Prometheus' rules: base units, `_total` on counters only, ratios from 0 to 1. A name
and its labels are stable within one stability level.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class ExportedFamily(msgspec.Struct, frozen=True, kw_only=True):
    """One family. `info` becomes a gauge that is always 1 in the format without infos."""

    name: str  # name of the samples
    type: str  # gauge, counter, info
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""  # a suffix of the name, before `_total`
    stability: str = "beta"
    alias_of: str = ""  # the agent's family that this one repeats under another name


NODE = ("node",)
POD = (*NODE, "namespace", "pod", "pod_uid")
CONTAINER = (*POD, "container", "container_id")
HOST_APPLICATION = (*NODE, "application")
DEVICE_POD = ("namespace", "pod", "container", "pod_uid")  # of the pod that uses a device
DEVICE = (*NODE, "vendor", "minor", "uuid", "model", "bus_id", *DEVICE_POD)
PROCESS = ("pid",)
ENGINE = ("engine",)
RDMA_DEVICE = (*NODE, "device", *DEVICE_POD)  # what every series of a vendor has for RDMA
POD_UID = "pod_uid"  # a label of a vendor's families that are about one pod each
POD_NAME = ("namespace", "pod")
PRESSURE = ("resource", "degree")
# of a fault of a device, or of a slice, whose uuid is then that of the slice
FAULT = ("device", "minor", "uuid", "class", "reason", "action", "severity")
SNAPSHOT_PART = (*NODE, "part")
VENDOR = (*NODE, "vendor")
PREDICTOR = (*NODE, "predictor")  # pods, classes, or nodemetric: the published combination
PUBLISHER = (*NODE, "publisher")
_Row = tuple[str, str, tuple[str, ...], str, str]  # name, type, labels, unit, help

_AGENT: tuple[_Row, ...] = (
    ("build_info", "info", (*NODE, "version", "python"), "", "Version of the running agent."),
    (
        *("ready", "gauge", NODE, ""),
        "Whether every check holds that readiness depends on, as `/readyz` answers.",
    ),
    (
        *("self_check", "gauge", (*NODE, "check"), ""),
        "Whether a check of the agent on itself holds; `/healthz?verbose` has the reasons.",
    ),
    (
        *("problems", "gauge", (*NODE, "severity"), ""),
        "Things that are wrong on the node, as the page lists them, by severity.",
    ),
    (
        "snapshot_part_age_seconds",
        "gauge",
        SNAPSHOT_PART,
        "seconds",
        "Age of a part of the snapshot.",
    ),
    (
        "snapshot_part_failed",
        "gauge",
        SNAPSHOT_PART,
        "",
        "Whether the last attempt to renew a part of the snapshot failed.",
    ),
    (
        "host_read_errors_total",
        "counter",
        (*NODE, "errno"),
        "",
        "Reads of the host's files for CPUs, memory nodes and PCI that the kernel refused.",
    ),
    ("uevents_heard", "gauge", NODE, "", "Whether the kernel tells of devices; else we poll."),
    ("uevents_total", "counter", (*NODE, "subsystem"), "", "Events of devices from the kernel."),
    (
        *("uevents_dropped_total", "counter", (*NODE, "reason"), ""),
        "Messages that were no events of the kernel, or too odd ones.",
    ),
    ("host_looks_total", "counter", (*NODE, "cause"), "", "Looks at the host because of events."),
    (
        "vendor_state",
        "gauge",
        (*VENDOR, "state"),
        "",
        "State of a vendor's worker process: 1 for the one it is in.",
    ),
    ("vendor_restarts_total", "counter", VENDOR, "", "Restarts of a vendor's worker process."),
    (
        "vendor_recycles_total",
        "counter",
        VENDOR,
        "",
        "Worker processes replaced in good order, for their memory or an upgraded library.",
    ),
    (
        "vendor_inventory_age_seconds",
        "gauge",
        VENDOR,
        "seconds",
        "Age of what a vendor's worker said last about its devices.",
    ),
    (
        "vendor_sample_age_seconds",
        "gauge",
        VENDOR,
        "seconds",
        "Age of a vendor's last device samples.",
    ),
    (
        "vendor_problem",
        "gauge",
        (*VENDOR, "reason"),
        "",
        "1 for each thing that is wrong with a vendor as a whole.",
    ),
    (
        "devices_unpublished",
        "gauge",
        (*NODE, "reason"),
        "",
        "Devices that are not in the Device object, by reason.",
    ),
    ("publisher_success", "gauge", PUBLISHER, "", "Whether a publisher's last run succeeded."),
    (
        "publisher_duration_seconds",
        "gauge",
        PUBLISHER,
        "seconds",
        "Duration of a publisher's last run.",
    ),
    (
        "publisher_last_success_timestamp_seconds",
        "gauge",
        PUBLISHER,
        "seconds",
        "Unix time of a publisher's last success.",
    ),
    (
        "publisher_objects_total",
        "counter",
        (*PUBLISHER, "result"),
        "",
        "Objects that a publisher rendered: written, unchanged or failed.",
    ),
)

_NODE: tuple[_Row, ...] = (
    ("boot_time_seconds", "gauge", NODE, "seconds", "Unix time of the node's start."),
    ("cpus", "gauge", NODE, "", "Usable logical CPUs."),
    ("cpu_usage_cores", "gauge", NODE, "cores", "CPU in use, in cores."),
    ("cpu_seconds_total", "counter", NODE, "seconds", "CPU time used by the whole node."),
    ("memory_bytes", "gauge", NODE, "bytes", "Memory of the node."),
    ("memory_used_bytes", "gauge", NODE, "bytes", "Memory in use, without page cache."),
    (
        "memory_used_with_cache_bytes",
        "gauge",
        NODE,
        "bytes",
        "Memory in use, with page cache.",
    ),
    (
        "system_cpu_usage_cores",
        "gauge",
        NODE,
        "cores",
        "CPU in use by what is in no pod and no host application, in cores.",
    ),
    (
        "system_memory_used_bytes",
        "gauge",
        NODE,
        "bytes",
        "Memory in use by what is in no pod and no host application.",
    ),
    (
        "numa_cpu_usage_cores",
        "gauge",
        (*NODE, "numa_node"),
        "cores",
        "CPU in use on a memory node's CPUs, in cores.",
    ),
    (
        "numa_memory_used_bytes",
        "gauge",
        (*NODE, "numa_node"),
        "bytes",
        "Memory in use on a memory node, without page cache.",
    ),
    (
        "numa_pods_memory_used_bytes",
        "gauge",
        (*NODE, "numa_node"),
        "bytes",
        "Memory in use by pods on a memory node, with page cache.",
    ),
    (
        "prod_reclaimable_cpu_cores",
        "gauge",
        PREDICTOR,
        "cores",
        "CPU that pods of production are predicted to leave of their requests.",
    ),
    (
        "prod_reclaimable_memory_bytes",
        "gauge",
        PREDICTOR,
        "bytes",
        "Memory that pods of production are predicted to leave of their requests.",
    ),
    (
        "prod_peak_cpu_cores",
        "gauge",
        PREDICTOR,
        "cores",
        "Predicted peak of production's CPU usage, with the safety margin.",
    ),
    (
        "prod_peak_memory_bytes",
        "gauge",
        PREDICTOR,
        "bytes",
        "Predicted peak of production's memory usage, with the safety margin.",
    ),
    (
        "prediction_pods",
        "gauge",
        (*NODE, "state"),
        "",
        "Pods of production: predicted, or cold (too young, so that their requests count as used).",
    ),
    (
        "prediction_failed",
        "gauge",
        NODE,
        "",
        "Whether nothing can be predicted: NodeMetric's prodReclaimableMetric is empty.",
    ),
)

_GROUP: tuple[_Row, ...] = (  # of pods, containers and host applications
    ("cpu_usage_cores", "gauge", (), "cores", "CPU in use, in cores."),
    ("cpu_seconds_total", "counter", (), "seconds", "CPU time used."),
    ("memory_used_bytes", "gauge", (), "bytes", "Memory in use, without page cache."),
    ("memory_used_with_cache_bytes", "gauge", (), "bytes", "Memory in use, with page cache."),
    ("cpu_periods_total", "counter", (), "", "Enforcement periods of the CPU limit."),
    (
        "cpu_throttled_periods_total",
        "counter",
        (),
        "",
        "Enforcement periods in which the CPU limit was hit.",
    ),
    (
        "cpu_throttled_ratio",
        "gauge",
        (),
        "ratio",
        "Throttled periods to periods in the last cycle.",
    ),
)

_PRESSURE: tuple[_Row, ...] = (  # of the node, pods and containers
    (
        "pressure_ratio",
        "gauge",
        PRESSURE,
        "ratio",
        "Share of the last 10 s in which some or all tasks waited for a resource.",
    ),
    (
        "pressure_waiting_seconds_total",
        "counter",
        PRESSURE,
        "seconds",
        "Time in which some or all tasks waited for a resource.",
    ),
)

_DEVICE: tuple[_Row, ...] = (
    (
        "info",
        "info",
        (*DEVICE, "type", "numa_node", "pcie_root", "driver_version", "managed"),
        "",
        "A device: where it sits and who drives it.",
    ),
    ("healthy", "gauge", DEVICE, "", "Whether a device is in service."),
    (
        *("readings_rejected_total", "counter", (*VENDOR, "family"), ""),
        "Readings that cannot be true and were left out, by family or by call of the library.",
    ),
    (
        "health_state",
        "gauge",
        (*DEVICE, "state"),
        "",
        "State of a device's health: 1 for the one it is in.",
    ),
    (
        "health_reason",
        "gauge",
        (*DEVICE, "state", "reason"),
        "",
        "Always 1: why a device is not healthy, and its state.",
    ),
    (
        *("fault", "gauge", (*NODE, *FAULT), ""),
        "Always 1: a fault of a device or of a slice of it, its class and the recommended action "
        "(none, look, reset, drain-and-reset, reboot, replace).",
    ),
    (
        "pod_unknown",
        "gauge",
        (*(name for name in DEVICE if name != "container"), "reason"),
        "",
        "Always 1: why a device's series lack labels of a pod: no pod, one that is not listed, or "
        "several containers, any of which may use the device.",
    ),
    (
        "link_degraded",
        "gauge",
        DEVICE,
        "",
        "Whether a device's PCIe link is slower or narrower than it could be.",
    ),
    (
        *("pcie_link_lanes", "gauge", (*DEVICE, "kind"), ""),
        "Lanes of a device's PCIe link, now and at most.",
    ),
    (
        *("pcie_link_generation", "gauge", (*DEVICE, "kind"), ""),
        "Generation of PCIe at which a device's link runs, now and at most.",
    ),
    ("memory_total_bytes", "gauge", DEVICE, "bytes", "Memory of a device."),
    ("memory_used_bytes", "gauge", DEVICE, "bytes", "Memory in use on a device."),
    ("utilization_ratio", "gauge", DEVICE, "ratio", "Busy time of a device."),
    ("processes", "gauge", DEVICE, "", "Host processes that use a device."),
    (
        *("process_memory_used_bytes", "gauge", (*DEVICE, *PROCESS), "bytes"),
        "Memory of a device that one process uses; labels of a pod are those of its own pod.",
    ),
    (
        *("process_utilization_ratio", "gauge", (*DEVICE, *PROCESS), "ratio"),
        "Share of a device that one process keeps busy; labels of a pod are those of its own pod.",
    ),
    (
        *("process_virtual_memory_bytes", "gauge", (*DEVICE, *PROCESS), "bytes"),
        "Address space of a device that one process has reserved.",
    ),
    (
        *("process_engine_ratio", "gauge", (*DEVICE, *PROCESS, *ENGINE), "ratio"),
        "Share of a unit of a device, as a codec, that one process keeps busy.",
    ),
    (
        *("pod_memory_used_bytes", "gauge", DEVICE, "bytes"),
        "Memory of a device that the processes of one container use together.",
    ),
    (
        *("pod_utilization_ratio", "gauge", DEVICE, "ratio"),
        "Share of a device that the processes of one container keep busy together.",
    ),
    ("mps_servers", "gauge", DEVICE, "", "MPS servers at work for a card that has a daemon."),
)


# what dashboards and alerts may rely on
STABLE = frozenset(
    {
        "xpu_agent_build_info",
        "xpu_agent_problems",
        "xpu_device_fault",
        "xpu_device_healthy",
        "xpu_device_health_reason",
        "xpu_device_health_state",
        "xpu_device_info",
        "xpu_device_memory_total_bytes",
        "xpu_device_memory_used_bytes",
        "xpu_device_utilization_ratio",
        *(
            f"xpu_{scope}_{name}"
            for scope in ("node", "pod", "container")
            for name in ("cpu_usage_cores", "cpu_seconds_total", "memory_used_bytes")
        ),
        "xpu_node_memory_bytes",
        *(
            f"xpu_{scope}_pressure_{name}"
            for scope in ("node", "pod", "container")
            for name in ("ratio", "waiting_seconds_total")
        ),
        *(
            f"xpu_{scope}_cpu_{name}_total"
            for scope in ("pod", "container")
            for name in ("periods", "throttled_periods")
        ),
    }
)


def _families(
    prefix: str, rows: tuple[_Row, ...], stability: str, scope: tuple[str, ...] = ()
) -> tuple[ExportedFamily, ...]:
    return tuple(
        ExportedFamily(
            name=f"{prefix}_{name}",
            type=kind,
            help=text,
            labels=(*scope, *labels),
            unit=unit,
            stability="stable" if f"{prefix}_{name}" in STABLE else stability,
        )
        for name, kind, labels, unit, text in rows
    )


FAMILIES: tuple[ExportedFamily, ...] = (
    *_families("xpu_agent", _AGENT, "beta"),
    *_families("xpu_node", _NODE, "beta"),
    *_families("xpu_node", _PRESSURE, "beta", NODE),
    *_families("xpu_pod", (*_GROUP, *_PRESSURE), "beta", POD),
    *_families("xpu_container", (*_GROUP, *_PRESSURE), "beta", CONTAINER),
    *_families("xpu_host_application", _GROUP, "beta", HOST_APPLICATION),
    *_families("xpu_device", _DEVICE, "beta"),
    ExportedFamily(
        name="xpu_gpudirect_ready",
        type="gauge",
        help="Whether a GPU and a NIC exchange data without the host's memory, at full speed.",
        labels=("node", "gpu", "rdma"),
    ),
)


_WORKER: tuple[_Row, ...] = (
    ("worker_resident_memory_bytes", "gauge", VENDOR, "bytes", "Memory of a vendor's worker."),
    ("worker_cpu_seconds_total", "counter", VENDOR, "seconds", "CPU time of a vendor's worker."),
    ("worker_open_fds", "gauge", VENDOR, "", "Open file descriptors of a vendor's worker."),
    ("worker_threads", "gauge", VENDOR, "", "Threads of a vendor's worker."),
    (
        *("event_loop_lateness_seconds", "histogram", NODE, "seconds"),
        "By how much the agent's event loop was late; a request waits at least that long.",
    ),
)
_ACCESS: tuple[_Row, ...] = (
    (
        *("metrics_requests_total", "counter", ("node", "result"), ""),
        "Requests for /metrics by the result of the access check; 0 without a check.",
    ),
    (
        *("metrics_access_stale", "gauge", NODE, ""),
        "1 while changed files of metrics.tls or metrics.web_config_file cannot be used.",
    ),
    (
        *("metrics_certificate_expiry_timestamp_seconds", "gauge", NODE, "seconds"),
        "Unix time at which the certificate of /metrics expires.",
    ),
)
_PROCESS: tuple[_Row, ...] = (  # as in every Prometheus client
    ("virtual_memory_bytes", "gauge", (), "bytes", "Virtual memory of the agent's process."),
    ("resident_memory_bytes", "gauge", (), "bytes", "Resident memory of the agent's process."),
    ("start_time_seconds", "gauge", (), "seconds", "Unix time of the agent's start."),
    ("cpu_seconds_total", "counter", (), "seconds", "CPU time of the agent's process."),
    ("open_fds", "gauge", (), "", "Open file descriptors of the agent's process."),
    ("max_fds", "gauge", (), "", "File descriptors that the agent's process may have."),
)
PROCESS_FAMILIES: tuple[ExportedFamily, ...] = (  # of the registry in `process_metrics`
    *_families("xpu_agent", _WORKER, "beta"),
    *_families("xpu_agent", _ACCESS, "beta"),
    *_families("process", _PROCESS, "stable"),
)


def reference_rows(families: Iterable[ExportedFamily]) -> list[dict[str, object]]:
    """Return the rows of the reference table, by name."""
    return [
        {
            "name": family.name,
            "type": family.type,
            "labels": ",".join(family.labels),
            "unit": family.unit or None,
            "stability": family.stability,
            "alias_of": family.alias_of or None,
            "help": family.help,
        }
        for family in sorted(families, key=lambda family: family.name)
    ]
