"""The agent as people run it, at a real runtime: what it gives, proves, tells and puts right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from proto.gen import cri_config_v1_pb2 as pb
from tests.containerd.agent_side.whole import WholeAgent, grant_annotation, nodes, whole
from tests.containerd.runtime.inside import cgroup_file, opening, opening_made, tell
from tests.containerd.runtime.leavings import CGROUPS
from tests.containerd.runtime.pods import Pod
from tests.containerd.runtime.running import Containerd

PINNED = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": "1"})}
LSR = {"koordinator.sh/qosClass": "LSR"}


@pytest.fixture(scope="module")
def agent(runtime: Containerd) -> Iterator[WholeAgent]:
    with whole(runtime) as started:
        yield started


def test_a_grant_is_injected_verified_and_shown_by_the_metric(
    runtime: Containerd, agent: WholeAgent
) -> None:
    pod = Pod(runtime, grant_annotation(0)).run()
    container = pod.start()
    first, second = nodes()
    assert opening(runtime.cri, container, first) == "allowed"
    assert opening(runtime.cri, container, second) == "absent"
    assert opening_made(runtime.cri, container, 240, 1) == "denied"
    agent.until(lambda: agent.verified(pod.name, "main") == "1")
    runtime.cri.remove_pod(pod.id)
    agent.until(lambda: agent.verified(pod.name, "main") == "")


def test_a_grant_of_an_unknown_card_prevents_the_start_and_is_reported(
    runtime: Containerd, agent: WholeAgent
) -> None:
    pod = Pod(runtime, grant_annotation(7)).run()
    with pytest.raises(grpc.RpcError) as raised:
        pod.start()
    output = raised.value.details() or ""
    agent.until(lambda: "DeviceUnknown" in agent.reasons(pod.name))
    tell("an unknown card", output, agent.reasons(pod.name))
    assert "DeviceUnknown" in output


def test_all_is_as_it_was_after_the_agent_and_the_runtime_were_killed_in_turn(
    runtime: Containerd, agent: WholeAgent
) -> None:
    pod = Pod(runtime, grant_annotation(0)).run()
    container = pod.start()
    agent.until(lambda: agent.verified(pod.name, "main") == "1")
    agent.kill()
    agent.begin()
    agent.until(lambda: agent.verified(pod.name, "main") == "1")
    runtime.kill()
    agent.until(lambda: "[-] runtime waiting" in agent.get("healthz?verbose"))
    runtime.start()
    agent.until(lambda: "[+] runtime synchronized" in agent.get("healthz?verbose"))
    agent.until(lambda: agent.verified(pod.name, "main") == "1")
    assert opening(runtime.cri, container, nodes()[0]) == "allowed"
    assert opening(runtime.cri, pod.start("more"), nodes()[0]) == "allowed"
    agent.until(lambda: agent.verified(pod.name, "more") == "1")


def test_a_lost_device_rule_and_a_granted_card_in_another_pod_are_reported(
    runtime: Containerd, agent: WholeAgent
) -> None:
    owner, other = Pod(runtime, grant_annotation(1)).run(), Pod(runtime).run()
    container, node = owner.start(), nodes()[1]
    agent.until(lambda: agent.verified(owner.name, "main") == "1")
    group = Path(f"{CGROUPS}/devices{runtime.cgroup}{owner.cgroup}/{container}")
    (group / "devices.deny").write_text("c 240:1 rw")
    agent.until(lambda: agent.verified(owner.name, "main") == "0")
    agent.until(lambda: "AllocationNotVerified" in agent.reasons(owner.name))
    (group / "devices.allow").write_text("c 240:1 rw")
    agent.until(lambda: agent.verified(owner.name, "main") == "1")
    shown = pb.Device(host_path=node, container_path=node, permissions="rw")
    other.start(devices=[shown])
    agent.until(lambda: agent.verified(other.name, "main") == "0")
    agent.until(lambda: "AllocationNotVerified" in agent.reasons(other.name))
    tell("reasons", agent.reasons(owner.name), agent.reasons(other.name))
    assert "AllocationVerified" in agent.reasons(owner.name)


def test_containers_created_without_the_agent_are_corrected_or_reported(
    runtime: Containerd, agent: WholeAgent
) -> None:
    agent.kill()
    pod = Pod(runtime, {**grant_annotation(1), **PINNED}, LSR).run()
    container = pod.start()
    before = cgroup_file(pod, container, "cpuset", "cpuset.cpus")
    agent.begin()
    agent.until(lambda: cgroup_file(pod, container, "cpuset", "cpuset.cpus") == "1")
    agent.until(lambda: agent.verified(pod.name, "main") == "0")
    agent.until(lambda: "AllocationNotVerified" in agent.reasons(pod.name))
    tell("made while the agent was away", f"cpus {before}, then 1", agent.reasons(pod.name))
    assert before == "0-1"
    assert opening(runtime.cri, container, nodes()[1]) == "absent"
