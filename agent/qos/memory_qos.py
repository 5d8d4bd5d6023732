"""Memory QoS: protects the memory of pods, and slows containers down before their limit.

Nothing is desired of a file whose setting has the value that changes nothing: what the agent wrote
there before is restored. A protection or limit that another program had set when the agent first
read the file, as the kubelet does with its feature MemoryQoS, stays as it is; the QoS directories,
whose protection covers all pods below, get the larger one of the kubelet's value and the sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from agent.cgroup.keys import (
    HIGH,
    LOW,
    MIN,
    NO_LIMIT,
    PAGE_CACHE_ENABLE,
    CgroupKey,
    CgroupValue,
)
from agent.cgroup.paths import qos_directory
from agent.cgroup.write_plan import DesiredValue, WriteTarget
from agent.qos.memory_rules import (
    DISABLED,
    NUMBER_KEYS,
    PRIORITY_KEYS,
    MemoryAmounts,
    PodMemoryQos,
    class_memory_qos,
    container_amounts,
    needs_allocatable,
    page_cache_values,
    part_of,
    pod_amounts,
    pod_memory_qos,
    protection,
    throttling_limit,
)
from agent.qos.strategy import NOT_REQUESTED, CurrentValues, QosInputs, QosPod, StrategyPlan
from agent.snapshot.pod import KubeQos, PodView
from agent.snapshot.self_check import StrategyState
from agent.snapshot.slo import MemoryQos, ResourceQos
from agent.wire_formats.annotations import AnnotationError

NAME = "memory_qos"
SUPPORT_S = 60.0  # between two looks for the files that the kernel has
RECHECK_S = 300.0  # between two looks for values of other programs
RECHECK_GROUPS = 16  # pods are read again in turn, not all in one cycle
MEMORY = "memory"
NO_FILES = (
    "the kernel has none of the files, such as memory.min and memory.high: on cgroup version 1 only"
    " kernels derived from Anolis have them"
)
_PROTECTIONS = ((MIN, "min_limit_percent"), (LOW, "low_limit_percent"))
_DIRECTORY_CLASSES = (
    (KubeQos.GUARANTEED, "lsr_class"),
    (KubeQos.BURSTABLE, "ls_class"),
    (KubeQos.BEST_EFFORT, "be_class"),
)
_OPTIONAL_KEYS = (MIN, LOW, HIGH, *(key for key, _ in NUMBER_KEYS), PAGE_CACHE_ENABLE)


class _MemoryPod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's settings and amounts; `qos` is `None` if nothing is desired of its files."""

    view: PodView
    pod: QosPod
    qos: PodMemoryQos | None = None
    amounts: MemoryAmounts = MemoryAmounts()
    problem: str = ""


class _PodValues(msgspec.Struct, frozen=True, kw_only=True):
    """The desired values of one pod's files, until the pod or its settings change."""

    pod: _MemoryPod
    allocatable: int | None
    values: tuple[DesiredValue, ...]
    files_of_others: int = 0  # set by another program
    read_s: float


class MemoryState(msgspec.Struct, frozen=True, kw_only=True):
    """What the strategy remembers between cycles."""

    strategy: ResourceQos | None = None
    qos_pods: tuple[QosPod, ...] | None = None
    pods: Mapping[str, _MemoryPod] = {}  # by uid
    requested: tuple[_MemoryPod, ...] = ()  # pods of whose files something may be desired
    sums: tuple[tuple[CgroupKey, Mapping[KubeQos, int]], ...] = ()  # of the QoS directories
    problem: str = ""
    supported: frozenset[str] = frozenset()  # names of keys
    supported_s: float | None = None  # when that was read
    allocatable: int | None = None
    values: Mapping[str, _PodValues] = {}  # by uid
    due_s: float = float("-inf")  # when files of a pod are read next
    directories: tuple[DesiredValue, ...] = ()
    protection_of_kubelet: Mapping[WriteTarget, int] = {}  # that it wrote over the agent's
    present: Mapping[WriteTarget, CgroupValue] = {}  # of the directories, read in the last cycle
    plan: StrategyPlan | None = None


