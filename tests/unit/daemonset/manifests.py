"""The manifests of `daemonset/`, as kustomize puts them together."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
DAEMONSET = ROOT / "daemonset"
COMPONENTS = (
    "ascend",
    "block-io",
    "enforce",
    "evictions",
    "hami-core",
    "kubelet-proxy",
    "metrics-auth",
    "network-policy",
    "node-condition",
    "node-labels",
    "nvidia-runtime",
    "observe",
    "openshift",
    "openshift-observe",
    "pod-monitor",
    "pod-resources-proxy",
    "priority-quota",
    "seccomp-observe",
    "without-policy",
    "leave",  # the last one: it removes what others change
)

Object = dict[str, Any]


def kubectl() -> str:
    """Return the kubectl beside this Python, else that of the path."""
    beside = Path(sys.executable).with_name("kubectl")
    return str(beside) if beside.exists() else shutil.which("kubectl") or "kubectl"


@cache
def built(folder: Path) -> tuple[Object, ...]:
    """Return the objects that kustomize makes of a folder."""
    outcome = subprocess.run(
        [kubectl(), "kustomize", "--load-restrictor=LoadRestrictionsNone", str(folder)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    return tuple(yaml.safe_load_all(outcome.stdout))


def the(objects: tuple[Object, ...], kind: str, name: str = "xpu-agent") -> Object:
    """Return the one object of a kind whose name is, or begins with, the given one."""
    (result,) = (
        item
        for item in objects
        if item["kind"] == kind and item["metadata"]["name"].startswith(name)
    )
    return result
