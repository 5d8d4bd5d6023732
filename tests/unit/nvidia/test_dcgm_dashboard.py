"""Queries of dashboards for dcgm-exporter find their data under the agent's aliases.

The cards answer through the real binding of NVML, and Prometheus' own engine, in promtool,
evaluates the queries. They are written from the published names of metrics and labels.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from agent.metrics.exposition import MetricsRenderer
from agent.snapshot.allocation import AllocationView
from agent.snapshot.device import Device
from agent.snapshot.inventory import DeviceSample
from agent.snapshot.node import DeviceView, NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.vendor import AliasMatch
from plugins.vendors.nvidia.aliases import DCGM
from plugins.vendors.nvidia.vendor import NvidiaVendor
from tests.factory import NOW_S, pod, snapshot
from tests.fault.nvml_stub import Stub, gpu, on_tree
from tests.stubs.child import Child
from tests.unit.nvidia.conftest import BUSES

CARDS = 3  # the last one has MIG
PODS = pod(0), pod(1)  # the first uses card 0, both use card 1
NODE = "hgx-h100-01"
CUT = CARDS - 1
SLICES = (
    f"profile {CUT} 0 id=19 slices=1 max=7 mb=9984",
    f"mig {CUT} 0 uuid=MIG-a gi=5 ci=0 k=0 cik=0 start=4 size=1 mb=9984 sm=16 used=104857600",
    f"mig {CUT} 1 uuid=MIG-b gi=6 ci=0 k=0 cik=0 start=5 size=1 mb=9984 sm=16 used=0",
    *(f"gpm {CUT} {n} gi={gi} 50" for n in (1, 2, 3, 5, 10, 11, 12, 13) for gi in (5, 6)),
)


def answers(card: int, traffic: int) -> list[str]:
    """Return what one card answers: everything that dcgm-exporter asks."""
    more = {"encoder": 3, "decoder": 4, "plimit": 700000, "fans": 1, "fan.0": 30}
    cut = {"migmode": 1, "util": None} if card == CUT else {}
    fields = [
        *((n, 1) for n in (3, 4, 5, 6, 29, 30, 31, 94)),
        *((n, 1_000_000) for n in (74, 75, 76, 77, 78, 79, 83, 186, 187, 188, 189)),
        *((82, 51), (91, 2), (197, traffic), (198, traffic)),
        *((f"{n}:0xffffffff", traffic) for n in (138, 139)),
        *((f"{n}:{link}", traffic) for n in (138, 139, 161, 162, 163) for link in (0, 1)),
    ]
    counters = () if card == CUT else (1, 2, 3, 5, 10, 11, 12, 13)
    return [
        gpu(card, BUSES[card], license="1,1,1", throttle="0x4", **more, **cut),
        *(f"field {card} {number} u64 {value}" for number, value in fields),
        *(f"gpm {card} {number} 50" for number in counters),
    ]


def sample_cards(child: Child, stub: Stub) -> tuple[DeviceSample, ...]:
    """Sample until each card has performance counters and rates of its traffic."""
    until_s = time.monotonic() + 20
    traffic = 0
    while time.monotonic() < until_s:
        traffic += 1 << 20
        play(stub, traffic)
        samples = child.sample()
        families = [{reading.family for reading in sample.readings} for sample in samples]
        if all(
            "xpu_device_nvlink_bytes_per_second" in names
            and names
            & {
                "xpu_device_sm_active_ratio",
                "xpu_device_slice_sm_occupancy_ratio",
            }
            for names in families
        ):
            return samples
    raise TimeoutError


def play(stub: Stub, traffic: int) -> None:
    lines = [line for card in range(CARDS) for line in answers(card, traffic)]
    stub.play("system driver=570.124.06 cuda=12080", *lines, *SLICES)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> NodeSnapshot:
    """Return a node whose three cards are sampled through NVML."""
    folder = tmp_path_factory.mktemp("dcgm")
    stub = Stub(folder)
    play(stub, 0)
    tree = folder / "root"
    (tree / "proc").mkdir(parents=True)
    (tree / "proc/meminfo").write_text("MemTotal:       131072000 kB\n")
    with on_tree(stub, tree) as child:
        inventory = child.discover()
        samples = sample_cards(child, stub)
    devices = tuple(
        Device(info=replace(device, minor=device.vendor_minor)) for device in inventory.devices
    )
    keys = [device.key for device in devices]
    users = {keys[0]: (PODS[0].uid,), keys[1]: tuple(one.uid for one in PODS)}
    vendor = VendorState(
        vendor="nvidia",
        inventory=SnapshotPart(inventory, NOW_S),
        samples=SnapshotPart(samples, NOW_S),
    )
    return replace(
        snapshot((), pods=PODS),
        devices=SnapshotPart(DeviceView(devices=devices), NOW_S),
        vendors=(vendor,),
        allocations=SnapshotPart(AllocationView(held=users), NOW_S),
    )


def render(node: NodeSnapshot, *, openmetrics: bool = False) -> str:
    families = {"nvidia": NvidiaVendor.description.families}
    renderer = MetricsRenderer(families, aliases=("dcgm",), alias_tables=(DCGM,))
    assert renderer.errors == ()
    return renderer.render(node, NOW_S, openmetrics=openmetrics).decode()


def aliases_on(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("DCGM_")]


def test_a_series_has_the_labels_and_the_unit_of_dcgm_exporter(node: NodeSnapshot) -> None:
    (first, *_) = [line for line in aliases_on(render(node)) if "DEV_FB_RESERVED{" in line]
    labels = dict(re.findall(r'(\w+)="([^"]*)"', first))
    assert labels == {
        "gpu": "0",
        "UUID": "GPU-00000000-0000-4000-8000-000000000000",
        "pci_bus_id": f"0000{BUSES[0].upper()}",
        "device": "nvidia0",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": NODE,
        "DCGM_FI_DRIVER_VERSION": "570.124.06",
        "namespace": PODS[0].namespace,
        "pod": PODS[0].name,
        **({"container": labels["container"]} if "container" in labels else {}),
    }
    assert float(first.rpartition(" ")[2]) == pytest.approx(500000000 / 2**20, abs=1e-6)


def test_every_name_that_is_not_absent_has_data(node: NodeSnapshot) -> None:
    with_data = {line.partition("{")[0] for line in aliases_on(render(node))}
    expected = {metric.name for metric in DCGM.metrics if metric.match is not AliasMatch.ABSENT}
    links_without = {f"DCGM_FI_DEV_NVLINK_BANDWIDTH_L{link}" for link in range(2, 18)}
    assert expected - with_data == {*links_without, "DCGM_EXP_XID_ERRORS_COUNT"}  # no Xid yet


def test_both_formats_can_be_parsed(node: NodeSnapshot) -> None:
    plain = text_string_to_metric_families(render(node))
    types = {family.name: family.type for family in plain}
    assert types["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == "counter"
    page = render(node, openmetrics=True)
    parsed = openmetrics_parser.text_string_to_metric_families(page)  # type: ignore[no-untyped-call]  # prometheus_client
    types = {family.name: family.type for family in parsed}
    # a counter needs the suffix _total there, which DCGM's names do not have
    assert types["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == "unknown"
    assert types["DCGM_FI_DEV_GPU_TEMP"] == "gauge"


WHOLE = 3  # series of whole cards by Hostname and gpu
CHOSEN = f'{{Hostname=~"{NODE}|other", gpu=~".+"}}'
QUERIES = (  # of dashboards by GPU; then of those by pod; each with the number of series
    (f"max by (Hostname, gpu, UUID) (DCGM_FI_DEV_GPU_TEMP{CHOSEN})", WHOLE),
    (f"avg(DCGM_FI_DEV_GPU_TEMP{CHOSEN})", 1),
    (f"max by (Hostname, gpu) (DCGM_FI_DEV_POWER_USAGE{CHOSEN})", WHOLE),
    (f"sum(max by (gpu) (DCGM_FI_DEV_POWER_USAGE{CHOSEN}))", 1),
    (f"max by (Hostname, UUID, gpu) (DCGM_FI_DEV_SM_CLOCK{CHOSEN} * 1000000)", WHOLE),
    (
        f"max by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE) (DCGM_FI_PROF_GR_ENGINE_ACTIVE{CHOSEN})",
        WHOLE - 1 + 2,
    ),
    (f"max by (gpu, GPU_I_ID) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{CHOSEN})", WHOLE - 1 + 2),
    (f"max by (gpu, GPU_I_ID, GPU_I_PROFILE) (DCGM_FI_DEV_FB_USED{CHOSEN})", WHOLE + 2),
    (f'max by (gpu) (DCGM_FI_DEV_FB_FREE{{GPU_I_ID="", Hostname="{NODE}"}})', WHOLE),
    (
        '100 * DCGM_FI_DEV_FB_USED{gpu="0"} / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE'
        " + DCGM_FI_DEV_FB_RESERVED)",
        1,
    ),
    ("max by (gpu) (rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m])) / 1000", WHOLE),
    ("max by (gpu) (rate(DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL[5m]))", WHOLE),
    ("max by (gpu) (rate(DCGM_FI_DEV_POWER_VIOLATION[5m])) / 1e9", WHOLE),
    ("max by (gpu) (DCGM_FI_PROF_PCIE_TX_BYTES + DCGM_FI_PROF_PCIE_RX_BYTES)", WHOLE),
    ("max by (Hostname, gpu) (increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[5m]))", WHOLE),
    ("count by (modelName) (max by (modelName, UUID) (DCGM_FI_DEV_GPU_TEMP))", 1),
    ("max by (gpu) (DCGM_FI_DEV_XID_ERRORS) > 0", 0),
    ("max by (gpu) (DCGM_FI_DEV_ROW_REMAP_FAILURE) > 0", 0),
    ("count(count by (DCGM_FI_DRIVER_VERSION) (DCGM_FI_DEV_GPU_TEMP)) > 1", 0),
    ('max by (namespace, pod, gpu) (DCGM_FI_DEV_GPU_UTIL{pod!=""})', 3),
    ('sum by (namespace, pod) (DCGM_FI_DEV_FB_USED{pod!=""})', 2),
    (f'DCGM_FI_DEV_GPU_UTIL{{namespace="{PODS[0].namespace}", pod="{PODS[0].name}"}}', 2),
    ('count by (pod) (DCGM_FI_DEV_POWER_USAGE{pod!=""})', 2),
    ('DCGM_FI_DEV_FB_USED{pod="", GPU_I_ID=""}', 1),
    ('avg by (namespace) (DCGM_FI_DEV_MEM_COPY_UTIL{pod!=""})', 1),
)


def promtool_document(page: str) -> dict[str, object]:
    """Return the test file of `promtool test rules`: the page's series, scraped ten times."""
    series = [
        {
            "series": line.rpartition(" ")[0],
            "values": f"{float(line.rpartition(' ')[2]):.6f}+1x10"
            if "_total" in line.partition("{")[0].lower()
            else f"{float(line.rpartition(' ')[2]):.6f}x10",
        }
        for line in aliases_on(page)
    ]
    checks = [
        {
            "expr": f"count({query}) or vector(0)",
            "eval_time": "10m",
            "exp_samples": [{"labels": "{}", "value": count}],
        }
        for query, count in QUERIES
    ]
    return {
        "rule_files": [],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": checks}],
    }


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_queries_of_dashboards_are_answered_with_data(node: NodeSnapshot, tmp_path: Path) -> None:
    file = tmp_path / "dashboards.json"  # JSON is YAML
    file.write_text(json.dumps(promtool_document(render(node))))
    outcome = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_complains_only_of_foreign_names(node: NodeSnapshot) -> None:
    outcome = subprocess.run(
        ["promtool", "check", "metrics"],
        input=render(node),
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = (outcome.stdout + outcome.stderr).splitlines()
    assert [line for line in complaints if not line.startswith("DCGM_")] == []
    assert {line.partition(" ")[2] for line in complaints} <= {
        'counter metrics should have "_total" suffix',
        'non-counter metrics should not have "_total" suffix',
        "metric name should not include type 'counter'",
        "label names should be written in 'snake_case' not 'camelCase'",
    }
