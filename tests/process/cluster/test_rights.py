"""The rights of `daemonset/base` against what the agent asks for: none lacks, none is too much."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from agent.app.identity import read_machine
from agent.clock import ManualClock, SystemClock
from agent.kube.endpoint import InClusterTarget
from agent.kube.event_backlog import REPEAT_S
from agent.kube.events import EventSink
from agent.kube.session import open_session
from agent.recording.host_source import open_host
from agent.wire_formats.event import Event, EventReporter
from tests.apiserver import ApiServer
from tests.apiserver.access import AGENT
from tests.apiserver.admin import node
from tests.apiserver.rbac import read_roles
from tests.fault.kubelet.fake_http import SUBRESOURCES, FakeKubelet, pod
from tests.process.agent import EIGHT_CARDS, NO_DEVICES, Agent
from tests.process.citizen import BASE, NODE, ROLES, citizen
from tests.unit.daemonset.rights import Right, compare, verbs_granted, verbs_used

ROLE_VERBS = verbs_granted(read_roles(ROLES))
AT_KUBELET = {"nodes/pods", "nodes/configz"}
METRIC = {
    "apiVersion": "slo.koordinator.sh/v1alpha1",
    "kind": "NodeMetric",
    "metadata": {"name": NODE},
    "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}},
}


def stored(api: ApiServer, reason: str) -> bool:
    return any(item.get("reason") == reason for item in api.list("events"))


def a_node_with_cards(api: ApiServer, kubelet: FakeKubelet, folder: Path) -> None:
    port = {"XPU_AGENT_KUBELET__PORT": str(kubelet.port)}
    with citizen(api, folder, "--host", str(EIGHT_CARDS), **port) as agent:
        agent.wait_until(lambda: api.get("Device", NODE) is not None, "a Device")
        agent.wait_until(lambda: api.get("NodeResourceTopology", NODE) is not None, "a topology")
        agent.wait_until(lambda: "status" in (api.get("NodeMetric", NODE) or {}), "a report")
        requests = {"/pods/", "/configz"}
        agent.wait_until(
            lambda: requests <= {one.path for one in kubelet.asked if one.status == 200},
            "pods and settings of the kubelet",
        )
        os.kill(agent.vendor("nvidia")["pid"], signal.SIGKILL)
        agent.wait_until(lambda: stored(api, "VendorWorkerRestarting"), "an event")
        assert agent.end() == 0


def a_node_whose_cards_were_taken_out(api: ApiServer, folder: Path) -> None:
    with citizen(api, folder, "--host", str(NO_DEVICES)) as agent:
        agent.wait_until(lambda: api.get("Device", NODE) is None, "no Device any more")
        assert agent.end() == 0


async def an_event_that_repeats(api: ApiServer) -> None:
    """Tell a repeat, for which a process would need a minute; the account and code are its own."""
    folder = str(api.serviceaccount_dir)
    session = await open_session(InClusterTarget(url=api.url, folder=folder), SystemClock(), {})
    clock = ManualClock()
    sink = EventSink(session, EventReporter(name=NODE), clock)
    for _ in range(2):
        again = Event(
            type="Normal", reason="Again", message="m", object_kind="Node", at_s=clock.wall()
        )
        sink.offer([again])
        await sink.step()
        clock.advance(REPEAT_S)
    assert await sink.step() is None
    assert sink.state.counts.repeated == 1
    await session.close()


def test_the_cluster_role_grants_all_that_the_agent_does_and_nothing_else(tmp_path: Path) -> None:
    at_kubelet: set[Right] = set()

    async def run(api: ApiServer) -> None:
        kubelet = FakeKubelet(tmp_path)
        kubelet.users = {api.token_file.read_text(): AGENT}
        kubelet.rights = {AGENT: {right.resource for right in ROLE_VERBS}}
        kubelet.pods = [pod("train-0")]
        async with kubelet.running():
            await asyncio.to_thread(a_node_with_cards, api, kubelet, tmp_path / "node")
        at_kubelet.update(
            Right("", f"nodes/{SUBRESOURCES[one.path]}", "get") for one in kubelet.asked
        )
        await asyncio.to_thread(a_node_whose_cards_were_taken_out, api, tmp_path / "node")
        await an_event_that_repeats(api)

    own = node(NODE, machine_id=read_machine(open_host(str(NO_DEVICES)).files).machine_id)
    with ApiServer(objects=(own, METRIC), roles=ROLES) as api:
        asyncio.run(run(api))
        requests = api.requests()
    used = verbs_used(requests, AGENT) | at_kubelet
    difference = compare(used, ROLE_VERBS)
    assert difference.missing == ()
    assert difference.unused == ()
    assert [logged.path for logged in requests if logged.status == 403] == []
    for right in sorted(used):
        print(*right)  # noqa: T201 - the table of rights used


def test_without_a_right_the_agent_says_which_and_does_the_rest(tmp_path: Path) -> None:
    with ApiServer(nodes=(NODE,), objects=(METRIC,), roles=ROLES) as api:
        api.revoke(next(rule for rule in read_roles(ROLES) if "devices" in rule.resources))
        with citizen(api, tmp_path / "node", "--host", str(EIGHT_CARDS)) as agent:
            agent.wait_until(lambda: api.get("NodeResourceTopology", NODE) is not None, "the rest")
            agent.wait_until(lambda: "[-] publisher:device" in checks(agent), "a failed check")
            (output,) = (line for line in checks(agent).splitlines() if "publisher:device" in line)
            assert "grant it in the agent's ClusterRole" in output
            assert agent.get("livez") == (200, "ok\n")
            assert api.get("Device", NODE) is None


def checks(agent: Agent) -> str:
    return agent.get("healthz?verbose")[1]


@pytest.mark.parametrize(
    ("component", "setting", "seen"),
    [
        ("node-condition", "XPU_AGENT_API__NODE_CONDITION", "AcceleratorsHealthy"),
        ("node-labels", "XPU_AGENT_API__NODE_LABELS", "H100"),
    ],
)
def test_a_component_grants_what_its_setting_needs_and_nothing_else(
    tmp_path: Path, component: str, setting: str, seen: str
) -> None:
    added = BASE.parent / "components" / component / "rbac.yaml"
    roles = tmp_path / "roles.yaml"
    roles.write_text(f"{ROLES.read_text()}\n---\n{added.read_text()}")
    with (
        ApiServer(nodes=(NODE,), roles=roles) as api,
        citizen(api, tmp_path / "node", "--host", str(EIGHT_CARDS), **{setting: "true"}) as agent,
    ):
        agent.wait_until(lambda: seen in str(api.get("Node", NODE)), "the Node")
        used = verbs_used(api.requests(), AGENT)
    assert used - ROLE_VERBS == verbs_granted(read_roles(added))
    assert all(logged.status != 403 for logged in api.requests())
