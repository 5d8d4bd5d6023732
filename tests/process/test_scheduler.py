"""Replicas of the extender as processes, at a strict API server, called as kube-scheduler calls."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from agent.wire_formats.device_allocated import ANNOTATION
from agent.wire_formats.resource_status import RESOURCE_STATUS
from tests.apiserver import ApiServer, Fault
from tests.apiserver.access import AGENT
from tests.apiserver.rbac import read_roles
from tests.patience import PATIENCE_S
from tests.unit.daemonset.rights import Right, compare, verbs_granted, verbs_used

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "fixtures" / "cluster"
COMMAND = "plugins.scheduler.cli"
MANIFESTS = ROOT / "daemonset" / "scheduler"
Object = dict[str, Any]


class Replica:
    """One process of the extender."""

    def __init__(
        self,
        api: ApiServer,
        folder: Path,
        name: str,
        service: str,
        more: str = "",
        module: str = COMMAND,
    ) -> None:
        config = folder / f"{name}.yaml"
        settings = f"listen: 127.0.0.1:0\nservice: '{service}'\n{more}"
        namespace = "kube-system" if service else "default"
        config.write_text(f"{settings}leader_election: {{namespace: {namespace}}}\n")
        kubeconfig = api.agent_kubeconfig if service else api.kubeconfig
        command = [sys.executable, "-m", module, "run", "--config", str(config)]
        self.process = subprocess.Popen(
            [*command, "--kubeconfig", str(kubeconfig)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "POD_IP": "192.0.2.7"},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.address = urlsplit(line.split()[-1])

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Return status and body of an answer."""
        connection = http.client.HTTPConnection(
            str(self.address.hostname), self.address.port or 0, timeout=PATIENCE_S
        )
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            is_json = response.getheader("Content-Type", "").startswith("application/json")
            return response.status, json.loads(text) if is_json else text.decode()
        finally:
            connection.close()

    @property
    def is_ready(self) -> bool:
        return self.call("GET", "/readyz")[0] == 200

    def wait_ready(self) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not self.is_ready:
            assert time.monotonic() < until_s, self.call("GET", "/readyz")
            assert self.process.poll() is None
            time.sleep(0.05)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()


def wait(holds: Callable[[], bool]) -> None:
    """Return once it holds; fail if it never does."""
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.05)


@contextmanager
def replica(
    api: ApiServer,
    folder: Path,
    name: str = "a",
    service: str = "",
    more: str = "",
    module: str = COMMAND,
) -> Iterator[Replica]:
    one = Replica(api, folder, name, service, more, module)
    try:
        yield one
    finally:
        one.stop()


@pytest.fixture
def api() -> Iterator[ApiServer]:
    import yaml

    with ApiServer() as server:
        for file in ("nodes.yaml", "devices.yaml"):
            for document in yaml.safe_load_all((CLUSTER / file).read_text()):
                server.put(document)
        yield server


def put_pod(api: ApiServer, name: str, cards: int) -> Object:
    resources = {"nvidia.com/gpu": str(cards)}
    container = {
        "name": "c",
        "image": "i",
        "resources": {"requests": resources, "limits": resources},
    }
    return api.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [container]},
        }
    )


def names(api: ApiServer) -> list[str]:
    return [node["metadata"]["name"] for node in api.list("node")]


def bind(one: Replica, pod: Object, node: str) -> tuple[int, Any]:
    metadata = pod["metadata"]
    return one.call(
        "POST",
        "/bind",
        {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node,
        },
    )