class MemoryQosStrategy:
    """The strategy."""

    name = NAME

    def start(self) -> MemoryState:
        """Return the state before the first cycle."""
        return MemoryState()

    def plan(self, inputs: QosInputs, state: MemoryState) -> tuple[StrategyPlan, MemoryState]:
        """Return the values of all pods; those of a pod are computed when it changes."""
        if not inputs.has_pods:
            return _waiting(state, "the list of pods is not read yet"), state
        state = _prepare(inputs, state)
        if not state.requested:
            return NOT_REQUESTED, msgspec.structs.replace(
                state, values={}, directories=(), protection_of_kubelet={}, present={}, plan=None
            )
        state = _read_support(inputs, state)
        if not state.supported:
            plan = StrategyPlan(state=StrategyState.UNSUPPORTED, message=NO_FILES)
            return plan, msgspec.structs.replace(state, plan=None)
        allocatable = inputs.node.allocatable_of(MEMORY)
        if allocatable is None and any(map(_needs_allocatable, state.requested)):
            return _waiting(state, "the Node's allocatable memory is not known"), state
        after = _update_values(inputs, state, allocatable)
        present = _present_protections(inputs, after)
        directories, of_kubelet = _directory_values(inputs, after, present)
        plan = _strategy_plan(state, after, directories)
        return plan, msgspec.structs.replace(
            after,
            directories=directories,
            protection_of_kubelet=of_kubelet,
            present=present,
            plan=plan,
        )


def _waiting(state: MemoryState, message: str) -> StrategyPlan:
    values = state.plan.values if state.plan is not None else ()
    return StrategyPlan(values=values, state=StrategyState.WAITING, message=message)


def _prepare(inputs: QosInputs, state: MemoryState) -> MemoryState:
    """Return the state with the pods of now; the same object if nothing changed."""
    strategy, pods = inputs.slo.resource_qos, inputs.pods
    is_same_strategy = strategy is state.strategy or strategy == state.strategy
    if is_same_strategy and pods is state.qos_pods:
        return state
    before = state.pods if is_same_strategy else {}
    prepared: dict[str, _MemoryPod] = {}
    for pod in pods:
        last = before.get(pod.uid)
        is_same = last is not None and last.view is pod.view
        prepared[pod.uid] = last if last is not None and is_same else _memory_pod(pod, strategy)
    requested = tuple(one for one in prepared.values() if one.qos is not None)
    return msgspec.structs.replace(
        state,
        strategy=strategy,
        qos_pods=pods,
        pods=prepared,
        requested=requested,
        sums=tuple((key, directory_sums(requested, name)) for key, name in _PROTECTIONS),
        problem=next((one.problem for one in prepared.values() if one.problem), ""),
        due_s=inputs.now_s,
    )


def _memory_pod(pod: QosPod, strategy: ResourceQos) -> _MemoryPod:
    problem, amounts = "", pod_amounts(pod)
    if not pod.is_active or not pod.cgroup or amounts is None:
        return _MemoryPod(view=pod.view, pod=pod)
    try:
        qos = pod_memory_qos(pod, strategy)
    except AnnotationError as error:
        plain = msgspec.structs.replace(pod.view, annotations=())
        qos = pod_memory_qos(msgspec.structs.replace(pod, view=plain), strategy)
        problem = f"Pod {pod.view.namespace}/{pod.view.name}: {error}"
    return _MemoryPod(
        view=pod.view,
        pod=pod,
        qos=None if _changes_nothing(qos.memory) else qos,
        amounts=amounts,
        problem=problem,
    )


def _changes_nothing(memory: MemoryQos) -> bool:
    return msgspec.structs.replace(memory, enable=False) == DISABLED


def _read_support(inputs: QosInputs, state: MemoryState) -> MemoryState:
    """Return the state with the files that the kernel has, read once in a while."""
    if state.supported_s is not None and inputs.now_s - state.supported_s < SUPPORT_S:
        return state
    root = inputs.layout.root or ""
    supported = frozenset(
        key.name for key in _OPTIONAL_KEYS if inputs.current.value(root, key) is not None
    )
    is_same = supported == state.supported
    return msgspec.structs.replace(
        state,
        supported=supported,
        supported_s=inputs.now_s,
        values=state.values if is_same else {},
        due_s=state.due_s if is_same else inputs.now_s,
    )


def _needs_allocatable(pod: _MemoryPod) -> bool:
    return pod.qos is not None and any(
        needs_allocatable(container_amounts(container, pod.pod.label), pod.qos.memory)
        for container in pod.pod.containers
    )


