"""Kubeconfig files, and plug-ins that make credentials."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from agent.kube.endpoint import KubeconfigTarget

SERVER = "https://10.0.0.1:6443"
EXEC_API = "client.authentication.k8s.io/v1"


def kubeconfig(
    folder: Path,
    user: Mapping[str, object],
    cluster: Mapping[str, object] | None = None,
    name: str = "config",
) -> KubeconfigTarget:
    """Write a kubeconfig with one context, and say where."""
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": SERVER, **(cluster or {})}}],
        "users": [{"name": "u", "user": dict(user)}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / name
    path.write_text(yaml.safe_dump(body))
    return KubeconfigTarget(paths=str(path))


def plug_in(
    folder: Path, status: object, *, says: str = "", ends_with: int = 0
) -> dict[str, object]:
    """Write a program that answers with this status, and return the user that runs it.

    Each run adds a line to `runs`; the status may be replaced in `status.json`.
    """
    credential = {"apiVersion": EXEC_API, "kind": "ExecCredential", "status": status}
    (folder / "status.json").write_text(says or json.dumps(credential))
    program = folder / "plug-in"
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        f"open({str(folder / 'runs')!r}, 'a').write(os.environ['KUBERNETES_EXEC_INFO'] + chr(10))\n"
        f"print(open({str(folder / 'status.json')!r}).read())\n"
        f"sys.exit({ends_with})\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"apiVersion": EXEC_API, "command": str(program)}}


def runs(folder: Path) -> int:
    """Return how often the plug-in ran."""
    file = folder / "runs"
    return len(file.read_text().splitlines()) if file.exists() else 0
