"""The registry of the agent's own processes, as Prometheus reads it."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from agent.access.decision import AccessStatus
from agent.metrics.exposition import MetricsRenderer
from agent.metrics.families import PROCESS_FAMILIES
from agent.metrics.process_metrics import ProcessMetrics
from agent.snapshot.node import NodeSnapshot, VendorState
from tests import factory

WORKER = "xpu_agent_worker_"
BUSY_WORKER = """
import time
while time.process_time() < 0.1:
    pass
print(end=".", flush=True)
input()
"""


def snapshot(pid: int | None) -> NodeSnapshot:
    """Return a node with one vendor whose worker is that process."""
    vendor = VendorState(vendor="fake", state="ready", pid=pid)
    return replace(factory.snapshot((), ()), vendors=(vendor,))


def samples(text: bytes) -> dict[str, float]:
    """Return the value of each sample by its name; labels are compared elsewhere."""
    families = text_string_to_metric_families(text.decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_this_process_is_described_as_every_prometheus_client_does() -> None:
    result = samples(ProcessMetrics("n").text(snapshot(None), openmetrics=False))
    own = psutil.Process()
    assert result["process_start_time_seconds"] == pytest.approx(own.create_time(), abs=2)
    assert result["process_resident_memory_bytes"] > 1 << 20
    assert 0 < result["process_open_fds"] < result["process_max_fds"]
    assert not [name for name in result if name.startswith(WORKER)]


def test_a_worker_is_measured_until_it_ends() -> None:
    own = ProcessMetrics("n")
    command = [sys.executable, "-c", BUSY_WORKER]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    try:
        worker.stdout.read(1)  # by now it is Python, and has used the processor
        result = samples(own.text(snapshot(worker.pid), openmetrics=False))
        assert result[f"{WORKER}resident_memory_bytes"] > 1 << 20
        assert result[f"{WORKER}threads"] == 1
        assert result[f"{WORKER}open_fds"] >= 3
        assert result[f"{WORKER}cpu_seconds_total"] > 0
    finally:
        worker.communicate(b"\n")
    ended = samples(own.text(snapshot(worker.pid), openmetrics=False))
    assert not [name for name in ended if name.startswith(WORKER)]


def test_lateness_is_counted_in_its_bucket() -> None:
    own = ProcessMetrics("n")
    own.lateness.observe(0.0)
    own.lateness.observe(0.003)
    text = own.text(snapshot(None), openmetrics=False).decode()
    name = "xpu_agent_event_loop_lateness_seconds"
    assert f'{name}_bucket{{le="0.0005",node="n"}} 1.0' in text
    assert f'{name}_bucket{{le="0.005",node="n"}} 2.0' in text
    assert f'{name}_count{{node="n"}} 2.0' in text


def test_the_reference_has_exactly_the_families_of_the_registry() -> None:
    own = ProcessMetrics("n")
    own.set_access(lambda: AccessStatus(expires_s=1.0))
    text = own.text(snapshot(os.getpid()), openmetrics=False).decode()
    types = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            types[name] = kind
    assert types == {family.name: family.type for family in PROCESS_FAMILIES}
    labels = {
        sample.name: set(sample.labels) - {"le"}
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    for family in PROCESS_FAMILIES:
        name = f"{family.name}_count" if family.type == "histogram" else family.name
        assert labels[name] == set(family.labels)


def test_requests_are_counted_by_result_and_a_certificate_has_an_end_with_tls_only() -> None:
    own = ProcessMetrics("n")
    text = own.text(snapshot(None), openmetrics=False).decode()
    assert 'xpu_agent_metrics_requests_total{node="n",result="forbidden"} 0.0' in text
    assert 'xpu_agent_metrics_access_stale{node="n"} 0.0' in text
    assert "expiry_timestamp_seconds{" not in text
    status = AccessStatus(results={"forbidden": 3}, is_stale=True, expires_s=2e9)
    own.set_access(lambda: status)
    text = own.text(snapshot(None), openmetrics=False).decode()
    assert 'xpu_agent_metrics_requests_total{node="n",result="forbidden"} 3.0' in text
    assert 'xpu_agent_metrics_access_stale{node="n"} 1.0' in text
    assert 'xpu_agent_metrics_certificate_expiry_timestamp_seconds{node="n"} 2e+09' in text


@pytest.mark.parametrize("openmetrics", [False, True])
def test_one_page_holds_both_and_ends_once(openmetrics: bool) -> None:
    now = snapshot(os.getpid())
    own = ProcessMetrics("n").text(now, openmetrics=openmetrics)
    page = MetricsRenderer({}).render(now, factory.NOW_S, openmetrics=openmetrics)
    text = (own + page).decode()
    assert text.count("# EOF") == int(openmetrics)
    assert "_created" not in text
    parse = openmetrics_families if openmetrics else text_string_to_metric_families
    names = [family.name for family in parse(text)]
    assert len(names) == len(set(names))
    assert {"process_cpu_seconds", "xpu_agent_worker_threads"} <= set(names)