def _update_values(inputs: QosInputs, state: MemoryState, allocatable: int | None) -> MemoryState:
    """Return the state with the values of all pods; the same object if none is due."""
    if inputs.now_s < state.due_s and allocatable == state.allocatable:
        return state
    values = {
        one.view.uid: _pod_values(one, allocatable, number, inputs, state)
        for number, one in enumerate(state.requested)
    }
    due_s = min(value.read_s for value in values.values()) + RECHECK_S
    return msgspec.structs.replace(state, allocatable=allocatable, values=values, due_s=due_s)


def _pod_values(
    pod: _MemoryPod, allocatable: int | None, number: int, inputs: QosInputs, state: MemoryState
) -> _PodValues:
    """Return the values of a pod; equal values are the same object as before."""
    last = state.values.get(pod.view.uid)
    if last is not None and last.pod is pod and last.allocatable == allocatable:
        if inputs.now_s - last.read_s < RECHECK_S:
            return last
        read_s = inputs.now_s
    else:
        read_s = inputs.now_s - RECHECK_S * (number % RECHECK_GROUPS) / RECHECK_GROUPS
    collected = _FileValues(pod, inputs.current, state.supported)
    collected.add_pod()
    for container in pod.pod.containers:
        if container.resources.runs_beside_others:
            amounts = container_amounts(container, pod.pod.label)
            collected.add_container(container.cgroup, amounts, allocatable or 0)
    new = tuple(collected.desired)
    return _PodValues(
        pod=pod,
        allocatable=allocatable,
        values=last.values if last is not None and last.values == new else new,
        files_of_others=collected.files_of_others,
        read_s=read_s,
    )


class _FileValues:
    """Collects the desired values of one pod and its containers."""

    def __init__(self, pod: _MemoryPod, current: CurrentValues, supported: frozenset[str]) -> None:
        self.desired: list[DesiredValue] = []
        self.files_of_others = 0
        self._pod = pod
        self._qos = pod.qos or PodMemoryQos(memory=DISABLED, source="")
        self._current = current
        self._supported = supported

    def add_pod(self) -> None:
        """Add the files of the pod's own cgroup."""
        memory, cgroup = self._qos.memory, self._pod.view.cgroup
        minimum, low = protection(self._pod.amounts, memory)
        self._add_amount(cgroup, "pod", MIN, minimum, 0)
        self._add_amount(cgroup, "pod", LOW, low, 0)
        self._add_numbers(cgroup, "pod")
        if PAGE_CACHE_ENABLE.name in self._supported:
            for key, value in page_cache_values(memory, self._pod.amounts.limit):
                self._add(cgroup, "pod", key, value)

    def add_container(self, cgroup: str, amounts: MemoryAmounts, allocatable: int) -> None:
        """Add the files of one container."""
        memory = self._qos.memory
        minimum, low = protection(amounts, memory)
        self._add_amount(cgroup, "container", MIN, minimum, 0)
        self._add_amount(cgroup, "container", LOW, low, 0)
        high = throttling_limit(amounts, memory, allocatable)
        self._add_amount(cgroup, "container", HIGH, high, NO_LIMIT)
        self._add_numbers(cgroup, "container")

    def _add_amount(
        self, cgroup: str, level: str, key: CgroupKey, value: int, neutral: int
    ) -> None:
        """Add a protection or limit, unless another program has set one."""
        if value == neutral or key.name not in self._supported:
            return
        at_first = self._current.original(cgroup, key)
        if at_first is None:
            at_first = self._current.value(cgroup, key)
        if at_first in (None, neutral):
            self._add(cgroup, level, key, value)
        else:
            self.files_of_others += 1

    def _add_numbers(self, cgroup: str, level: str) -> None:
        for key, name in NUMBER_KEYS:
            value = getattr(self._qos.memory, name)
            if value != getattr(DISABLED, name) and key.name in self._supported:
                self._add(cgroup, level, key, value)

    def _add(self, cgroup: str, level: str, key: CgroupKey, value: int) -> None:
        self.desired.append(_desired(cgroup, level, key, value, self._qos.source))


def _desired(cgroup: str, level: str, key: CgroupKey, value: int, source: str) -> DesiredValue:
    return DesiredValue(
        cgroup=cgroup,
        key=key,
        value=value,
        owner=NAME,
        message=f"set {level} {key.name} to {value}",
        source=source,
    )