def test_a_pod_is_filtered_scored_and_bound(api: ApiServer, tmp_path: Path) -> None:
    with replica(api, tmp_path) as one:
        one.wait_ready()
        pod = put_pod(api, "p", 2)
        arguments = {"Pod": pod, "Nodes": None, "NodeNames": names(api)}
        status, answer = one.call("POST", "/filter", arguments)
        assert status == 200
        assert set(answer["NodeNames"]) == {"a100-0", "a100-1", "h100-0"}
        status, scores = one.call("POST", "/v1/prioritize", arguments)
        assert (status, len(scores)) == (200, 5)
        assert bind(one, pod, "h100-0") == (200, {"Error": ""})
        bound = api.get("pod", "p", "default")
        assert bound is not None
        assert bound["spec"]["nodeName"] == "h100-0"
        grant = json.loads(bound["metadata"]["annotations"][ANNOTATION])
        assert [card["minor"] for card in grant["gpu"]] == [0, 1]
        _, summary = one.call("GET", "/apis/v1/nodes/h100-0")
        assert summary["deviceUsed"]["koordinator.sh/gpu-core"] == "200"
        assert "default/p" in summary["allocateSet"]["gpu"]
        assert one.call("PUT", "/debug/flags/v", 5)[0] == 200
        assert one.call("PUT", "/debug/flags/s", 3)[0] == 200
        assert one.call("PUT", "/debug/flags/v", "x")[0] == 400
        _, why = one.call("GET", "/apis/v1/explain/default/p")
        assert why["filter"]["fitting"] == 3
        status, text = one.call("GET", "/metrics")
        assert 'xpu_scheduler_requests_total{verb="bind",result="ok"} 1' in text
        assert why["bind"]["node"] == "h100-0"
        labels = 'node="h100-0",type="gpu",resource="koordinator.sh/gpu-core"'
        for line in (
            "xpu_scheduler_leader 1",
            'xpu_scheduler_decisions_total{reason="fits"} 1',
            'xpu_scheduler_binds_total{outcome="bound"} 1',
            'xpu_scheduler_holds{state="uncertain"} 0',
            'xpu_scheduler_holds{state="planned"} 0',
            f"xpu_scheduler_device_free{{{labels}}} 600",
            "xpu_scheduler_double_granted 0",
            "xpu_scheduler_grant_unreadable 0",
            "xpu_scheduler_grant_unknown_device 0",
        ):
            assert f"{line}\n" in text, line


def test_why_a_binding_failed_and_forged_grants_are_shown(api: ApiServer, tmp_path: Path) -> None:
    with replica(api, tmp_path) as one:
        one.wait_ready()
        for name, text in (("first", "{"), ("second", None), ("third", None)):
            pod = put_pod(api, name, 8)
            card = {"minor": 0, "resources": {"koordinator.sh/gpu-core": "100"}}
            grant = text or json.dumps({"gpu": [card]})
            pod["metadata"]["annotations"] = {ANNOTATION: grant}
            api.put({**pod, "kind": "Pod", "spec": {**pod["spec"], "nodeName": "a100-0"}})

        def shows(line: str) -> bool:
            return f"{line}\n" in one.call("GET", "/metrics")[1]

        until_s = time.monotonic() + PATIENCE_S
        while not (
            shows("xpu_scheduler_grant_unreadable 1") and shows("xpu_scheduler_double_granted 1")
        ):
            assert time.monotonic() < until_s
            time.sleep(0.05)
        error = bind(one, put_pod(api, "p", 8), "a100-0")[1]["Error"]
        assert "were taken meanwhile" in error
        assert one.call("GET", "/apis/v1/explain/default/p")[1]["bind"]["error"] == error
        assert shows('xpu_scheduler_binds_total{outcome="taken"} 1')


def test_after_a_kill_devices_are_counted_from_annotations(api: ApiServer, tmp_path: Path) -> None:
    with replica(api, tmp_path) as one:
        one.wait_ready()
        first = put_pod(api, "first", 8)
        assert bind(one, first, "h100-0")[1] == {"Error": ""}
        one.process.kill()
        one.process.wait()
    lease = api.get("lease", "xpu-scheduler", "default")
    assert lease is not None
    api.delete("lease", "xpu-scheduler", "default")  # else the new one waits for its end
    with replica(api, tmp_path, "b") as other:
        other.wait_ready()
        second = put_pod(api, "second", 1)
        arguments = {"Pod": second, "Nodes": None, "NodeNames": ["h100-0", "a100-0"]}
        answer = other.call("POST", "/filter", arguments)[1]
        assert answer["NodeNames"] == ["a100-0"]
        assert answer["FailedNodes"] == {"h100-0": "Insufficient Partitioned GPU Devices"}


