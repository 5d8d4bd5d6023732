"""CPUs and batch resources; updates, restarts; refusals; pods that help themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator

import grpc
import pytest

from proto.gen import cri_config_v1_pb2 as pb
from tests.containerd.agent_side.process import Agent, begun
from tests.containerd.agent_side.scene import entry, grant
from tests.containerd.runtime import image
from tests.containerd.runtime.inside import cgroup_file, look, opening_made, tell
from tests.containerd.runtime.pods import Pod
from tests.containerd.runtime.running import Containerd

STATUS = "scheduling.koordinator.sh/resource-status"
EXTENDED = "node.koordinator.sh/extended-resource-spec"
QOS = "koordinator.sh/qosClass"
BATCH = {
    "containers": {
        "main": {
            "requests": {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"},
            "limits": {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "128Mi"},
        }
    }
}
LIMITED = pb.LinuxContainerResources(cpu_period=100_000, cpu_quota=50_000, cpu_shares=512)


@pytest.fixture(scope="module")
def agent(runtime: Containerd) -> Iterator[Agent]:
    with begun(runtime) as started:
        yield started


def pinned(runtime: Containerd, cpus: str = "1") -> Pod:
    """A pod with CPUs of its own."""
    return Pod(runtime, {STATUS: json.dumps({"cpuset": cpus})}, {QOS: "LSR"}).run()


def refusal(pod: Pod, **more: object) -> str:
    """Have a container made that must not be; return what the runtime says."""
    with pytest.raises(grpc.RpcError) as raised:
        pod.start(**more)  # type: ignore[arg-type]  # as `create` says
    return raised.value.details() or ""


@pytest.mark.usefixtures("agent")
def test_a_pinned_pod_runs_on_its_cpus_and_is_not_throttled(runtime: Containerd) -> None:
    pod = pinned(runtime)
    container = pod.start(resources=LIMITED)
    quota = cgroup_file(pod, container, "cpu", "cpu.cfs_quota_us")
    cpus = look(runtime.cri, container).cpus
    tell("a pinned pod, limited to half a CPU by its spec", f"cpus {cpus}, quota {quota}")
    assert (cpus, quota) == ("1", "-1")
    assert cgroup_file(pod, container, "cpuset", "cpuset.cpus") == "1"


@pytest.mark.usefixtures("agent")
def test_an_update_that_says_nothing_of_cpus_leaves_them_and_the_quota(runtime: Containerd) -> None:
    pod = pinned(runtime)
    container = pod.start(resources=LIMITED)
    runtime.cri.update(
        container,
        pb.LinuxContainerResources(cpu_period=100_000, cpu_quota=80_000, cpu_shares=1024),
    )
    observations = [
        cgroup_file(pod, container, "cpu", name) for name in ("cpu.cfs_quota_us", "cpu.shares")
    ]
    cpus = cgroup_file(pod, container, "cpuset", "cpuset.cpus")
    tell("after an update of quota and shares", f"cpus {cpus}, quota and shares {observations}")
    assert (cpus, observations) == ("1", ["-1", "1024"])


@pytest.mark.usefixtures("agent")
def test_an_update_with_other_cpus_does_not_take_a_pod_off_its_own(runtime: Containerd) -> None:
    pod = pinned(runtime)
    container = pod.start()
    runtime.cri.update(container, pb.LinuxContainerResources(cpuset_cpus="0-1"))
    assert cgroup_file(pod, container, "cpuset", "cpuset.cpus") == "1"


@pytest.mark.usefixtures("agent")
def test_a_batch_pod_gets_the_weight_quota_and_memory_of_its_annotation(
    runtime: Containerd,
) -> None:
    pod = Pod(runtime, {EXTENDED: json.dumps(BATCH)}, {QOS: "BE"}).run()
    container = pod.start()
    observations = (
        cgroup_file(pod, container, "cpu", "cpu.shares"),
        cgroup_file(pod, container, "cpu", "cpu.cfs_quota_us"),
        cgroup_file(pod, container, "memory", "memory.limit_in_bytes"),
    )
    tell("a batch pod of 500m to 1000m, 128Mi", observations)
    assert observations == ("512", "100000", str(128 << 20))


def test_a_container_that_is_started_again_in_its_pod_has_its_grant_again(
    runtime: Containerd, agent: Agent
) -> None:
    pod = Pod(runtime, grant(entry(0, "GPU-0"))).run()
    first = pod.start()
    runtime.cri.stop(first)
    runtime.cri.remove(first)
    second = pod.start(attempt=1)
    nodes = look(runtime.cri, second).nodes
    tell("the second attempt of a container", sorted(n for n in nodes if "nvidia" in n))
    assert nodes["/dev/nvidia0"] == "195:0 666"
    assert agent.proof(second).verdict == "verified"
    agent.until(lambda now: first not in now.proofs and first not in now.containers)


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [
        (grant(entry(9, "GPU-9")), "DeviceUnknown"),
        (grant(entry(3, "GPU-3")), "MIGEnabled"),
        ({"scheduling.koordinator.sh/device-allocated": "{"}, "BadGrant"),
    ],
)
def test_a_refused_grant_keeps_the_container_from_being_made_and_says_why(
    runtime: Containerd, agent: Agent, annotations: dict[str, str], reason: str
) -> None:
    pod = Pod(runtime, annotations).run()
    output = refusal(pod)
    tell("a refused grant", output)
    assert reason in output
    assert not runtime.cri.containers(pod.id)
    agent.until(lambda now: reason in now.reasons)


@pytest.mark.usefixtures("agent")
def test_a_variable_that_is_set_twice_would_win_and_so_the_container_is_not_made(
    runtime: Containerd,
) -> None:
    visible = "NVIDIA_VISIBLE_DEVICES"
    pod = Pod(runtime, grant(entry(2, "GPU-2")), handler="nvidia").run()
    output = refusal(pod, env=((visible, "void"), (visible, "all")))
    tell("a variable set twice", output)
    assert "DeviceConflict" in output
    assert visible in output
    container = pod.start(env=((visible, "all"),), attempt=1)
    assert look(runtime.cri, container).env[visible] == "GPU-2"


def test_a_card_that_another_pod_has_is_refused_until_that_pod_is_gone(
    runtime: Containerd, agent: Agent
) -> None:
    annotations = grant(entry(2, "GPU-2"))
    first = Pod(runtime, annotations).run()
    holder = first.start()
    agent.until(lambda now: now.containers.get(holder) == "running")
    second = Pod(runtime, annotations).run()
    output = refusal(second)
    tell("a card granted twice", output)
    assert "DeviceTaken" in output
    runtime.cri.remove_pod(first.id)
    agent.until(lambda now: holder not in now.containers)
    assert "/dev/nvidia2" in look(runtime.cri, second.start(attempt=1)).nodes


def test_a_pod_without_a_grant_that_requests_all_cards_is_reported_and_gets_none(
    runtime: Containerd, agent: Agent
) -> None:
    pod = Pod(runtime, handler="nvidia").run()
    container = pod.start(from_image=image.ASKING)
    view = look(runtime.cri, container)
    requests = view.env["NVIDIA_VISIBLE_DEVICES"]
    reports = agent.until(lambda now: "UngrantedDevices" in now.reasons).told
    tell("an image that asks for all", f"NVIDIA_VISIBLE_DEVICES={requests}", reports[-1])
    assert not [path for path in view.nodes if "nvidia" in path]
    assert opening_made(runtime.cri, container, 195, 0) == "denied"
    assert container not in agent.until(lambda now: container in now.containers).proofs


@pytest.mark.usefixtures("agent")
def test_a_pod_with_a_grant_whose_image_requests_all_cards_gets_its_own(
    runtime: Containerd,
) -> None:
    pod = Pod(runtime, grant(entry(1, "GPU-1")), handler="nvidia").run()
    container = pod.start(from_image=image.ASKING)
    assert look(runtime.cri, container).env["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
