"""Which CPUs belong to pods alone: by the scheduler's word, or by the kubelet's."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.model.classes import QOS_LABEL
from agent.model.cluster.annotation import BadAnnotation, Refused, cpu_list, json_object
from agent.model.cluster.facts import KubeletFacts
from agent.model.cluster.pods import ENDED
from agent.model.pod import PodView
from agent.topology.cpu import CpuSet

RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
STATIC = "static"  # the CPU manager's policy that gives CPUs away
EXCLUSIVE = "LSE"  # the class whose CPUs best-effort pods may not use either
_SHARED = ("LS", "BE")  # classes whose pods hold no CPUs, whatever the kubelet gave them


class PodCpus(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs of one pod."""

    uid: str
    name: str = ""  # empty: the kubelet has not listed it
    namespace: str = ""
    cpus: CpuSet
    label: str = ""  # of its QoS class; what the pod does not say is not guessed here


def status_cpus(pod: PodView) -> CpuSet:
    """Return what the scheduler gave the pod, none without its annotation.

    Raise `BadAnnotation` for an annotation that means nothing.
    """
    text = next((value for key, value in pod.annotations if key == RESOURCE_STATUS), None)
    if text is None:
        return frozenset()
    cpus = json_object(text).get("cpuset")
    return frozenset() if cpus in (None, "") else cpu_list(cpus)


def scheduled_cpus(pods: Iterable[PodView]) -> tuple[tuple[PodCpus, ...], tuple[Refused, ...]]:
    """Return the pods that the scheduler gave CPUs, and the annotations that mean nothing.

    A pod that has ended holds none: the scheduler gives its CPUs to others while it is still
    listed.
    """
    found: list[PodCpus] = []
    refused: list[Refused] = []
    for pod in (pod for pod in pods if pod.phase not in ENDED):
        try:
            cpus = status_cpus(pod)
        except BadAnnotation as error:
            refused.append(Refused(path=RESOURCE_STATUS, why=str(error), pod=pod))
            continue
        if cpus:
            found.append(_of(pod, cpus))
    return tuple(found), tuple(refused)


def kubelet_cpus(
    kubelet: KubeletFacts, pods: Iterable[PodView], scheduled: Iterable[PodCpus]
) -> tuple[PodCpus, ...]:
    """Return the pods whose CPUs are the kubelet's gift, by uid.

    Not those of the classes that share CPUs, nor those that the scheduler gave some: what the
    kubelet gave them does not hold. A pod that nobody listed counts, without a name.
    """
    if kubelet.cpu_manager_policy != STATIC:
        return ()
    known = {pod.uid: pod for pod in pods}
    others = {one.uid for one in scheduled}
    others |= {uid for uid, pod in known.items() if pod.label(QOS_LABEL) in _SHARED}
    return tuple(
        _of(known[uid], cpus) if uid in known else PodCpus(uid=uid, cpus=cpus)
        for uid, cpus in sorted(kubelet.pod_cpus)
        if cpus and uid not in others
    )


def _of(pod: PodView, cpus: CpuSet) -> PodCpus:
    label = pod.label(QOS_LABEL) or ""
    return PodCpus(uid=pod.uid, name=pod.name, namespace=pod.namespace, cpus=cpus, label=label)
