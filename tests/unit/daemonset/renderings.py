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
SCHEDULER_COMPONENTS = {
    **{
        name: f"scheduler-components/{name}"
        for name in ("load-scores", "network-policy", "node-resources")
    },
    **{name: f"scheduler/{name}" for name in ("strict-ledger", "vendor-annotations")},
}
ONLY_WITH_OBSERVE = {"seccomp-observe"}
NOT_WITH_ENFORCE = {
    *("enforce", "observe", "nvidia-runtime", "openshift-observe"),
    *ONLY_WITH_OBSERVE,
}
# what the profile `observe` leaves nothing to do for
NOT_WITH_OBSERVE = {
    *("ascend", "block-io", "enforce", "evictions", "hami-core", "leave", "nvidia-runtime"),
    *("observe", "openshift", "pod-resources-proxy"),
}


def profile(name: str) -> tuple[Object, ...]:
    """Return the objects of a profile."""
    return rendering(name)


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


def rendering_names(*, with_all_profiles: bool = False) -> Iterable[str]:
    """Yield the names of the profiles, and of every component over the base.

    `with_all_profiles`: also of every component over every profile; to render them takes a minute.
    """
    yield from (*PROFILES, "kubernetes-1.28", "policy/grants", "scheduler")
    yield from (f"devices+{name}" for name in COMPONENTS if name not in ONLY_WITH_OBSERVE)
    yield from (f"observe+{name}" for name in ONLY_WITH_OBSERVE)
    yield from (f"scheduler+{name}" for name in SCHEDULER_COMPONENTS)
    if with_all_profiles:
        yield from (f"enforce+{name}" for name in COMPONENTS if name not in NOT_WITH_ENFORCE)
        others = NOT_WITH_OBSERVE | ONLY_WITH_OBSERVE
        yield from (f"observe+{name}" for name in COMPONENTS if name not in others)


def rendering(name: str) -> tuple[Object, ...]:
    """Return the objects of a name."""
    over, _, component = name.partition("+")
    if not component:
        folder = {"devices": "base", "policy/grants": name, "scheduler": name}
        return built(DAEMONSET / folder.get(name, f"overlays/{name}"))
    if over == "scheduler":
        return combined((over,), (SCHEDULER_COMPONENTS[component],))
    own = () if over == "devices" else (f"components/{over}",)
    return combined(("base",), (*own, f"components/{component}"))


def all_renderings() -> Mapping[str, tuple[Object, ...]]:
    """Return the objects of every component over every profile, by name."""
    return {name: rendering(name) for name in rendering_names(with_all_profiles=True)}
