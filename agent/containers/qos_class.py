"""A pod's QoS classes for hooks: Koordinator's by its label, Kubernetes' by its cgroup path."""

from __future__ import annotations

from agent.snapshot.container import PodSandbox
from agent.snapshot.pod import KubeQos
from agent.wire_formats.annotations import QOS_CLASSES, QOS_LABEL

_BELOW = (("besteffort", KubeQos.BEST_EFFORT), ("burstable", KubeQos.BURSTABLE))
_SLICE = ".slice"


def qos_label(pod: PodSandbox) -> str:
    """Return the class of the label; empty without one or for an unknown class."""
    label = pod.label(QOS_LABEL)
    return label if label in QOS_CLASSES else ""


def kube_qos(pod: PodSandbox) -> KubeQos | None:
    """Return Kubernetes' class by the components of the cgroup path; `None` without a path.

    The kubelet's directories are `besteffort` with the cgroupfs driver and
    `…kubepods-besteffort….slice` with systemd's, where the pod's own slice has the name as well:
    the last component alone is enough.
    """
    parts = [part for part in pod.cgroup_parent.split("/") if part]
    if not parts:
        return None
    for name, qos in _BELOW:
        if any(part == name or _is_slice(part, name) for part in parts):
            return qos
    return KubeQos.GUARANTEED


def _is_slice(part: str, name: str) -> bool:
    """Return whether a slice is that of the class, or below it: `-` separates levels."""
    levels = part.removesuffix(_SLICE).split("-")
    return part.endswith(_SLICE) and "kubepods" in levels and name in levels
