"""Pods a second through filter, prioritize and bind: loopback HTTP, a replica process, 1,000 nodes.

One pod at a time is filtered and scored, and bindings run beside the next pods, as kube-scheduler
has it. The API server is the strict one of the tests, in this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.harness import Row
from tests.apiserver import ApiServer
from tests.apiserver.admin import node
from tests.kubescheduler import HttpExtender, read_extenders

NODES, PODS, BINDERS = 1000, 400, 16
STARTED_S = 120.0
CARD = {"gpu-core": "100", "gpu-memory": "80Gi", "gpu-memory-ratio": "100"}
REQUESTS: tuple[Mapping[str, str], ...] = (
    {"koordinator.sh/gpu": "100"},
    {"koordinator.sh/gpu": "200"},
    {"koordinator.sh/gpu": "400"},
    {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"},
)
Object = dict[str, Any]


def rows() -> Iterator[Row]:
    """Yield the rate; every pod must be on its node in the end."""
    with ApiServer() as api, tempfile.TemporaryDirectory() as folder:
        names = [f"node-{number}" for number in range(NODES)]
        for name in names:
            api.put(node(name))
            api.put(_device(name))
        pods = [_pod(api, number) for number in range(PODS)]
        with _replica(api, Path(folder)) as url:
            rate = _pods_per_second(url, pods, names)
        bound = sum(bool(pod["spec"].get("nodeName")) for pod in api.list("pod"))
    yield Row(
        name=f"scheduler_binding_{NODES}",
        metric="pods_per_s",
        subject=rate if bound == PODS else 0.0,
        gate="subject>=50",
    )


def _pods_per_second(url: str, pods: list[Object], names: list[str]) -> float:
    extender = HttpExtender(read_extenders(_configuration(url))[0])
    offered: dict[str, Object] = {name: {} for name in names}
    begun_s = time.perf_counter()
    with ThreadPoolExecutor(max_workers=BINDERS) as binders:
        bindings = []
        for number, pod in enumerate(pods):
            records = extender.filter(pod, offered).kept
            scores = extender.prioritize(pod, {name: {} for name in records}) or {}
            best = max(scores.values(), default=0)
            equal = [name for name in records if scores.get(name, 0) == best]
            chosen = equal[number * 7 % len(equal)]  # kube-scheduler draws one of the best
            bindings.append(binders.submit(extender.bind, pod, chosen))
        for binding in bindings:
            binding.result()
    return len(pods) / (time.perf_counter() - begun_s)


def _configuration(url: str) -> str:
    verbs = "filterVerb: filter, prioritizeVerb: prioritize, bindVerb: bind"
    return (
        f"extenders: [{{urlPrefix: '{url}', {verbs}, weight: 1, nodeCacheCapable: true, "
        "httpTimeout: 30s}]"
    )


@contextmanager
def _replica(api: ApiServer, folder: Path) -> Iterator[str]:
    """Run the extender until its caller is done; yield its address."""
    config = folder / "config.yaml"
    config.write_text("listen: 127.0.0.1:0\nleader_election: {enabled: false}\nlog_level: error\n")
    command = [sys.executable, "-m", "plugins.scheduler.cli", "run", "--config", str(config)]
    process = subprocess.Popen(
        [*command, "--kubeconfig", str(api.kubeconfig)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    try:
        line = process.stdout.readline() if process.stdout is not None else ""
        url = line.split()[-1]
        _wait_ready(url)
        yield url
    finally:
        process.terminate()
        process.wait()


def _wait_ready(url: str) -> None:
    until_s = time.monotonic() + STARTED_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/readyz"):
                return
        except urllib.error.HTTPError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.05)


def _device(name: str) -> Object:
    resources = {f"koordinator.sh/{resource}": amount for resource, amount in CARD.items()}
    cards = [
        {
            "type": "gpu",
            "minor": minor,
            "id": f"{name}-{minor}",
            "health": True,
            "resources": resources,
            "topology": {
                "socketID": minor // 4,
                "nodeID": minor // 4,
                "pcieID": f"pci0000:{minor // 2}0",
                "busID": f"0000:{minor}1:00.0",
            },
        }
        for minor in range(8)
    ]
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": name},
        "spec": {"devices": cards},
    }


def _pod(api: ApiServer, number: int) -> Object:
    amounts = dict(REQUESTS[number % len(REQUESTS)])
    resources = {"requests": amounts, "limits": amounts}
    container = {"name": "c", "image": "i", "resources": resources}
    return api.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"pod-{number}", "namespace": "default"},
            "spec": {"containers": [container]},
        }
    )
