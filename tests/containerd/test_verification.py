"""What the look from the host finds in real containers."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from proto.gen import cri_config_v1_pb2 as pb
from tests.containerd.agent_side import scene
from tests.containerd.agent_side.process import Agent, begun
from tests.containerd.agent_side.scene import entry, grant
from tests.containerd.runtime.inside import opening, tell
from tests.containerd.runtime.leavings import CGROUPS
from tests.containerd.runtime.pods import Pod
from tests.containerd.runtime.running import Containerd

CARD = grant(entry(0, "GPU-0"))
SHARE = grant(entry(1, "GPU-1", core=50, memory="40Gi", ratio=50))


@pytest.fixture(scope="module")
def agent(runtime: Containerd) -> Iterator[Agent]:
    with begun(runtime) as started:
        yield started


def stranger(runtime: Containerd, minor: int = 2) -> str:
    """Return a node of a card on the host, made for the test where no such card is."""
    path = runtime.folder / f"nvidia{minor}"
    if not path.exists():
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(195, minor))
    return str(path)


def test_a_card_of_another_that_is_mounted_is_excess_even_where_it_stays_shut(
    runtime: Containerd, agent: Agent
) -> None:
    pod = Pod(runtime, CARD).run()
    mount = pb.Mount(host_path=stranger(runtime), container_path="/dev/nvidia2")
    container = pod.start(mounts=[mount])
    proof = agent.proof(container)
    tell("a mounted card", proof.verdict, proof.details)
    assert opening(runtime.cri, container, "/dev/nvidia2") == "denied"
    assert proof.verdict == "excess"
    assert proof.details == [
        "/dev/nvidia2 shows 0000:12:00.0, which was not granted, "
        "though the device cgroup keeps it shut"
    ]


def test_a_card_of_another_that_the_spec_adds_is_excess(runtime: Containerd, agent: Agent) -> None:
    pod = Pod(runtime, CARD).run()
    path = stranger(runtime)
    device = pb.Device(host_path=path, container_path="/dev/nvidia2", permissions="rw")
    container = pod.start(devices=[device])
    proof = agent.proof(container)
    tell("a card of the spec's own", proof.verdict, proof.details)
    assert opening(runtime.cri, container, "/dev/nvidia2") == "allowed"
    assert proof.verdict == "excess"
    assert proof.details == ["/dev/nvidia2 shows 0000:12:00.0, which was not granted"]


def test_a_card_that_was_removed_inside_is_missing(runtime: Containerd, agent: Agent) -> None:
    pod = Pod(runtime, CARD).run()
    container = pod.start()
    agent.kill()  # it looks again after minutes; one that begins looks at once
    output = runtime.cri.inside(container, "busybox", "rm", "/dev/nvidia0")
    assert output.status == 0
    proof = agent.begin().proof(container)
    assert (proof.verdict, proof.details) == ("missing", ["/dev/nvidia0 is not there"])


def test_a_process_that_cleaned_its_environment_is_verified_by_the_runtimes_record(
    runtime: Containerd, agent: Agent
) -> None:
    pod = Pod(runtime, SHARE, scene.HAMI).run()
    container = pod.start(command=("env", "-i", "busybox", "sleep", "1000"))
    output = runtime.cri.inside(container, "sh", "-c", "busybox tr '\\0' ' ' </proc/1/environ")
    proof = agent.proof(container)
    tell("a cleaned environment", repr(output.out), proof.verdict, proof.details)
    assert "CUDA" not in output.out
    assert proof.verdict == "verified"


def test_a_container_that_ended_has_no_verdict_any_more(runtime: Containerd, agent: Agent) -> None:
    pod = Pod(runtime, CARD).run()
    container = pod.start()
    assert agent.proof(container).verdict == "verified"
    runtime.cri.stop(container)
    assert container not in agent.until(lambda now: container not in now.proofs).proofs


def test_a_container_that_is_made_and_not_started_is_neither_verified_nor_missing(
    runtime: Containerd, agent: Agent
) -> None:
    pod = Pod(runtime, CARD).run()
    container = pod.create()
    entries = agent.until(lambda now: container in now.proofs)
    assert entries.proofs[container].verdict == "unknown"
    runtime.cri.start(container)
    assert agent.proof(container).verdict == "verified"


@contextlib.contextmanager
def without(agent: Agent) -> Iterator[None]:
    """Nobody is asked by the runtime meanwhile."""
    agent.stop()
    try:
        yield
    finally:
        agent.begin()


@pytest.mark.parametrize(("minor", "verdict"), [(0, "verified"), (2, "excess")])
def test_a_cdi_name_counts_for_the_node_that_it_brought(
    runtime: Containerd, agent: Agent, minor: int, verdict: str
) -> None:
    nodes = [{"path": f"/dev/nvidia{minor}", "hostPath": stranger(runtime, minor)}]
    one = {"name": "GPU-0", "containerEdits": {"deviceNodes": nodes}}
    spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [one]}
    path = runtime.cdi / "nvidia.json"
    path.write_text(json.dumps(spec))
    try:
        with without(agent):
            container = Pod(runtime, CARD).run().start(cdi=["nvidia.com/gpu=GPU-0"])
            with begun(runtime, "cdi") as other:
                proof = other.proof(container)
        tell(f"a CDI name whose file says card {minor}", proof.verdict, proof.details)
        assert opening(runtime.cri, container, f"/dev/nvidia{minor}") == "allowed"
    finally:
        path.unlink()
    assert proof.verdict == verdict
    if minor:
        assert proof.details[0] == "/dev/nvidia2 shows 0000:12:00.0, which was not granted"
        # such a name is not used: what the container should have had instead is missing
        assert "/dev/nvidia0 is not there" in proof.details


def test_a_device_rule_that_is_lost_while_the_container_runs_is_noticed_at_once(
    runtime: Containerd, agent: Agent
) -> None:
    pod = Pod(runtime, CARD).run()
    container = pod.start()
    assert agent.proof(container).verdict == "verified"
    folder = Path(f"{CGROUPS}/devices{runtime.cgroup}{pod.cgroup}/{container}")
    # what a reloaded systemd leaves of the rules of a container: those of devices with a link
    (folder / "devices.deny").write_text("c 195:0 rw")
    assert opening(runtime.cri, container, "/dev/nvidia0") == "denied"
    lost = agent.until(lambda now: now.proofs[container].verdict != "verified").proofs[container]
    tell("a lost rule", lost.verdict, lost.details)
    assert lost.verdict == "missing"
    assert lost.details == ["/dev/nvidia0: the device cgroup denies rw"]
    (folder / "devices.allow").write_text("c 195:0 rw")
    agent.until(lambda now: now.proofs[container].verdict == "verified")


def test_a_granted_card_in_a_pod_without_a_grant_is_excess(
    runtime: Containerd, agent: Agent
) -> None:
    owner = Pod(runtime, CARD).run()
    assert agent.proof(owner.start()).verdict == "verified"
    path, name = stranger(runtime, 0), "/dev/nvidia0"
    device = pb.Device(host_path=path, container_path=name, permissions="rw")
    free = pb.Device(host_path=stranger(runtime), container_path="/dev/nvidia2", permissions="rw")
    plain, other = Pod(runtime).run().start(devices=[free]), Pod(runtime).run()
    proof = agent.proof(other.start(devices=[device]))
    tell("a granted card in a plain pod", proof.verdict, proof.details)
    assert proof.verdict == "excess"
    assert proof.details == [
        f"{name} shows 0000:10:00.0 of team-a/{owner.name}, which was not granted"
    ]
    assert plain not in agent.until(lambda now: plain in now.containers).proofs


@pytest.mark.parametrize(("minor", "verdict"), [(0, "verified"), (2, "excess")])
def test_a_makers_runtime_that_shows_another_card_than_the_granted_one_is_found_out(
    runtime: Containerd, agent: Agent, minor: int, verdict: str
) -> None:
    pod = Pod(runtime, CARD, handler="nvidia").run()  # which is told by a variable alone
    shown = pb.Device(
        host_path=stranger(runtime, minor), container_path=f"/dev/nvidia{minor}", permissions="rw"
    )
    proof = agent.proof(pod.start(devices=[shown]))
    tell(f"granted card 0, shown card {minor}", proof.verdict, proof.details)
    assert proof.verdict == verdict
