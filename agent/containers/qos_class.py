"""A pod's QoS classes for hooks: Koordinator's by its label, Kubernetes' by its cgroup path."""

from __future__ import annotations

import re

from agent.snapshot.container import PodSandbox
from agent.snapshot.pod import KubeQos
from agent.wire_formats.annotations import QOS_CLASSES, QOS_LABEL

_CLASSES = {"besteffort": KubeQos.BEST_EFFORT, "burstable": KubeQos.BURSTABLE}
# the last directory of a class, or slice of it or below it: `-` separates the levels of a slice
_CLASS_DIRECTORY = re.compile(
    r"(?:.*/)?(?:(besteffort|burstable)"
    r"|(?:[^/]*-)?kubepods-(?:[^/]*-)?(besteffort|burstable)(?:-[^/]*)?\.slice)(?:/|$)"
)


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
    if not pod.cgroup_parent.strip("/"):
        return None
    directory = _CLASS_DIRECTORY.match(pod.cgroup_parent)
    return KubeQos.GUARANTEED if directory is None else _CLASSES[directory[1] or directory[2]]
