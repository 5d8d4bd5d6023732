"""A pod's part of the last-level cache and of the memory bandwidth, by annotation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from agent.containers.qos_class import kube_qos, qos_label
from agent.snapshot.container import (
    NO_ADJUSTMENT,
    Adjustment,
    HookRequest,
    HookStage,
    PodSandbox,
)
from agent.snapshot.edits import ContainerEdits, ContainerNote
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import KubeQos
from agent.wire_formats.annotations import (
    RESCTRL_GROUP_PREFIX,
    AnnotationError,
    parse_json_object,
)

RESCTRL = "node.koordinator.sh/resctrl"
GROUP_MISSING = "ResctrlGroupMissing"
MAX_CACHES = 1024
MAX_CACHE_ID = 65535
_UID = re.compile(r"[0-9a-f-]{36}|[0-9a-f]{32}")

T = TypeVar("T")
Range = tuple[int, int]  # percent of the cache: from, up to


class ResctrlRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's request: for all caches, and for single ones, which take precedence."""

    cache: Range | None = None
    caches: tuple[tuple[int, Range], ...] = ()  # by cache id
    bandwidth_percent: int | None = None
    bandwidths_percent: tuple[tuple[int, int], ...] = ()  # by cache id

    @property
    def is_set(self) -> bool:
        """Return whether the request has any value."""
        return self != NO_REQUEST


NO_REQUEST = ResctrlRequest()

CLASS_OF_QOS = {"LSE": "LSR", "LSR": "LSR", "LS": "LS", "BE": "BE"}  # SYSTEM has no class
# of pods without a label
CLASS_OF_KUBE_QOS = {
    KubeQos.GUARANTEED: "LSR",
    KubeQos.BURSTABLE: "LS",
    KubeQos.BEST_EFFORT: "BE",
}


def group_name(uid: str) -> str | None:
    """Return the name of a pod's group; `None` for a uid that cannot be a directory name."""
    return f"{RESCTRL_GROUP_PREFIX}{uid}" if _UID.fullmatch(uid) else None


def parse_resctrl_request(text: str) -> ResctrlRequest:
    """Decode the annotation; raise `AnnotationError` if any value is out of range.

    Keys are not case-sensitive, as in the programs that write them.
    """
    try:
        members = _lowercase_keys(parse_json_object(text))
        llc, mb = _members(members, "llc"), _members(members, "mb")
        return ResctrlRequest(
            cache=_range(_members(llc, "schemata")),
            caches=_each(llc, _range),
            bandwidth_percent=_percent(_members(mb, "schemata")),
            bandwidths_percent=_each(mb, _percent),
        )
    except AnnotationError as error:
        raise AnnotationError(f"{RESCTRL}: {error}") from error


def _lowercase_keys(members: Mapping[str, object]) -> dict[str, object]:
    return {key.lower(): value for key, value in members.items()}


def _members(members: Mapping[str, object], name: str) -> dict[str, object]:
    value = members.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise AnnotationError(f"{name}: no JSON object")
    return _lowercase_keys(value)


def _each(
    members: Mapping[str, object], read: Callable[[Mapping[str, object]], T | None]
) -> tuple[tuple[int, T], ...]:
    """Return the requests for single caches; the last of two entries for one cache applies."""
    items = members.get("schematapercache")
    if items is None:
        return ()
    if not isinstance(items, list) or len(items) > MAX_CACHES:
        raise AnnotationError(f"schemataPerCache: no list of at most {MAX_CACHES}")
    values: dict[int, T] = {}
    for item in items:
        if not isinstance(item, dict):
            raise AnnotationError("schemataPerCache: a member is no object")
        entry = _lowercase_keys(item)
        cache, value = entry.get("cacheid", 0), read(entry)
        if type(cache) is not int or not 0 <= cache <= MAX_CACHE_ID:
            raise AnnotationError(f"cacheID: no number from 0 to {MAX_CACHE_ID}")
        if value is not None:
            values[cache] = value
    return tuple(sorted(values.items(), key=lambda pair: pair[0]))


def _range(members: Mapping[str, object]) -> Range | None:
    """Return a range; a list of a length other than two is none, as in Koordinator."""
    value = members.get("range")
    if value is None or (isinstance(value, list) and len(value) != 2):
        return None
    if not isinstance(value, list) or not all(type(end) is int for end in value):
        raise AnnotationError("range: no two whole numbers")
    low, high = value
    if not 0 <= low < high <= 100:
        raise AnnotationError("range: must rise, from 0 to 100")
    return int(low), int(high)


def _percent(members: Mapping[str, object]) -> int | None:
    """Return a percentage; 0 means none."""
    value = members.get("percent")
    if value is None or (type(value) is int and value == 0):
        return None
    if type(value) is not int or not 1 <= value <= 100:
        raise AnnotationError("percent: no number from 1 to 100")
    return value


class ResctrlHook:
    """Starts containers in the group of their pod or class, if it exists: else none would start."""

    name = "resctrl"
    stages = frozenset({HookStage.RUN_POD, HookStage.CREATE})
    required = False

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return the RDT class, with a note if the pod's own group does not exist.

        For the pod itself the class is that of the group that must exist before its containers.
        """
        pod = request.pod
        text = pod.annotation(RESCTRL)
        group = None
        if text is not None and parse_resctrl_request(text).is_set:
            group = group_name(pod.uid)
        if request.container is None:
            return NO_ADJUSTMENT if group is None else Adjustment(rdt_class=group)
        if group is not None and _exists(group, snapshot):
            return Adjustment(rdt_class=group)
        class_group = snapshot.resctrl.group_of_class(resctrl_class(pod), pod.namespace) or None
        if group is None:
            return NO_ADJUSTMENT if class_group is None else Adjustment(rdt_class=class_group)
        message = "the pod's resctrl group is not there: its containers run in that of its class"
        return Adjustment(
            rdt_class=class_group,
            edits=ContainerEdits(notes=(ContainerNote(reason=GROUP_MISSING, message=message),)),
        )


def _exists(group: str, snapshot: NodeSnapshot) -> bool:
    """Return whether the group exists: by the agent with its values, or by another program."""
    view = snapshot.resctrl
    if any(one.name == group for one in view.groups):
        return group in view.ready_groups
    return group in snapshot.host_devices.value.resctrl_groups


def resctrl_class(pod: PodSandbox) -> str:
    """Return the class of the NodeSLO that a pod belongs to; empty for the root group."""
    label = qos_label(pod)
    kube = kube_qos(pod)
    if not label and kube is not None:
        label = CLASS_OF_KUBE_QOS[kube]
    return CLASS_OF_QOS.get(label, "")
