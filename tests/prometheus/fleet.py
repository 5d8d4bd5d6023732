"""A small fleet under a real Prometheus: recorded hosts of all makers, a live node, a scheduler.

The live node has a kubelet, a container runtime, an API server and real cgroups; too much memory is
in use there, so that pods are evicted. A chip of the recorded Atlas has failed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from tests.apiserver import ApiServer, Rule
from tests.process.agent import EIGHT_CARDS, ROOT, running
from tests.process.citizen import NODE
from tests.process.containers.scene import GRANT, WHOLE, Scene, play
from tests.process.containers.vendors import ascend, cambricon, nvidia, play_cards, uuid
from tests.process.test_scheduler import CLUSTER, Replica, bind, names, put_pod, replica
from tests.prometheus.hosts import write_host_with_pods
from tests.prometheus.observed import RULES
from tests.prometheus.server import Prometheus, running_prometheus
from tests.realgroups import RealGroups, real_groups
from tests.runtime import Failed
from tests.stubs.dcmi.machines import b3
from tests.unit.ascend.test_aliases import EVERYTHING as CHIP
from tests.unit.ascend.test_aliases import VNPU
from tests.unit.cambricon.test_aliases import BUSY, PART
from tests.unit.cambricon.test_readings import COUNTERS, EVERYTHING
from tests.unit.nvidia.test_dcgm_dashboard import answers

WITH_FAILED_CHIP = "atlas-910b3x8"
HOSTS = ("a100-mig-4x", WITH_FAILED_CHIP, "mlu370-x4-8")  # of fixtures/hosts, beside the H100s
MIB = 1 << 20
CARDS = 2
MAY_EVICT = Rule(api_groups=("",), resources=("pods/eviction",), verbs=("create",))
THRESHOLDS = {
    "enable": True,
    "cpuSuppressPolicy": "cfsQuota",
    "memoryEvictThresholdPercent": 2,
    "memoryEvictLowerPercent": 1,
}
SLO = {
    "apiVersion": "slo.koordinator.sh/v1alpha1",
    "kind": "NodeSLO",
    "metadata": {"name": NODE},
    "spec": {
        "resourceUsedThresholdWithBE": THRESHOLDS,
        "cpuBurstStrategy": {"policy": "auto"},
        "resourceQOSStrategy": {"beClass": {"resctrlQOS": {"enable": True}}},
        "hostApplications": [
            {"name": "storage", "qos": "LS", "cgroupPath": {"relativePath": "storage"}}
        ],
    },
}
REPORT = {
    "apiVersion": "slo.koordinator.sh/v1alpha1",
    "kind": "NodeMetric",
    "metadata": {"name": NODE},
    "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 2}},
}
SHORT_INTERVALS = {
    "COLLECT__BEST_EFFORT_INTERVAL_S": "1",
    "COLLECT__STORAGE_INTERVAL_S": "1",
    "DISCOVERY__ASCEND__SAMPLE_INTERVAL_S": "1",
}
# each hierarchy begins at a group of the fleet's own, as a node's does
OWN_GROUPS = """
for name in cpu cpuacct cpuset memory; do
  mount --bind "/sys/fs/cgroup/$name$0" "/sys/fs/cgroup/$name" || exit
