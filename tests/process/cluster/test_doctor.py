"""xpu-agent doctor beside an agent in a cluster: what is well, and sources that hang."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

from agent.app.identity import read_machine
from agent.host.files import LiveHostFiles
from tests.apiserver import ApiServer, Fault
from tests.apiserver.admin import node
from tests.process.agent import DEADLINE_S, PATIENT, Agent, run_agent
from tests.process.citizen import NODE, ROLES, citizen, surroundings

PASSWORD = "hunter2-Zebra"
JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl"
WELL = (
    *("agent", "agent-version", "lock", "api-server", "api-version", "crds", "rights"),
    *("excess-rights", "node", "node-identity", "clock-skew", "other-writers"),
    *("state-dir", "run-dir", "metrics-port", "metrics-series", "devices", "vendor:fake"),
)
CARDS = "devices: [{uuid: FAKE-7f3a9c21-0000, minor: 0}]\n"


def own_node() -> Any:
    """Return the Node object of this machine."""
    machine = read_machine(LiveHostFiles())
    body = node(NODE)
    info = body["status"].setdefault("nodeInfo", {})
    info.update(machineID=machine.machine_id, bootID=machine.boot_id)
    return body


def doctor(
    api: ApiServer, agent: Agent, folder: Path, *arguments: str, **more: str
) -> dict[str, Any]:
    """Return the rows of the doctor in the agent's pod, by id."""
    own = {
        **surroundings(api, folder),
        **more,
        "XPU_AGENT_METRICS__LISTEN": agent.url.split("/")[2],
    }
    process = run_agent("doctor", "-o", "json", *arguments, timeout_s=DEADLINE_S, **own)
    assert process.returncode in (0, 1), process.stderr
    return {row["id"]: row for row in json.loads(process.stdout)["checks"]}


def put_pod_with_secrets(api: ApiServer) -> None:
    """Make a pod of this node with secrets in annotations that the agent reads."""
    manifest = {"spec": {"containers": [{"env": [{"name": "DB", "value": PASSWORD}]}]}}
    annotations = {
        "koordinator.sh/manifest": json.dumps(manifest),
        "xpu-agent.io/note": f"curl -H 'Authorization: Bearer {JWT}'",
        "other.example/secret": PASSWORD,
    }
    metadata = {"name": "leaky", "namespace": "default", "annotations": annotations}
    spec = {"nodeName": NODE, "containers": [{"name": "main", "image": "i"}]}
    api.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


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
        rows = doctor(api, agent, folder, *PATIENT, **settings)
        assert {name: rows[name]["result"] for name in WELL} == dict.fromkeys(WELL, "ok")
        # the Node's Device is not copied to its resources: nobody runs koord-manager here
        assert rows["node-resources"]["result"] in ("warn", "skip")

        put_pod_with_secrets(api)
        agent.wait_until(lambda: "leaky" in agent.get("api/v1/snapshot")[1], "the pod is known")
        bundle = tmp_path / "b.tar.gz"
        doctor(api, agent, folder, *PATIENT, "--bundle", str(bundle), **settings)
        with tarfile.open(bundle) as archive:
            files = {one.name: archive.extractfile(one).read() for one in archive}  # type: ignore[union-attr]
        assert b"leaky" in files["xpu-agent-doctor/agent.json"]
        token = api.token_file.read_text().strip()
        for name, data in files.items():
            assert not [one for one in (PASSWORD, JWT, token) if one.encode() in data], name

        api.faults.add(Fault(hang=True, times=0, user_agent="xpu-agent"))
        rows = doctor(api, agent, folder, "--timeout-s", "6", **settings)
        assert rows["api-server"]["result"] == "fail"
        assert {rows[name]["result"] for name in ("rights", "crds", "node")} == {"skip"}
        assert rows["devices"]["result"] == "ok"
        agent.process.kill()