@contextmanager
def leader_and_standby(api: ApiServer, folder: Path) -> Iterator[tuple[Replica, Replica]]:
    """Start a replica when another one is the leader."""
    with replica(api, folder, "a") as leader:
        leader.wait_ready()
        with replica(api, folder, "b") as standby:
            yield leader, standby


def test_the_standby_is_silent_and_takes_over_when_the_leader_ends(
    api: ApiServer, tmp_path: Path
) -> None:
    with leader_and_standby(api, tmp_path) as (leader, standby):
        pod = put_pod(api, "p", 1)
        arguments = {"Pod": pod, "Nodes": None, "NodeNames": names(api)}
        status, text = standby.call("POST", "/filter", arguments)
        assert status == 503
        assert "not the leader" in text
        leader.process.terminate()
        assert leader.process.wait(PATIENCE_S) == 0
        standby.wait_ready()  # the lease was given up
        assert standby.call("POST", "/filter", arguments)[0] == 200


@pytest.mark.slow
def test_a_leader_that_was_paused_answers_nothing_when_it_wakes(
    api: ApiServer, tmp_path: Path
) -> None:
    with leader_and_standby(api, tmp_path) as (old, new):
        pod = put_pod(api, "p", 8)
        old.process.send_signal(signal.SIGSTOP)
        new.wait_ready()
        assert bind(new, pod, "h100-0")[1] == {"Error": ""}
        other = put_pod(api, "q", 8)
        old.process.send_signal(signal.SIGCONT)
        with suppress(OSError, http.client.HTTPException):  # it may end without an answer
            assert bind(old, other, "h100-0")[0] == 503
        bound = api.get("pod", "q", "default")
        assert bound is not None
        assert not bound["spec"].get("nodeName")
        assert old.process.wait(PATIENCE_S) == 1


def bind_vendors_pods(api: ApiServer, one: Replica) -> None:
    """Bind one pod that needs a lock of its node, and one that needs a label."""
    isolation = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
    node = api.get("node", "a100-0")
    assert node is not None
    node["metadata"]["labels"] |= isolation
    api.put(node)
    for name, target, labels in (("mlu", "mlu-0", {}), ("hami", "a100-0", isolation)):
        pod = put_share(api, name, labels)
        until_s = time.monotonic() + PATIENCE_S
        while bind(one, pod, target)[1] != {"Error": ""}:  # the watch brings the node's label
            assert time.monotonic() < until_s
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("component", "settings"),
    [
        ("", ""),
        ("strict-ledger", "strict_ledger: true\n"),
        ("vendor-annotations", "vendor_annotations: true\n"),
    ],
)
def test_the_service_leads_to_the_leader_alone_and_rights_are_the_least(
    tmp_path: Path, component: str, settings: str
) -> None:
    import yaml

    roles = tmp_path / "roles.yaml"
    files = [MANIFESTS / "rbac.yaml"]
    if component:
        files.append(MANIFESTS / component / "rbac.yaml")
    roles.write_text("---\n".join(file.read_text() for file in files))
    with ApiServer(roles=roles) as api:
        for file in ("nodes.yaml", "devices.yaml"):
            for document in yaml.safe_load_all((CLUSTER / file).read_text()):
                api.put(document)
        api.put({"kind": "Namespace", "metadata": {"name": "kube-system"}})
        with replica(api, tmp_path, service="xpu-scheduler", more=settings) as one:
            one.wait_ready()
            pod = put_pod(api, "p", 1)
            if component == "strict-ledger":  # the agent writes the object, too: it is read again
                device = api.get("device", "h100-0")
                assert device is not None
                api.put({**device, "metadata": {**device["metadata"], "labels": {}}})
            if component == "vendor-annotations":
                bind_vendors_pods(api, one)
            server = api.faults.add(Fault(subresource="binding", status=500))
            assert bind(one, pod, "h100-0")[1] == {"Error": ""}
            assert api.faults.hits(server) == 1
            api.wait_until(lambda: api.get("endpointslice", "xpu-scheduler", "kube-system"))
            written = api.get("endpointslice", "xpu-scheduler", "kube-system")
            assert written is not None
            assert written["endpoints"][0]["addresses"] == ["192.0.2.7"]
            api.wait_until(lambda: api.requests(verb="update", resource="leases"))
            api.wait_until(lambda: api.list("events"))
            one.process.terminate()
            assert one.process.wait(PATIENCE_S) == 0
        (event,) = api.list("events")
        assert event["reason"] == "LeaderElection"
        assert event["regarding"]["namespace"] == "kube-system"
        lease = api.get("lease", "xpu-scheduler", "kube-system")
        assert lease is not None
        assert event["regarding"]["uid"] == lease["metadata"]["uid"]
        # repeats of an event are a minute apart: the sink's own test has them
        used = verbs_used(api.requests(), AGENT) | {Right("events.k8s.io", "events", "patch")}
    assert compare(used, verbs_granted(read_roles(roles))) == ((), ())


