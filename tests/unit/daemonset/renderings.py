"""Every combination of the manifests that the tests look at, by name."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import yaml

from tests.unit.daemonset.manifests import COMPONENTS, DAEMONSET, Object, built

PROFILES = ("observe", "devices", "enforce")
SCHEDULER_COMPONENTS = ("load-scores", "network-policy", "node-resources")
# what the profile `observe` leaves nothing to do for
NOT_WITH_OBSERVE = {
    *("ascend", "block-io", "enforce", "evictions", "hami-core", "leave", "nvidia-runtime"),
    *("observe", "openshift", "pod-resources-proxy"),
}


@cache
def profile(name: str) -> tuple[Object, ...]:
    """Return the objects of a profile."""
    return built(DAEMONSET / ("base" if name == "devices" else f"overlays/{name}"))


@cache
def combined(
    resources: tuple[str, ...], components: tuple[str, ...], images: tuple[str, ...] = ()
) -> tuple[Object, ...]:
    """Return what an overlay makes of these folders of `daemonset/`; `images`: NAME=NEWNAME."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        kustomization = {
            "resources": [os.path.relpath(DAEMONSET / part, root) for part in resources],
            "components": [os.path.relpath(DAEMONSET / part, root) for part in components],
            "images": [
                dict(zip(("name", "newName"), one.split("="), strict=True)) for one in images
            ],
        }
        (root / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        return built(root)


def component_renderings(name: str) -> Iterable[tuple[str, tuple[Object, ...]]]:
    """Yield the component over each profile that it is made for, with a name."""
    parts = (f"components/{name}",)
    yield f"devices+{name}", combined(("base",), parts)
    if name not in ("enforce", "observe", "nvidia-runtime", "openshift-observe"):
        yield f"enforce+{name}", combined(("base",), ("components/enforce", *parts))
    if name not in NOT_WITH_OBSERVE:
        yield f"observe+{name}", combined(("base",), ("components/observe", *parts))


@cache
def all_renderings() -> Mapping[str, tuple[Object, ...]]:
    """Return the objects of every combination by its name."""
    result = {
        "devices": profile("devices"),
        "observe": profile("observe"),
        "enforce": profile("enforce"),
        "kubernetes-1.28": built(DAEMONSET / "overlays/kubernetes-1.28"),
        "policy/grants": built(DAEMONSET / "policy/grants"),
        "scheduler": built(DAEMONSET / "scheduler"),
    }
    for name in COMPONENTS:
        result |= dict(component_renderings(name))
    for name in SCHEDULER_COMPONENTS:
        result[f"scheduler+{name}"] = combined(("scheduler",), (f"scheduler-components/{name}",))
    for name in ("strict-ledger", "vendor-annotations"):
        result[f"scheduler+{name}"] = combined(("scheduler",), (f"scheduler/{name}",))
    return result