def _present_protections(
    inputs: QosInputs, state: MemoryState
) -> Mapping[WriteTarget, CgroupValue]:
    """Return what protects the QoS directories now."""
    present: dict[WriteTarget, CgroupValue] = {}
    for key, sums in state.sums:
        for qos in sums if key.name in state.supported else ():
            cgroup = qos_directory(inputs.layout, qos)
            value = inputs.current.value(cgroup, key)
            if value is not None:
                present[cgroup, key.name] = value
    return present


def _directory_values(
    inputs: QosInputs, state: MemoryState, present: Mapping[WriteTarget, CgroupValue]
) -> tuple[tuple[DesiredValue, ...], Mapping[WriteTarget, int]]:
    """Return the values of the QoS directories, and what the kubelet wants of them."""
    desired: list[DesiredValue] = []
    of_kubelet: dict[WriteTarget, int] = {}
    last = {directory.target: directory.value for directory in state.directories}
    for key, sums in state.sums:
        if key.name not in state.supported:
            continue
        for qos, total in sums.items():
            cgroup = qos_directory(inputs.layout, qos)
            target = cgroup, key.name
            at_first = inputs.current.original(cgroup, key)
            kubelet = _protection_of_kubelet(
                key,
                present.get(target),
                at_first,
                (last.get(target), state.present.get(target)),
                state.protection_of_kubelet.get(target),
            )
            if kubelet is not None:
                of_kubelet[target] = kubelet
            value = max(kubelet or 0, total)
            if value != (present.get(target) if at_first is None else at_first):
                source = "NodeSLO spec.resourceQOSStrategy: sum of the pods below"
                desired.append(_desired(cgroup, "kubeqos", key, value, source))
    desired += _directory_priorities(inputs, state)
    new = tuple(desired)
    return state.directories if state.directories == new else new, of_kubelet


def directory_sums(pods: tuple[_MemoryPod, ...], name: str) -> dict[KubeQos, int]:
    """Return what all pods of each Kubernetes class protect; the root has all of them."""
    sums = dict.fromkeys(KubeQos, 0)
    for pod in pods:
        if pod.qos is not None:
            part = part_of(pod.amounts.request, getattr(pod.qos.memory, name))
            sums[KubeQos.GUARANTEED] += part
            if pod.view.qos is not KubeQos.GUARANTEED:
                sums[pod.view.qos] += part
    return sums


def _protection_of_kubelet(
    key: CgroupKey,
    present: CgroupValue | None,
    at_first: CgroupValue | None,
    before: tuple[CgroupValue | None, CgroupValue | None],
    earlier: int | None,
) -> int | None:
    """Return the kubelet's own protection: found first, or written over the agent's value.

    `before`: what the last cycle desired, and what it read. The latter is still there if that cycle
    could not write.
    """
    if at_first is None:
        return present if isinstance(present, int) else None
    is_rewritten = (
        present is not None
        and before[0] is not None
        and not any(value is not None and key.is_equivalent(value, present) for value in before)
    )
    kubelet = present if is_rewritten else at_first if earlier is None else earlier
    return kubelet if isinstance(kubelet, int) else None


def _directory_priorities(inputs: QosInputs, state: MemoryState) -> Iterator[DesiredValue]:
    """Yield the priorities of the directories; they are never killed as a whole."""
    for qos, class_name in _DIRECTORY_CLASSES:
        config = class_memory_qos(inputs.slo.resource_qos, class_name)
        for key, name in PRIORITY_KEYS:
            value = getattr(config.memory, name)
            if value != getattr(DISABLED, name) and key.name in state.supported:
                cgroup = qos_directory(inputs.layout, qos)
                yield _desired(cgroup, "kubeqos", key, value, config.source)


def _strategy_plan(
    before: MemoryState, after: MemoryState, directories: tuple[DesiredValue, ...]
) -> StrategyPlan:
    """Return the plan of all files; equal values are the same object as before."""
    values, last = after.values, before.plan
    is_same = directories is before.directories and _are_same(values, before.values)
    if last is not None and is_same:
        all_values = last.values
    else:
        all_values = (*directories, *(value for one in values.values() for value in one.values))
    others = sum(value.files_of_others for value in values.values())
    return StrategyPlan(
        values=all_values,
        message=after.problem,
        figures=(("pods", float(len(values))), ("files_of_other_programs", float(others))),
    )


def _are_same(now: Mapping[str, _PodValues], before: Mapping[str, _PodValues]) -> bool:
    """Return whether the values of all pods are the same objects."""
    return now is before or (
        now.keys() == before.keys() and all(now[uid].values is before[uid].values for uid in now)
    )
