"""A small fleet under a real Prometheus: recorded hosts of all makers, a live node, a scheduler.

The live node has a kubelet, a container runtime, an API server and real cgroups; too much memory is
in use there, so that pods are evicted. One card of the fleet has failed.
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
from tests.process.containers.test_files import OWN_GROUPS
from tests.process.containers.vendors import nvidia, uuid
from tests.process.test_scheduler import CLUSTER, Replica, bind, names, put_pod, replica
from tests.prometheus.hosts import write_host_with_pods
from tests.prometheus.observed import RULES
from tests.prometheus.server import Prometheus, running_prometheus
from tests.realgroups import RealGroups, real_groups

HOSTS = ("a100-mig-4x", "atlas-910b3x8", "mlu370-x4-8")  # of fixtures/hosts, beside the H100s
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
    },
}
FAILED_CARD = {
    "devices": [{"uuid": "FAKE-0", "minor": 0, "memory_bytes": 1 << 36}],
    "events": [{"at_s": 1, "key": "FAKE-0", "reason": "Xid 95", "state": "failed"}],
}
INTERVAL_S = 1


def run_fleet(folder: Path, look: Callable[[Prometheus], None]) -> None:
    """Start everything, let Prometheus scrape it, and call `look` with Prometheus."""

    async def act(scene: Scene) -> None:
        with real_groups() as groups, ExitStack() as stack:
            await _start_live_node(scene, groups)
            targets = {NODE: scene.agent.url}
            await asyncio.to_thread(_start_others, stack, folder, targets)
            server = await asyncio.to_thread(_start_prometheus, stack, folder, targets)
            await asyncio.to_thread(look, server)

    play(act, cards=0)


async def _start_live_node(scene: Scene, groups: RealGroups) -> None:
    nvidia(scene, CARDS)
    scene.prefix = ("unshare", "--mount", "--", "sh", "-c", OWN_GROUPS, groups.root)
    scene.tell(
        DEVICE_PLUGIN__VENDORS="nvidia",
        ENFORCE__STRATEGIES__MEMORY_EVICTION="on",
        COLLECT__PREDICTION__COLD_START_S="0",
    )
    scene.api.grant(MAY_EVICT)
    node: Any = scene.api.get("Node", NODE)
    node["status"]["capacity"]["memory"] = "2Gi"
    scene.api.put(node)
    scene.api.put(SLO)
    top = groups.make(f"{groups.root}/kubepods")
    for qos, parent in (("LS", top), ("BE", groups.make(f"{top}/besteffort"))):
        _add_pod(scene.api, groups, f"{qos.lower()}-pod", qos, parent)
    await scene.kubelet.start()
    await scene.begin()
    await scene.kubelet.resource("nvidia.com/gpu", healthy=CARDS)
    card = {"minor": 0, "id": uuid(0), "resources": WHOLE}
    await scene.start("training", {GRANT: json.dumps({"gpu": [card]})})


def _add_pod(api: ApiServer, groups: RealGroups, name: str, qos: str, parent: str) -> None:
    """Make a pod with one container that uses CPU and memory."""
    container = name.encode().hex().ljust(64, "0")
    kind = "BestEffort" if qos == "BE" else "Guaranteed"
    requests = {"requests": {"kubernetes.io/batch-cpu": "500"}} if qos == "BE" else {}
    status = {"name": "main", "containerID": f"containerd://{container}"}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team-a",
            "labels": {"koordinator.sh/qosClass": qos},
        },
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "resources": requests}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "qosClass": kind,
            "containerStatuses": [status],
        },
    }
    uid = str(api.put(body)["metadata"]["uid"])
    group = groups.make(f"{parent}/pod{uid}")
    groups.hog(groups.make(f"{group}/{container}"), 32 * MIB)


def _start_others(stack: ExitStack, folder: Path, targets: dict[str, str]) -> None:
    """Start an agent for each recorded host, and a scheduler with calls behind it."""
    cards = folder / "cards.yaml"
    cards.write_text(yaml.safe_dump(FAILED_CARD))
    h100 = write_host_with_pods(folder / EIGHT_CARDS.name)
    hosts = {EIGHT_CARDS.name: h100, **{name: _host(name) for name in HOSTS}}
    for name, arguments in hosts.items():
        more = {"XPU_AGENT_NODE__NAME": name, "XPU_AGENT_NODE__STATE_DIR": str(folder / "s" / name)}
        if name == HOSTS[-1]:
            more["XPU_AGENT_DISCOVERY__FAKE__FILE"] = str(cards)
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
