"""The kubelet beside a whole agent: absent, there, hanging, gone, back with other settings."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.apiserver import ApiServer
from tests.apiserver.access import AGENT
from tests.fault.kubelet.fake_http import HANG, FakeKubelet, pod
from tests.process.agent import EIGHT_CARDS, Agent
from tests.process.citizen import NODE, ROLES, citizen

POLICY = "kubelet.koordinator.sh/cpu-manager-policy"


def policy(api: ApiServer) -> Any:
    result = api.get("NodeResourceTopology", NODE) or {"metadata": {}}
    return json.loads(result["metadata"].get("annotations", {}).get(POLICY, "null"))


def pods(agent: Agent) -> list[str]:
    return sorted(one["name"] for one in agent.snapshot()["parts"]["pods"]["value"])


def bound(api: ApiServer, name: str) -> str:
    """Make a pod of the node; return its uid."""
    own: dict[str, Any] = {**pod(name), "apiVersion": "v1", "kind": "Pod"}
    own["metadata"] = {"name": name, "namespace": "default"}
    return str(api.put(own)["metadata"]["uid"])


async def comes(agent: Agent, holds: Callable[[], bool], what: str) -> None:
    """Wait on a thread of its own: the kubelet is served on this one."""
    await asyncio.to_thread(agent.wait_until, holds, what)


def test_a_kubelet_that_is_absent_hangs_and_restarts_costs_its_own_part_only(
    tmp_path: Path,
) -> None:
    async def run(api: ApiServer) -> None:
        kubelet = FakeKubelet(tmp_path)
        kubelet.users = {api.token_file.read_text(): AGENT}
        kubelet.rights = {AGENT: {"nodes/pods", "nodes/configz"}}
        kubelet.pods = [pod("train-0", bound(api, "train-0"))]
        kubelet.config = {"cpuManagerPolicy": "none", "topologyManagerPolicy": "none"}
        await kubelet.start()
        await kubelet.stop()  # its port is known now, and nobody listens
        settings = {
            "XPU_AGENT_KUBELET__PORT": str(kubelet.port),
            "XPU_AGENT_KUBELET__INTERVAL_S": "1",
            "XPU_AGENT_KUBELET__TIMEOUT_S": "1",
        }
        with citizen(api, tmp_path / "node", "--host", str(EIGHT_CARDS), **settings) as agent:
            await comes(agent, lambda: api.get("Device", NODE) is not None, "a Device")
            await comes(agent, lambda: "pods absent" in agent.check("kubelet"), "it is said")
            assert policy(api) is None  # what is not known is not told
            await comes(agent, lambda: agent.get("readyz") == (200, "ok\n"), "ready")

            await kubelet.start()
            await comes(agent, lambda: policy(api) == {"policy": "none"}, "its policy")
            await comes(agent, lambda: "pods ok" in agent.check("kubelet"), "that it is well")
            await comes(agent, lambda: pods(agent) == ["train-0"], "its pod")

            kubelet.faults["/pods/"] = HANG
            await comes(agent, lambda: "pods hanging" in agent.check("kubelet"), "that it hangs")
            assert pods(agent) == ["train-0"]
            assert agent.get("readyz") == (200, "ok\n")

            await kubelet.stop()
            await comes(agent, lambda: "pods absent" in agent.check("kubelet"), "that it is gone")
            assert pods(agent) == ["train-0"]
            assert policy(api) == {"policy": "none"}

            kubelet.faults.clear()
            kubelet.config = {**kubelet.config, "cpuManagerPolicy": "static"}
            await kubelet.start()
            await comes(agent, lambda: policy(api) == {"policy": "static"}, "its new policy")
            await comes(
                agent, lambda: agent.check("kubelet").startswith("[+]"), "that it is well again"
            )
            await asyncio.to_thread(agent.end)
        await kubelet.stop()

    with ApiServer(nodes=(NODE,), roles=ROLES) as api:
        asyncio.run(run(api))
