"""Which containers the kernel kills first when memory runs out, by annotation."""

from __future__ import annotations

import re

from agent.snapshot.container import NO_ADJUSTMENT, Adjustment, HookRequest, HookStage, PodSandbox
from agent.snapshot.node import NodeSnapshot
from agent.wire_formats.annotations import AnnotationError, parse_json_object

OOM_SPEC = "koordinator.sh/oom-score-adj-spec"  # by container
OOM_DEFAULT = "koordinator.sh/oom-score-adj"  # for all others
LOW, HIGH = -1000, 1000
_NUMBER = re.compile(r"[+-]?[0-9]{1,5}")


def oom_score(pod: PodSandbox, container: str) -> int | None:
    """Return a container's value; `None` if the pod has none.

    Raises `AnnotationError` for a value that is invalid or out of range; an invalid list of
    containers also keeps the default from being used.
    """
    spec, default = pod.annotation(OOM_SPEC), pod.annotation(OOM_DEFAULT)
    if spec is not None:
        try:
            values = parse_json_object(spec)
        except AnnotationError as error:
            raise AnnotationError(f"{OOM_SPEC}: {error}") from error
        if any(type(score) is not int for score in values.values()):
            raise AnnotationError(f"{OOM_SPEC}: a value is no whole number")
        if container in values:
            return _in_range(OOM_SPEC, values[container])
    if default is None:
        return None
    if not _NUMBER.fullmatch(default):
        raise AnnotationError(f"{OOM_DEFAULT}: no whole number")
    return _in_range(OOM_DEFAULT, int(default))


def _in_range(key: str, value: object) -> int:
    if not isinstance(value, int) or not LOW <= value <= HIGH:
        raise AnnotationError(f"{key}: no number from {LOW} to {HIGH}")
    return value


class OomHook:
    """Sets the OOM score of a running container's processes, never of the sandbox."""

    name = "oom_score"
    stages = frozenset({HookStage.RECONCILE})
    required = False

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:  # noqa: ARG002 - see Hook
        """Return the value of the pod's annotation."""
        if request.container is None or not request.container.name:
            return NO_ADJUSTMENT
        value = oom_score(request.pod, request.container.name)
        return NO_ADJUSTMENT if value is None else Adjustment(oom_score_adj=value)
