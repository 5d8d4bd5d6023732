"""xpu-agent doctor beside an agent in a cluster: what is well, and sources that hang."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agent.app.identity import read_machine
from agent.host.files import LiveHostFiles
from tests.apiserver import ApiServer, Fault
from tests.apiserver.admin import node
from tests.process.agent import DEADLINE_S, Agent, run_agent
from tests.process.citizen import NODE, ROLES, citizen, surroundings

CARDS = "devices: [{uuid: FAKE-7f3a9c21-0000, minor: 0}]\n"


def own_node() -> Any:
    """Return the Node object of this machine."""
    machine = read_machine(LiveHostFiles())
    body = node(NODE)
    info = body["status"].setdefault("nodeInfo", {})
    info.update(machineID=machine.machine_id, bootID=machine.boot_id)
    return body


def doctor(api: ApiServer, agent: Agent, folder: Path, **more: str) -> dict[str, Any]:
    """Return the rows of the doctor in the agent's pod, by id."""
    own = {
        **surroundings(api, folder),
        **more,
        "XPU_AGENT_METRICS__LISTEN": agent.url.split("/")[2],
    }
    process = run_agent("doctor", "-o", "json", timeout_s=DEADLINE_S, **own)
    assert process.returncode in (0, 1), process.stderr
    return {row["id"]: row for row in json.loads(process.stdout)["checks"]}


def test_in_the_agents_pod_the_doctor_checks_the_cluster_and_survives_one_that_hangs(
    tmp_path: Path,
) -> None:
    folder, state = tmp_path / "node", tmp_path / "state"
    state.mkdir()
    (tmp_path / "cards.yaml").write_text(CARDS)
    settings = {
        "XPU_AGENT_DISCOVERY__FAKE__FILE": str(tmp_path / "cards.yaml"),
        "XPU_AGENT_NODE__STATE_DIR": str(state),
        "XPU_AGENT_KUBELET__ROOT_DIR": str(tmp_path / "kubelet"),
        "XPU_AGENT_NRI__ATTACH": "off",
    }
    with (
        ApiServer(objects=(own_node(),), roles=ROLES) as api,
        citizen(api, folder, **settings) as agent,
    ):
        agent.wait_until(lambda: api.get("Device", NODE) is not None, "the Device is published")
        agent.wait_until(lambda: agent.check("watch:nodeslos") != "", "the NodeSLO is asked for")
        rows = doctor(api, agent, folder, **settings)
        well = ("agent", "agent-version", "lock", "api-server", "api-version", "crds", "rights")
        well += ("excess-rights", "node", "node-identity", "clock-skew", "other-writers")
        well += ("state-dir", "run-dir", "metrics-port", "metrics-series", "devices", "vendor:fake")
        assert {name: rows[name]["result"] for name in well} == dict.fromkeys(well, "ok")
        # the Node's Device is not copied to its resources: nobody runs koord-manager here
        assert rows["node-resources"]["result"] in ("warn", "skip")

        api.faults.add(Fault(hang=True, times=0, user_agent="xpu-agent"))
        rows = doctor(api, agent, folder, **settings)
        assert rows["api-server"]["result"] == "fail"
        assert {rows[name]["result"] for name in ("rights", "crds", "node")} == {"skip"}
        assert rows["devices"]["result"] == "ok"
        agent.process.kill()
