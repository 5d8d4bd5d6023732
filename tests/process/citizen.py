"""The agent as a process in a cluster: a strict API server, and a kubelet where asked for."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.apiserver import ApiServer
from tests.process.agent import DEADLINE_S, ROOT, Agent, _wait_for_url, command

BASE = ROOT / "daemonset" / "base"
ROLES = BASE / "rbac.yaml"
NODE = "node-a"


def surroundings(api: ApiServer, folder: Path) -> dict[str, str]:
    """Return the environment of a pod of that cluster whose node has its folders below `folder`."""
    where = urlsplit(api.url)
    return {
        "KUBERNETES_SERVICE_HOST": str(where.hostname),
        "KUBERNETES_SERVICE_PORT": str(where.port),
        "XPU_AGENT_SERVICE_ACCOUNT": str(api.serviceaccount_dir),
        "XPU_AGENT_NODE__NAME": NODE,
        "XPU_AGENT_NODE__RUN_DIR": str(folder / "run"),
        "XPU_AGENT_ADMIN__SOCKET": str(folder / "admin.sock"),
    }


@contextmanager
def citizen(
    api: ApiServer, folder: Path, *arguments: str, prefix: Sequence[str] = (), **environment: str
) -> Iterator[Agent]:
    """Run the agent in that cluster until the block ends; `prefix` is a program that becomes it."""
    folder.mkdir(exist_ok=True)
    with (folder / "stderr.log").open("a") as log:
        process = subprocess.Popen(
            [*prefix, *command("run", "--listen", "127.0.0.1:0", *arguments)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env={**os.environ, **surroundings(api, folder), **environment},
        )
    agent = Agent(process, folder / "run")
    try:
        _wait_for_url(agent)
        yield agent
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(DEADLINE_S)
