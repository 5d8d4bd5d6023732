"""A real Prometheus scrapes an agent under load, in both formats, and answers with data."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.agent import running
from tests.prometheus.forwarder import forwarding
from tests.prometheus.hosts import CONTAINERS, PODS, write_host_with_pods
from tests.prometheus.promtool import OWN_PREFIXES, is_about_name, lint
from tests.prometheus.server import Prometheus, needs_prometheus, running_prometheus

INTERVAL_S = 4  # of one target, and how long it may take: the machine of the tests may be busy
TARGETS = 10  # of each format: together they scrape the agent five times a second
FORMATS = ("text", "openmetrics")  # names of the jobs
CARDS, NICS = 8, 4

# recording rules as people have them, for our names and those of others
RULES = {
    "node:xpu_device_utilization:avg": (
        "avg by (node) (max by (node, uuid) (xpu_device_utilization_ratio))"
    ),
    "node:xpu_device_memory_used:ratio": (
        "sum by (node) (max by (node, uuid) (xpu_device_memory_used_bytes)) / "
        "sum by (node) (max by (node, uuid) (xpu_device_memory_total_bytes))"
    ),
    "namespace:xpu_pod_memory_used_bytes:sum": "sum by (node) (xpu_pod_memory_used_bytes)",
    "node:koordlet_pod_psi_cpu_some:max": (
        'max by (node) (koordlet_pod_psi{psi_resource_type="cpu", psi_degree="some"})'
    ),
    "node:koordlet_container_psi:count": "count by (node) (koordlet_container_psi)",
    "node:koordlet_node_system_memory:ratio": (
        'koordlet_node_metric_system_usage{resource="memory", unit="byte"} / on (instance, node) '
        'koordlet_node_metric_node_usage{resource="memory", unit="byte"}'
    ),
}
QUERIES = {  # expression, in which T selects a target, and how many series answer it
    "xpu_agent_build_info{T}": 1,
    "xpu_device_healthy{T} == 1": CARDS + NICS,
    'count by (state) (xpu_device_health_state{T, vendor="nvidia"}) == 8': 4,
    "rate(xpu_device_pcie_bytes_total{T}[1m])": 2 * CARDS,
    "rate(xpu_rdma_port_hw_total{T}[1m])": None,
    "xpu_device_power_watts{T} > 0": CARDS,
    'xpu_pod_memory_used_bytes{T, namespace="team-a", pod=~"train-.+"}': PODS,
    'xpu_container_memory_used_bytes{T, container="worker-1"}': PODS,
    'xpu_pod_pressure_ratio{T, resource="memory", degree="full"} == 0.0025': PODS,
    "rate(xpu_container_cpu_seconds_total{T}[1m])": PODS * CONTAINERS,
    "process_resident_memory_bytes{T} > 1e6": 1,
    "histogram_quantile(0.99, sum by (le) "
    "(rate(xpu_agent_event_loop_lateness_seconds_bucket{T}[1m])))": 1,
    "koordlet_node_used_memory_bytes{T}": 1,
    'koordlet_node_metric_node_usage{T, resource="memory", unit="byte"}': 1,
    'koordlet_node_metric_numa_node_usage{T, numa_node_id="3"}': None,
    'koordlet_pod_psi{T, psi_precision="avg10", pod_namespace="team-a"}': PODS * 6,
    'koordlet_container_psi{T, cpu_full_supported="true"} > 0': PODS * CONTAINERS * 6,
    "hami_host_gpu_memory_used_bytes{T}": CARDS,
    "HostGPUMemoryUsage{T}": CARDS,
    "hami_host_gpu_utilization_ratio{T}": CARDS,
    "node_infiniband_state_id{T}": NICS,
    "rate(node_infiniband_duplicate_requests_packets_total{T}[1m])": NICS,
    'xpu_node_shared_cpus{T, pool="be"} > 0': 1,
    "koordlet_cpuset_share_pool_cpu_cores{T} > 0": 1,
    'DCGM_FI_DEV_GPU_TEMP{T, gpu=~".+", Hostname=~".+"}': CARDS,
    "avg(DCGM_FI_DEV_GPU_UTIL{T})": 1,
    "sum(DCGM_FI_DEV_POWER_USAGE{T}) > 0": 1,
    "DCGM_FI_DEV_SM_CLOCK{T} * 1000000": CARDS,
    "sum(DCGM_FI_DEV_FB_USED{T}) / (sum(DCGM_FI_DEV_FB_USED{T}) + sum(DCGM_FI_DEV_FB_FREE{T}))": 1,
    "rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{T}[1m])": CARDS,
    # as the panels of the stock dashboard ask, which let the user choose instance and gpu
    'DCGM_FI_DEV_GPU_UTIL{T, gpu=~"0|1|2"}': 3,
    'avg(DCGM_FI_DEV_GPU_TEMP{T, gpu=~"0|1|2"})': 1,
    'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{T, gpu=~".+"} <= 1': CARDS,
    'max by (Hostname, gpu) (DCGM_FI_PROF_GR_ENGINE_ACTIVE{T, gpu=~".+"})': CARDS,
    "max by (UUID, modelName) (DCGM_FI_PROF_DRAM_ACTIVE{T})": CARDS,
    "DCGM_FI_DEV_DEC_UTIL{T} > 0": 2,
    "DCGM_FI_DEV_MEM_COPY_UTIL{T}": CARDS,
    "rate(DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{T}[1m])": CARDS,
    "DCGM_FI_DEV_XID_ERRORS{T}": CARDS,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{T} == 0": CARDS,
}


def scrape_config(jobs: dict[str, str]) -> dict[str, object]:
    """Return a configuration with targets of each job; all of them are one agent."""
    interval = f"{INTERVAL_S}s"
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval},
        "scrape_configs": [
            {
                "job_name": job,
                "static_configs": [
                    {"targets": [address], "labels": {"instance": f"{job}-{number}"}}
                    for number in range(TARGETS)
                ],
            }
            for job, address in jobs.items()
        ],
    }


def check_scrapes(server: Prometheus) -> None:
    """No scrape has failed, except those for which the machine had no time."""
    targets = server.api("targets", state="active")["activeTargets"]
    assert len(targets) == 2 * TARGETS
    failed = f"up == 0 and scrape_duration_seconds < {INTERVAL_S}"
    assert server.query(f"count_over_time(({failed})[5m:1s])") == []
    own = server.own_metrics()
    for name in ("duplicate_timestamp", "out_of_order", "out_of_bounds"):
        assert own[f"prometheus_target_scrapes_sample_{name}_total"] == 0.0
    # relabelling has nothing to drop
    assert server.query("scrape_samples_scraped != scrape_samples_post_metric_relabeling") == []


def check_answers(server: Prometheus) -> None:
    """Targets of both formats answer every query; after a scrape that is late, the next one."""
    for job in FORMATS:
        for expression, count in QUERIES.items():
            server.wait_for(expression.replace("{T", f"{{{target(job)}"), count)


def target(job: str) -> str:
    """Return the matchers of the first target."""
    return f'job="{job}", instance="{job}-0"'


def count_series(server: Prometheus, job: str) -> dict[str, float]:
    """Return the number of series of each family."""
    result = server.query(f"count by (__name__) ({{{target(job)}}})")
    return {labels["__name__"]: number for labels, number in result}


def check_page(page: str) -> None:
    """Check that promtool complains of nothing but names of other exporters."""
    result = lint(page)
    assert [one for one in result if not is_about_name(one[1])] == []
    assert [one for one in result if one[0].startswith(OWN_PREFIXES)] == []


@needs_prometheus
@pytest.mark.slow
def test_prometheus_scrapes_a_loaded_agent_without_error_and_answers_rules_and_queries(
    tmp_path: Path,
) -> None:
    arguments = write_host_with_pods(tmp_path / "host")
    aliases = {"XPU_AGENT_METRICS__ALIASES": "dcgm,hami,hami_legacy,koordlet,node_exporter"}
    with (
        running(tmp_path / "out", *arguments, **aliases) as agent,
        forwarding(agent.url) as openmetrics,
        forwarding(agent.url, "text/plain; version=0.0.4") as text,
    ):
        agent.wait_until(lambda: "xpu_pod_memory" in agent.get("metrics")[1], "usage")
        agent.wait_until(lambda: "node_metric_node" in agent.get("metrics")[1], "a report")
        check_page(agent.get("metrics")[1])
        config = scrape_config({"openmetrics": openmetrics.address, "text": text.address})
        with running_prometheus(tmp_path / "prometheus", config, RULES) as server:
            server.wait_for(f"count(sum_over_time(up[5m]) >= 3) == {2 * TARGETS}")
            check_scrapes(server)
            check_answers(server)
            # the two targets are scraped at different times
            agent.wait_until(
                lambda: {} != count_series(server, "text") == count_series(server, "openmetrics"),
                "the same families and series in both formats",
            )
            assert server.query('count({__name__=~".+_created"})') == []
            for record in RULES:
                assert server.wait_for(record), record
        assert set(openmetrics.answers) == {(200, "application/openmetrics-text", "gzip")}
        assert set(text.answers) == {(200, "text/plain", "gzip")}
        assert agent.get("readyz") == (200, "ok\n")
        assert agent.end() == 0