def test_wrong_settings_are_one_line_and_status_2(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    for text, message in (
        ("listn: x", "listn"),
        ("tls: {client_ca_file: /none}", "needs tls.cert_file"),
        ("listen: nowhere", "is not HOST:PORT"),
    ):
        config.write_text(text)
        command = [sys.executable, "-m", "plugins.scheduler.cli", "run", "--config", str(config)]
        outcome = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "KUBECONFIG": str(config)},
            check=False,
            timeout=PATIENCE_S,
        )
        assert (outcome.returncode, message in outcome.stderr) == (2, True), outcome.stderr
        assert outcome.stderr.count("\n") == 1


def test_a_missing_api_server_is_one_line_with_the_options_that_there_are(tmp_path: Path) -> None:
    for more, message in (((), "no API server"), (("--kubeconfig", "/none"), "/none is no file")):
        outcome = subprocess.run(
            [sys.executable, "-m", "plugins.scheduler.cli", "run", *more],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
            check=False,
            timeout=PATIENCE_S,
        )
        assert (outcome.returncode, message in outcome.stderr) == (3, True), outcome.stderr
        assert "--kubeconfig" in outcome.stderr
        assert "--standalone" not in outcome.stderr
        assert "api.kubeconfig" not in outcome.stderr


def put_topology(api: ApiServer) -> None:
    detail = [{"id": cpu, "core": cpu // 2, "socket": 0, "node": cpu // 8} for cpu in range(16)]
    resources = [
        {"name": "cpu", "capacity": "8", "allocatable": "8", "available": "8"},
        {"name": "memory", "capacity": "64Gi", "allocatable": "64Gi", "available": "64Gi"},
    ]
    api.put(
        {
            "apiVersion": "topology.node.k8s.io/v1alpha1",
            "kind": "NodeResourceTopology",
            "metadata": {
                "name": "h100-0",
                "annotations": {"node.koordinator.sh/cpu-topology": json.dumps({"detail": detail})},
            },
            "topologyPolicies": ["None"],
            "zones": [
                {"name": f"node-{number}", "type": "Node", "resources": resources}
                for number in (0, 1)
            ],
        }
    )


def put_aligned_pod(api: ApiServer, name: str) -> Object:
    amounts = {"nvidia.com/gpu": "1", "cpu": "8", "memory": "1Gi"}
    policy = '{"numaTopologyPolicy":"SingleNUMANode"}'
    resources = {"requests": amounts, "limits": amounts}
    return api.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "default",
                "labels": {"koordinator.sh/qosClass": "LSR"},
                "annotations": {"scheduling.koordinator.sh/numa-topology-spec": policy},
            },
            "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]},
        }
    )


