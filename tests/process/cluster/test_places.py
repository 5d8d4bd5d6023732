"""Where an agent of a cluster has its files: the node's own folder, or none of the node's."""

from __future__ import annotations

from pathlib import Path

from agent.app.identity import read_machine
from agent.host.files import LiveHostFiles
from tests.apiserver import ApiServer
from tests.apiserver.admin import node
from tests.process.agent import NO_DEVICES, run_agent
from tests.process.citizen import NODE, ROLES, citizen

PLAIN = {"XPU_AGENT_ADMIN__SOCKET": "", "XPU_AGENT_KUBELET__ENABLED": "false"}


def test_commands_find_the_agent_of_this_node_by_the_settings_that_it_has(tmp_path: Path) -> None:
    own = node(NODE, machine_id=read_machine(LiveHostFiles()).machine_id)
    run_dir = str(tmp_path / "run")
    with ApiServer(objects=(own,), roles=ROLES) as api, citizen(api, tmp_path, **PLAIN) as agent:
        agent.wait_until((tmp_path / "run" / "admin.sock").exists, "the socket")
        process = run_agent("rescan", XPU_AGENT_NODE__RUN_DIR=run_dir)
        assert (process.returncode, process.stderr) == (0, "")
        assert agent.end() == 0


def test_an_agent_of_a_recorded_host_touches_no_folder_of_the_node(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("--host", str(NO_DEVICES), "--out", str(out))
    with (
        ApiServer(nodes=(NODE,), roles=ROLES) as api,
        citizen(api, tmp_path, *arguments, **PLAIN) as agent,
    ):
        agent.wait_until((out / "admin.sock").exists, "the socket")
        assert not (tmp_path / "run").exists()
        assert agent.end() == 0
