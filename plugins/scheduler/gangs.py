"""The gang of a pod: pods that are useful only together. Annotations are untrusted text.

Keys and their order are those of Koordinator's coscheduling: the label of a PodGroup comes first.
"""

from __future__ import annotations

import msgspec

from agent.errors import ParseError
from agent.wire_formats.json_values import JSON_ERRORS
from plugins.scheduler.pod_object import SchedulerPod

# the second one is that of earlier versions of the PodGroup API
GROUP_LABELS = ("pod-group.scheduling.sigs.k8s.io", "pod-group.scheduling.sigs.k8s.io/name")
NAME_ANNOTATION = "gang.scheduling.koordinator.sh/name"
LEAST_ANNOTATION = "gang.scheduling.koordinator.sh/min-available"
LEAST_LABEL = "pod-group.scheduling.sigs.k8s.io/min-available"
MAX_DIGITS = 6  # of a number of members


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """A gang as one pod names it.

    `least`: the smallest number of pods; `None`: the pod does not name it.
    """

    namespace: str
    name: str
    least: int | None = None

    def __str__(self) -> str:
        """Return the gang as reasons name it."""
        return f"gang {self.namespace}/{self.name}"


class _GroupMetadata(msgspec.Struct):
    name: str
    namespace: str = "default"


class _GroupSpec(msgspec.Struct, rename="camel"):
    min_member: int | None = None


class _GroupObject(msgspec.Struct):
    metadata: _GroupMetadata
    spec: _GroupSpec | None = None


_GROUP = msgspec.json.Decoder(_GroupObject)


def gang_of(pod: SchedulerPod) -> Gang | None:
    """Return the gang of a pod; `None` for a pod without a gang."""
    names = (*map(pod.labels.get, GROUP_LABELS), pod.annotations.get(NAME_ANNOTATION))
    name = next(filter(None, names), "")
    if not name:
        return None
    text = pod.annotations.get(LEAST_ANNOTATION) or pod.labels.get(LEAST_LABEL, "")
    is_number = text.isdecimal() and len(text) <= MAX_DIGITS
    return Gang(namespace=pod.key.namespace, name=name, least=int(text) if is_number else None)


def decode_pod_group(data: bytes) -> Gang:
    """Return the gang of a PodGroup object in JSON; raises `ParseError` if it is invalid."""
    try:
        decoded = _GROUP.decode(data)
    except JSON_ERRORS as error:
        raise ParseError(f"PodGroup: {type(error).__name__}", "") from error
    least = None if decoded.spec is None else decoded.spec.min_member
    metadata = decoded.metadata
    return Gang(namespace=metadata.namespace, name=metadata.name, least=least)
