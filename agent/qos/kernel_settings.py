"""Settings of the kernel that a NodeSLO asks for: memory reserves, scheduler features, switches.

The values are those of Koordinator's `pkg/koordlet/qosmanager/plugins/sysreconcile`. A number that
is out of range is replaced by the nearest one in it, and settings are restored.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from agent.cgroup import host_settings as settings
from agent.cgroup.host_settings import FEATURE_FILES, directory_of, feature_key
from agent.cgroup.keys import CgroupKey, CgroupValue
from agent.cgroup.write_plan import DesiredValue
from agent.containers.core_scheduling import core_scheduling_rule
from agent.containers.identity import identity_rule
from agent.qos.strategy import NOT_REQUESTED, QosInputs, StrategyPlan
from agent.snapshot.self_check import StrategyState
from agent.snapshot.slo import NodeSlo, SystemStrategy

SOURCE = "NodeSLO spec.systemStrategy"
KBYTE = 1024
MIN_FREE_RANGE = (10240, 10485760)  # kbytes
MAX_FREE_PERCENT = 5  # of the memory: more would make the kernel reclaim all the time
WATERMARK_RANGE = (10, 400)
RECHECK_S = 60.0  # files may appear: a module, or debugfs that is mounted
NO_CAPACITY = "the memory of the node is not known (yet)"


class KernelSettingsState(msgspec.Struct, frozen=True):
    """The last plan, and what it was computed from."""

    slo: NodeSlo | None = None
    memory_bytes: int | None = None
    computed_s: float = 0.0
    plan: StrategyPlan = NOT_REQUESTED


class _Request(msgspec.Struct, frozen=True):
    """One setting that a field of the NodeSLO asks for."""

    key: CgroupKey
    value: int
    field: str
    note: str = ""  # why the value differs from the field


class KernelSettingsStrategy:
    """Writes the settings of `spec.systemStrategy`; a field that is not set asks for nothing."""

    name = "kernel_settings"

    def start(self) -> KernelSettingsState:
        """Return the state before the first cycle."""
        return KernelSettingsState()

    def plan(
        self, inputs: QosInputs, state: KernelSettingsState
    ) -> tuple[StrategyPlan, KernelSettingsState]:
        """Return all settings; the last plan while the NodeSLO and the memory are the same."""
        slo, memory_bytes = inputs.slo, inputs.node.memory_bytes
        if not _is_requested(slo.system):
            return NOT_REQUESTED, KernelSettingsState()
        if memory_bytes is None:
            plan = msgspec.structs.replace(
                state.plan, state=StrategyState.WAITING, message=NO_CAPACITY
            )
            return plan, state
        is_same = slo is state.slo and memory_bytes == state.memory_bytes
        if is_same and inputs.now_s - state.computed_s < RECHECK_S:
            return state.plan, state
        plan = self._plan(inputs, memory_bytes)
        if plan == state.plan:
            plan = state.plan  # the same object costs less later
        return plan, KernelSettingsState(slo, memory_bytes, inputs.now_s, plan)

    def _plan(self, inputs: QosInputs, memory_bytes: int) -> StrategyPlan:
        values: list[DesiredValue] = []
        missing: list[str] = []
        notes: list[str] = []
        for request in _requests(inputs, memory_bytes):
            key = request.key
            if _current(inputs, key) is None:
                missing.append(key.host_file)
                continue
            conflict = _conflict(inputs, request)
            if conflict:
                notes.append(f"{request.field}: {conflict}")
                continue
            if request.note:
                notes.append(f"{request.field}: {request.note}")
            text = key.text(inputs.layout.version, request.value).strip()
            values.append(
                DesiredValue(
                    cgroup=directory_of(key),
                    key=key,
                    value=request.value,
                    owner=self.name,
                    message=f"update {key.host_file} to {text}",
                    source=f"{SOURCE}.{request.field}",
                )
            )
        if missing:
            notes.append(f"not on this kernel: {', '.join(dict.fromkeys(missing))}")
        is_unsupported = bool(missing) and not values
        return StrategyPlan(
            values=tuple(values),
            state=StrategyState.UNSUPPORTED if is_unsupported else StrategyState.ACTIVE,
            message="; ".join(notes),
        )


def min_free_kbytes(capacity_bytes: int, factor: int, total_bytes: int) -> tuple[int, str]:
    """Return the reserve for a factor of 1/10000 of the node's capacity, and why it is another.

    It is never more than `MAX_FREE_PERCENT` of the machine's memory.
    """
    exact = capacity_bytes // KBYTE * factor // 10000
    low, high = MIN_FREE_RANGE
    most = min(high, total_bytes // KBYTE * MAX_FREE_PERCENT // 100)
    value = min(max(exact, low), most)
    if value == exact:
        return value, ""
    limit = f"{MAX_FREE_PERCENT} % of the memory" if value == most < high else f"{low} to {high}"
    return value, f"{exact} kbytes are out of range ({limit}): {value}"


def watermark_scale_factor(value: int) -> tuple[int, str]:
    """Return the factor within its range, and why it is another."""
    low, high = WATERMARK_RANGE
    inside = min(max(value, low), high)
    return inside, "" if inside == value else f"{value} is out of range ({low} to {high}): {inside}"


def _is_requested(system: SystemStrategy) -> bool:
    return bool(system.sched_features) or any(
        field is not None
        for field in (
            system.min_free_kbytes_factor,
            system.watermark_scale_factor,
            system.memcg_reap_back_ground,
            system.sched_group_identity_enabled,
            system.sched_idle_saver_wmark,
            system.page_cache_limit_enabled,
        )
    )


def _requests(inputs: QosInputs, capacity_bytes: int) -> Iterator[_Request]:
    """Yield the settings in Koordinator's order."""
    system = inputs.slo.system
    if system.min_free_kbytes_factor is not None:
        usage = inputs.usage
        total_bytes = None if usage is None else usage.node.memory_total_bytes
        value, note = min_free_kbytes(
            capacity_bytes, system.min_free_kbytes_factor, total_bytes or capacity_bytes
        )
        yield _Request(settings.MIN_FREE_KBYTES, value, "minFreeKbytesFactor", note)
    if system.watermark_scale_factor is not None:
        value, note = watermark_scale_factor(system.watermark_scale_factor)
        yield _Request(settings.WATERMARK_SCALE, value, "watermarkScaleFactor", note)
    plain = (
        (settings.REAP_BACKGROUND, system.memcg_reap_back_ground, "memcgReapBackGround"),
        (
            settings.GROUP_IDENTITY,
            system.sched_group_identity_enabled,
            "schedGroupIdentityEnabled",
        ),
        (settings.IDLE_SAVER_WATERMARK, system.sched_idle_saver_wmark, "schedIdleSaverWmark"),
        (settings.PAGE_CACHE_LIMIT, system.page_cache_limit_enabled, "pageCacheLimitEnabled"),
    )
    for key, number, field in plain:
        if number is not None:
            yield _Request(key, number, field)
    for name, is_on in system.sched_features:
        yield _Request(_feature_key(inputs, name), int(is_on), f"schedFeatures.{name}")


def _feature_key(inputs: QosInputs, name: str) -> CgroupKey:
    """Return the key of a feature in the file that this kernel has."""
    keys = [feature_key(path, name) for path in FEATURE_FILES]
    return next((key for key in keys if _current(inputs, key) is not None), keys[0])


def _current(inputs: QosInputs, key: CgroupKey) -> CgroupValue | None:
    return inputs.current.value(directory_of(key), key)


def _conflict(inputs: QosInputs, request: _Request) -> str:
    """Return why the switch of group identity is not written; empty for every other setting."""
    if request.key is not settings.GROUP_IDENTITY:
        return ""
    if identity_rule(inputs.slo).enabled or core_scheduling_rule(inputs.slo).enabled:
        return "resourceQOSStrategy.policies.cpuPolicy sets this switch"
    if request.value and _current(inputs, settings.CORE_SCHEDULING) == 1:
        return "core scheduling is on, and both together lock up the kernel"
    return ""
