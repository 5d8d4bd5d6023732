"""Koordinator's classes of a pod, as its NodeMetric names them."""

from __future__ import annotations

from agent.model.pod import KubeQos, PodView

QOS_LABEL = "koordinator.sh/qosClass"
PRIORITY_LABEL = "koordinator.sh/priority-class"

QOS_CLASSES = ("LSE", "LSR", "LS", "BE", "SYSTEM")
PRIORITY_CLASSES = ("koord-prod", "koord-mid", "koord-batch", "koord-free")

_BY_KUBE_QOS = {
    KubeQos.GUARANTEED: "LSR",
    KubeQos.BURSTABLE: "LS",
    KubeQos.BEST_EFFORT: "BE",
}
_BY_PRIORITY = (
    (range(9000, 10000), "koord-prod"),
    (range(7000, 8000), "koord-mid"),
    (range(5000, 6000), "koord-batch"),
    (range(3000, 4000), "koord-free"),
)


def qos_class(pod: PodView) -> str:
    """Return the QoS class: of the label, if it is one, else by Kubernetes' own class."""
    label = pod.label(QOS_LABEL)
    return label if label in QOS_CLASSES else _BY_KUBE_QOS[pod.qos]


def priority_class(pod: PodView) -> str:
    """Return the priority class. A label that is none keeps `spec.priority` from being asked."""
    label = pod.label(PRIORITY_LABEL)
    if label in PRIORITY_CLASSES:
        return label
    if label is None and pod.priority is not None:
        for span, name in _BY_PRIORITY:
            if pod.priority in span:
                return name
    return "koord-batch" if qos_class(pod) == "BE" else "koord-prod"
