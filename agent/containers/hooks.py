"""The hook protocol, the hook for OOM scores, and the node's hooks in the order of their calls."""

from __future__ import annotations

import re
from typing import Protocol

from agent.config.containers import HookSettings
from agent.containers.batch import BatchHook
from agent.containers.core_scheduling import CoreSchedulingHook
from agent.containers.cpu_quota import NodeRatio, NormalizationHook
from agent.containers.cpuset import CpusetHook
from agent.containers.identity import IdentityHook
from agent.containers.resctrl import ResctrlHook
from agent.snapshot.container import NO_ADJUSTMENT, Adjustment, HookRequest, HookStage, PodSandbox
from agent.snapshot.node import NodeSnapshot
from agent.wire_formats.annotations import AnnotationError, parse_json_object


class Hook(Protocol):
    """Decides one concern. Equal arguments give an equal answer; only `SnapshotMemo` caches.

    A hook refuses by raising `AllocationRefused`, and ignores an invalid annotation by raising
    `AnnotationError`, which is reported. Any other exception is a bug: it is counted, and the
    hook's fields are left out; other hooks still apply. A container of a pod with an allocation
    does not start without the answer of a required hook.
    """

    @property
    def name(self) -> str:
        """Return the name, as in `enforce.hooks` if the hook has a switch there."""
        ...

    @property
    def stages(self) -> frozenset[HookStage]:
        """Return the stages at which it is called."""
        ...

    @property
    def required(self) -> bool:
        """Return whether a container must not start without this hook's answer."""
        ...

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return what this hook changes; `NO_ADJUSTMENT` for nothing. No I/O, no waiting."""
        ...


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


DEFAULT_SETTINGS = HookSettings()


def node_hooks(
    *,
    reads_kubelet: bool,
    hooks: HookSettings = DEFAULT_SETTINGS,
    reacts_to_pressure: bool = False,
) -> tuple[Hook, ...]:
    """Return new hooks with empty caches; `reads_kubelet`: the agent reads the kubelet's settings.

    `reacts_to_pressure`: the quota of best-effort pods is cut when other pods wait for CPU. All
    threads share one set, and so the cached results.
    """
    ratio = NodeRatio()
    return (
        BatchHook(ratio, reacts_to_pressure=reacts_to_pressure),
        NormalizationHook(ratio),
        CpusetHook(
            reads_kubelet=reads_kubelet,
            manages_be=hooks.best_effort_cpus,
            unsets_quota=hooks.unset_cpu_quota,
        ),
        IdentityHook(),
        ResctrlHook(),
        CoreSchedulingHook(),
        OomHook(),
    )