done
exec "$@"
"""
# a software port has none of these; a hardware port has them in the same place
PORT_COUNTERS = {
    f"/sys/devices/virtual/infiniband/rxe_eth0/ports/1/counters/{name}": f"{value}\n".encode()
    for name, value in (
        ("port_rcv_data", 1 << 30),
        ("port_xmit_data", 1 << 31),
        ("port_rcv_errors", 2),
        ("port_xmit_discards", 3),
        ("symbol_error", 1),
    )
}
INTERVAL_S = 1


def run_fleet(folder: Path, look: Callable[[Prometheus], None]) -> None:
    """Start everything, let Prometheus scrape it, and call `look` with Prometheus."""

    async def act(scene: Scene) -> None:
        with real_groups("cpuacct") as groups, ExitStack() as stack:
            await _start_live_node(scene, groups)
            targets = {NODE: scene.agent.url}
            await asyncio.to_thread(_start_others, stack, folder, targets)
            server = await asyncio.to_thread(_start_prometheus, stack, folder, targets)
            await asyncio.to_thread(look, server)

    play(act, cards=0)


async def _start_live_node(scene: Scene, groups: RealGroups) -> None:
    scene.prefix = ("unshare", "--mount", "--", "sh", "-c", OWN_GROUPS, groups.root)
    scene.tell(
        DEVICE_PLUGIN__VENDORS="nvidia",
        ENFORCE__STRATEGIES__MEMORY_EVICTION="on",
        COLLECT__PREDICTION__COLD_START_S="0",
        **SHORT_INTERVALS,
    )
    scene.api.grant(MAY_EVICT)
    node: Any = scene.api.get("Node", NODE)
    node["status"]["capacity"]["memory"] = "2Gi"
    scene.api.put(node)
    scene.api.put(SLO)
    scene.api.put(REPORT)
    top = groups.make(f"{groups.root}/kubepods")
    pids = [
        _add_pod(scene.api, groups, f"{qos.lower()}-pod", qos, parent)
        for qos, parent in (("LS", top), ("BE", groups.make(f"{top}/besteffort")))
    ]
    groups.sleeper(groups.make(f"{groups.root}/storage"))
    _install_cards(scene, pids[0])
    await scene.kubelet.start()
    await scene.begin()
    await scene.kubelet.resource("nvidia.com/gpu", healthy=CARDS)
    card = {"minor": 0, "id": uuid(0), "resources": WHOLE}
    await scene.start("training", {GRANT: json.dumps({"gpu": [card]})})
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    own = scene.bound("notebook", {}, resources=limits)
    await scene.kubelet.admit(own, "main", {"nvidia.com/gpu": 1})
    try:
        await scene.start("latecomer", {GRANT: json.dumps({"gpu": [card]})})
    except Failed:
        return
    raise AssertionError("two pods have one card")


def _install_cards(scene: Scene, pid: int) -> None:
    """Have cards of three makers whose libraries answer everything that is asked.

    A process uses the first card of NVIDIA; the memory clock of the second cannot be true.
    """
    cards = nvidia(scene, CARDS)
    lines = [line for number in range(CARDS) for line in answers(number, 1 << 30)]
    process = f"proc 0 pid={pid} mem={1 << 30} sm=40 ts=1"
    play_cards(cards, 0, *lines, process, "gpu 1 memclock=4294967295")
    chips = ascend(scene, 1)
    chips.play("card_list 0", *b3(0, **CHIP), "chip.0.0.proc.4100 3145728", *VNPU)
    mlus = cambricon(scene, 1)
    mlus.add(*EVERYTHING, *COUNTERS, *BUSY, *PART)


def _add_pod(api: ApiServer, groups: RealGroups, name: str, qos: str, parent: str) -> int:
    """Make a pod with one container that uses memory; return the pid of its process."""
    container = name.encode().hex().ljust(64, "0")
    is_best_effort = qos == "BE"
    amounts = {"kubernetes.io/batch-cpu": "500"} if is_best_effort else {"cpu": "500m"}
    status = {"name": "main", "containerID": f"containerd://{container}"}
    resources = {"requests": amounts, "limits": amounts}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team-a",
            "labels": {"koordinator.sh/qosClass": qos},
        },
        "spec": {
            "nodeName": NODE,
            "containers": [{"name": "main", "image": "i", "resources": resources}],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "qosClass": "BestEffort" if is_best_effort else "Guaranteed",
            "containerStatuses": [status],
        },
    }
    uid = str(api.put(body)["metadata"]["uid"])
    group = groups.make(f"{parent}/pod{uid}")
    return groups.hog(groups.make(f"{group}/{container}"), 32 * MIB)


def _start_others(stack: ExitStack, folder: Path, targets: dict[str, str]) -> None:
    """Start an agent for each recorded host, and a scheduler with calls behind it."""
    h100 = write_host_with_pods(folder / EIGHT_CARDS.name, PORT_COUNTERS)
    hosts = {EIGHT_CARDS.name: h100, **{name: _host(name) for name in HOSTS}}
    for name, arguments in hosts.items():
        more = {"XPU_AGENT_NODE__NAME": name, "XPU_AGENT_NODE__STATE_DIR": str(folder / "s" / name)}
        if name == EIGHT_CARDS.name:
            more |= {
                "XPU_AGENT_DISCOVERY__RDMA__SOFT": "true",
                "XPU_AGENT_DISCOVERY__RDMA__COUNTERS_INTERVAL_S": "1",
                "XPU_AGENT_METRICS__MAX_SERIES": "500",
            }
        out = folder / "out" / name
        out.mkdir(parents=True)
        targets[name] = stack.enter_context(running(out / "objects", *arguments, **more)).url
    api = stack.enter_context(ApiServer())
    for file in ("nodes.yaml", "devices.yaml"):
        for document in yaml.safe_load_all((CLUSTER / file).read_text()):
            api.put(document)
    one = stack.enter_context(replica(api, folder))
    one.wait_ready()
    _call_scheduler(api, one)
    targets["scheduler"] = one.address.geturl()


def _host(name: str) -> tuple[str, str]:
    return "--host", str(ROOT / "fixtures" / "hosts" / name)


def _call_scheduler(api: ApiServer, one: Replica) -> None:
    for number in range(3):
        pod = put_pod(api, f"p{number}", 2)
        arguments = {"Pod": pod, "Nodes": None, "NodeNames": names(api)}
        assert one.call("POST", "/filter", arguments)[0] == 200
        assert one.call("POST", "/v1/prioritize", arguments)[0] == 200
        assert bind(one, pod, "h100-0")[0] == 200


def _start_prometheus(stack: ExitStack, folder: Path, targets: dict[str, str]) -> Prometheus:
    interval = f"{INTERVAL_S}s"
    scheduler = targets.pop("scheduler")
    jobs = {"xpu-agent": list(targets.values()), "xpu-scheduler": [scheduler]}
    config = {
        "global": {
            "scrape_interval": interval,
            "scrape_timeout": interval,
            "evaluation_interval": interval,
        },
        "scrape_configs": [
            {
                "job_name": job,
                "honor_labels": True,
                "static_configs": [{"targets": [url.split("/")[2] for url in urls]}],
            }
            for job, urls in jobs.items()
        ],
    }
    return stack.enter_context(
        running_prometheus(folder / "prometheus", config, {}, rule_files=(RULES,))
    )
