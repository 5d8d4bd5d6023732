"""The pods of the profiles at a real runtime: what each can see, under its own limits.

The agent runs as the rendered manifest says: user, capabilities, seccomp profile, namespaces and
mounts. docs/install.md has the table of what it sees.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from agent.app.identity import read_machine
from agent.host.files import LiveHostFiles
from tests.apiserver import ApiServer
from tests.apiserver.access import AGENT
from tests.apiserver.admin import node
from tests.apiserver.rbac import read_roles
from tests.containerd.agent_side.daemon_pod import CARD_NODE, NODE, DaemonPod, start
from tests.containerd.agent_side.whole import MAJOR, WHOLE, grant_annotation
from tests.containerd.runtime.inside import opening, tell
from tests.containerd.runtime.pods import NAMESPACE, Pod
from tests.containerd.runtime.running import Containerd, cannot_run, containerd
from tests.unit.daemonset.manifests import ROOT, Object, the
from tests.unit.daemonset.renderings import PROFILES, combined, profile
from tests.unit.daemonset.rights import Right, compare, verbs_granted, verbs_used
from tests.unit.daemonset.tables import read_table

DOCUMENTED = read_table(ROOT / "docs" / "install.md", "sight")
LATE_NODE = f"/dev/xpu-late-{os.getpid()}"
CONFIG_HEAD = 64  # bytes of the configuration space that everyone may read
NO_CAPABILITY, STRICT_SECCOMP = "0000000000000000", "2"
# CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE and CAP_SYS_ADMIN by their bits
THREE_CAPABILITIES = f"{1 << 2 | 1 << 19 | 1 << 21:016x}"
WITHOUT_PRIVILEGED, NARROWER = "nvidia-runtime", "seccomp-observe"


def objects_of(name: str) -> tuple[Object, ...]:
    """Return the objects of a profile, or of the default one without `privileged`."""
    if name == WITHOUT_PRIVILEGED:
        return combined(("base",), (f"components/{name}",))
    if name == NARROWER:
        return combined(("base",), ("components/observe", f"components/{name}"))
    return profile(name)


@pytest.fixture(scope="module")
def quiet_runtime() -> Iterator[Containerd]:
    """A runtime whose pods stay until the end of the module."""
    if reason := cannot_run():
        pytest.skip(reason)
    with containerd() as started:
        yield started


@pytest.fixture(scope="module", params=(*PROFILES, WITHOUT_PRIVILEGED, NARROWER))
def running(
    request: pytest.FixtureRequest,
    quiet_runtime: Containerd,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, DaemonPod, ApiServer]]:
    """The pod of one profile, in a cluster in which it has the rights of the manifest."""
    objects = objects_of(request.param)
    roles = tmp_path_factory.mktemp("rights") / "roles.yaml"
    roles.write_text(yaml.safe_dump(the(objects, "ClusterRole")))
    with ApiServer(objects=(this_node(),), roles=roles) as api, device_node(CARD_NODE):
        pod = start(quiet_runtime, objects, api, f"uid-{request.param}")
        pod.until(lambda: "\nxpu_pod_storage_" in pod.get("metrics"), "samples of all kinds")
        pod.until(lambda: api.get("Device", NODE) is not None, "a Device")
        if request.param not in ("observe", NARROWER):
            pod.until(lambda: "[+] runtime synchronized" in pod.get("healthz?verbose"), "NRI")
        yield request.param, pod, api
        quiet_runtime.cri.remove_all()


def this_node() -> dict[str, object]:
    machine = read_machine(LiveHostFiles())
    body = node(NODE, machine_id=machine.machine_id)
    body["status"]["nodeInfo"]["bootID"] = machine.boot_id
    return body


def inside(pod: DaemonPod, script: str) -> str:
    return pod.runtime.cri.inside(pod.container_id, "sh", "-c", script).out.strip()


def process_status(pod: DaemonPod, key: str) -> str:
    """Return a value of /proc/PID/status of a process that the runtime starts in the container."""
    lines = inside(pod, "busybox cat /proc/self/status").splitlines()
    return next(line.split(":", 1)[1].split()[0] for line in lines if line.startswith(f"{key}:"))


def sees(pod: DaemonPod, api: ApiServer) -> dict[str, bool]:
    """Return what the agent sees, by the row of the table."""
    snapshot = json.loads(pod.get("api/v1/snapshot"))["parts"]
    usage = snapshot["usage"]["value"]
    metrics = pod.get("metrics")
    functions = sorted(str(one) for one in Path("/sys/bus/pci/devices").iterdir())
    size = inside(pod, f"busybox wc -c <{functions[0]}/config") if functions else ""
    with device_node(LATE_NODE):
        late = opening(pod.runtime.cri, pod.container_id, LATE_NODE)
    return {
        "CPUs, memory and pressure of the node": usage["node"]["cpu_cores"] is not None,
        "usage of pods and containers": any("uid-" in uid for uid in usage["pods"]),
        "block IO of pods": bool(usage["storage"]["pods"]),
        "mounts of the node": "\nxpu_node_mount_info{" in metrics,
        "NUMA nodes, PCI functions and their places": bool(snapshot["pci"]["value"]),
        "PCI configuration beyond 64 bytes": bool(size) and int(size) > CONFIG_HEAD,
        "kernel log": opening(pod.runtime.cri, pod.container_id, "/dev/kmsg") == "opened",
        "device nodes, also of drivers that are loaded later": late == "allowed",
        "processes of other containers": inside(pod, f"readlink /proc/{os.getpid()}/root") != "",
        "container runtime": "[+] runtime synchronized" in pod.get("healthz?verbose"),
        "objects at the API server": api.get("NodeResourceTopology", NODE) is not None,
    }


@contextlib.contextmanager
def device_node(path: str) -> Iterator[None]:
    """Make a device node of this machine."""
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(MAJOR, 0))
    try:
        yield
    finally:
        Path(path).unlink()


def test_each_profile_sees_what_the_table_says(
    running: tuple[str, DaemonPod, ApiServer],
) -> None:
    name, pod, api = running
    real = {row: "yes" if seen else "no" for row, seen in sees(pod, api).items()}
    tell(name, real)
    column = "observe" if name == NARROWER else name
    assert {row["What"]: row[f"`{column}`"] for row in DOCUMENTED} == real


def test_the_process_has_the_limits_of_its_manifest(
    running: tuple[str, DaemonPod, ApiServer],
) -> None:
    name, pod, _ = running
    limits = [process_status(pod, key) for key in ("Uid", "CapEff", "NoNewPrivs", "Seccomp")]
    if name == WITHOUT_PRIVILEGED:
        assert limits == ["0", THREE_CAPABILITIES, "1", STRICT_SECCOMP]
    elif name in ("observe", NARROWER):
        assert limits == ["65532", NO_CAPABILITY, "1", STRICT_SECCOMP]
    else:
        assert limits[0] == "0"
        assert limits[1] != NO_CAPABILITY
        assert limits[2:] == ["0", "0"]


def test_the_narrower_seccomp_profile_denies_what_the_agent_never_calls(
    running: tuple[str, DaemonPod, ApiServer],
) -> None:
    name, pod, _ = running
    made = inside(pod, "busybox mkfifo /tmp/fifo 2>&1 || true")  # by mknod
    assert ("Operation not permitted" in made) is (name == NARROWER)


def test_each_profile_needs_no_right_that_it_does_not_have(
    running: tuple[str, DaemonPod, ApiServer],
) -> None:
    name, pod, api = running
    difference = compare(verbs_used(api.requests(), AGENT), rights_of(name, pod))
    assert difference.missing == ()
    assert [logged.path for logged in api.requests() if logged.status == 403] == []


def rights_of(name: str, pod: DaemonPod) -> frozenset[Right]:
    path = pod.log.parent / "roles.yaml"
    path.write_text(yaml.safe_dump(the(objects_of(name), "ClusterRole")))
    return verbs_granted(read_roles(path))


def test_a_pod_gets_its_card_and_the_agent_verifies_it_unless_it_only_observes(
    running: tuple[str, DaemonPod, ApiServer],
) -> None:
    name, agent, api = running
    if name == WITHOUT_PRIVILEGED:
        pytest.skip(
            "NVIDIA's runtime, which this machine has not, gives that pod the nodes of cards"
        )
    stored = api.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"train-{name}",
                "namespace": NAMESPACE,
                "annotations": grant_annotation(0),
            },
            "spec": {
                "nodeName": NODE,
                "containers": [{"name": "main", "image": "i", "resources": {"requests": WHOLE}}],
            },
            "status": {"phase": "Pending"},
        }
    )
    agent.until(lambda: f"train-{name}" in agent.get("api/v1/snapshot"), "the pod")
    pod = Pod(
        agent.runtime, grant_annotation(0), name=f"train-{name}", uid=stored["metadata"]["uid"]
    ).run()
    container = pod.start()
    if name in ("observe", NARROWER):
        assert opening(agent.runtime.cri, container, CARD_NODE) == "absent"
        return
    assert opening(agent.runtime.cri, container, CARD_NODE) == "allowed"
    labels = f'namespace="{NAMESPACE}",pod="train-{name}"'
    agent.until(
        lambda: any(
            line.startswith("xpu_agent_allocation_verified{") and labels in line and line[-1] == "1"
            for line in agent.get("metrics").splitlines()
        ),
        "a verified container",
    )