def fits_on_h100(one: Replica, pod: Object) -> bool:
    answer = one.call("POST", "/filter", {"Pod": pod, "Nodes": None, "NodeNames": ["h100-0"]})[1]
    return bool(answer["NodeNames"] == ["h100-0"])


def wait_until_it_fits(one: Replica, pod: Object) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not fits_on_h100(one, pod):
        assert time.monotonic() < until_s
        time.sleep(0.05)


def status_of(api: ApiServer, name: str) -> Any:
    pod = api.get("pod", name, "default")
    assert pod is not None
    assert ANNOTATION in pod["metadata"]["annotations"]
    return json.loads(pod["metadata"]["annotations"][RESOURCE_STATUS])


def test_cpus_and_devices_of_one_numa_node_are_bound_and_counted_after_a_restart(
    api: ApiServer, tmp_path: Path
) -> None:
    with replica(api, tmp_path) as one:
        one.wait_ready()
        first = put_aligned_pod(api, "first")
        assert not fits_on_h100(one, first)  # which CPUs the node has is not known
        put_topology(api)
        wait_until_it_fits(one, first)
        assert bind(one, first, "h100-0") == (200, {"Error": ""})
    before = status_of(api, "first")
    assert before["cpuset"] in ("0-7", "8-15")
    (zone,) = before["numaNodeResources"]
    assert zone["resources"] == {"cpu": "8", "memory": "1Gi"}
    with replica(api, tmp_path, "again") as one:
        one.wait_ready()
        assert bind(one, put_aligned_pod(api, "second"), "h100-0") == (200, {"Error": ""})
        after = status_of(api, "second")
        assert {before["cpuset"], after["cpuset"]} == {"0-7", "8-15"}
        assert not fits_on_h100(one, put_aligned_pod(api, "third"))


LOCK = "cambricon.com/dsmlu.lock"


def put_share(api: ApiServer, name: str, labels: Object | None = None) -> Object:
    """Create a pod that shares a card of a vendor."""
    share = {
        "koordinator.sh/gpu.shared": "1",
        "koordinator.sh/gpu-core": "5",
        "koordinator.sh/gpu-memory": "1Gi",
    }
    container = {"name": "c", "image": "i", "resources": {"requests": share, "limits": share}}
    metadata = {"name": name, "namespace": "default", "labels": labels or {}}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    return api.put({**body, "spec": {"containers": [container]}})


def lock_text(api: ApiServer) -> str:
    node = api.get("node", "mlu-0")
    assert node is not None
    return str((node["metadata"].get("annotations") or {}).get(LOCK, ""))


def test_a_lock_of_a_replica_that_was_killed_is_its_pods_or_counts_for_nothing(
    api: ApiServer, tmp_path: Path
) -> None:
    more = "vendor_annotations: true\n"
    victim, other = put_share(api, "victim"), put_share(api, "other")
    with replica(api, tmp_path, more=more) as one:
        one.wait_ready()
        api.faults.add(Fault(subresource="binding", hang=True))
        with ThreadPoolExecutor() as pool:
            call = pool.submit(bind, one, victim, "mlu-0")
            api.wait_until(lambda: lock_text(api))
            one.process.kill()
            with pytest.raises((OSError, http.client.HTTPException)):
                call.result()
    assert lock_text(api).endswith(",default,victim")
    api.delete("lease", "xpu-scheduler", "default")  # else the new one waits for its end
    with replica(api, tmp_path, "b", more=more) as one:
        one.wait_ready()
        assert 'node "mlu-0" has been locked' in bind(one, other, "mlu-0")[1]["Error"]
        api.delete("pod", "victim", "default")
        assert bind(one, other, "mlu-0")[1] == {"Error": ""}
    assert lock_text(api).endswith(",default,other")
