"""Settings of the kernel that a NodeSLO asks for, on a kernel in memory that is strict."""

from __future__ import annotations

import errno

import pytest

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.host_settings import FEATURE_FILES
from agent.cgroup.key_index import find_key
from agent.cgroup.keys import CgroupKey, CgroupValue
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import SYSCTL_HIERARCHY, ChangeLedger, LedgerEntry
from agent.cgroup.restore import RestoreResult, restore_entries
from agent.cgroup.values import CgroupValues
from agent.cgroup.writer import CgroupWriter
from agent.clock import ManualClock
from agent.errors import ParseError
from agent.qos.kernel_settings import (
    KernelSettingsState,
    KernelSettingsStrategy,
    min_free_kbytes,
    watermark_scale_factor,
)
from agent.qos.strategy import NodeCapacity, QosInputs, StrategyPlan
from agent.slo.overlay import overlay_spec
from agent.snapshot.self_check import StrategyState
from tests.cgroup_v2.settings import MIN_FREE, NEW_FEATURES, REAPER, WATERMARK, FakeSettings

GIB = 1 << 30
LAYOUT = CgroupLayout(
    version=2, driver="cgroupfs", mounts=(), unified="/sys/fs/cgroup", root="/kubepods"
)


class Node:
    """A kernel, the agent's writer, and the strategy."""

    def __init__(self, kernel: FakeSettings) -> None:
        self.kernel = kernel
        self.values = CgroupValues(kernel, LAYOUT)
        self.ledger = ChangeLedger(None, "")
        self.clock = ManualClock()
        self.writer = CgroupWriter(self.values, self.ledger, self.clock)
        self.strategy = KernelSettingsStrategy()
        self.state = KernelSettingsState()

    def value(self, cgroup: str, key: CgroupKey) -> CgroupValue | None:
        return self.values.read_value(cgroup, key)

    def original(self, cgroup: str, key: CgroupKey) -> CgroupValue | None:  # noqa: ARG002 - as its Protocol
        return None

    def effective_cpus(self, cgroup: str) -> frozenset[int] | None:  # noqa: ARG002 - as its Protocol
        return None

    def plan(
        self, spec: object, memory_bytes: int | None = 64 * GIB, **slo: object
    ) -> StrategyPlan:
        """Return the plan for a `systemStrategy`; `slo` are further parts of the NodeSLO."""
        inputs = QosInputs(
            now_s=self.clock.monotonic(),
            slo=overlay_spec({"systemStrategy": spec, **slo}).slo,
            node=NodeCapacity(memory_bytes=memory_bytes),
            layout=LAYOUT,
            current=self,
        )
        plan, self.state = self.strategy.plan(inputs, self.state)
        return plan

    def write(self, spec: object, **more: object) -> list[str]:
        """Write what the NodeSLO asks for; return the reasons of problems."""
        self.clock.advance(1.0)
        plan = self.plan(spec, **more)  # type: ignore[arg-type]
        prepared = self.writer.prepare(plan.values, self.clock.monotonic(), "kernel_settings")
        self.writer.record_in_ledger(prepared)
        result = self.writer.apply(prepared, self.clock.monotonic())
        return [problem.reason for problem in result.problems]

    def restore(self, *, dry_run: bool = False) -> tuple[RestoreResult, ...]:
        """Restore all originals."""
        entries = tuple(self.ledger.entries.values())
        return restore_entries(
            self.ledger, self.values, entries, monotonic=lambda: 0.0, dry_run=dry_run
        )


def numbers(plan: StrategyPlan) -> dict[str, CgroupValue]:
    return {value.key.host_file: value.value for value in plan.values}


@pytest.mark.parametrize(
    ("memory_gib", "factor", "kbytes", "is_exact"),
    [
        (512, 88, 4724464, True),  # Y1
        (512, 400, 10485760, False),  # Y2, which Koordinator does not write at all
        (8, 10, 10240, False),  # Y3, likewise
        (64, 100, 671088, True),  # Y4
        (1, 1000, 52428, False),  # 5 % of the memory
        (0.125, 1, 6553, False),  # also where that is below the lower limit
    ],
)
def test_the_reserve_is_a_part_of_the_memory_within_limits(
    memory_gib: float, factor: int, kbytes: int, is_exact: bool
) -> None:
    memory_bytes = int(memory_gib * GIB)
    value, note = min_free_kbytes(memory_bytes, factor, memory_bytes)
    assert (value, not note) == (kbytes, is_exact)


@pytest.mark.parametrize(("asked", "value"), [(5, 10), (10, 10), (99, 99), (400, 400), (500, 400)])
def test_the_watermark_factor_is_the_nearest_one_in_range(asked: int, value: int) -> None:  # Y5
    result, note = watermark_scale_factor(asked)
    assert (result, bool(note)) == (value, value != asked)


@pytest.mark.parametrize(("asked", "is_written"), [(-1, False), (1, True), (2, False)])
def test_a_switch_has_two_values(asked: int, is_written: bool) -> None:  # Y6
    node = Node(FakeSettings(reap_background=0))
    node.write({"memcgReapBackGround": asked})
    assert node.kernel.writes == ([(REAPER, "1")] if is_written else [])


def feature_node(path: str, **features: bool) -> Node:
    kernel = FakeSettings()
    kernel.feature_file, kernel.features = path, features
    return Node(kernel)


@pytest.mark.parametrize("path", FEATURE_FILES)
def test_only_features_that_differ_are_written_each_with_one_write(path: str) -> None:  # Y8
    node = feature_node(path, A=True, B=False)
    node.write({"schedFeatures": {"A": True, "B": True}})
    assert node.kernel.writes == [(path, "B\n")]
    node.write({"schedFeatures": {"A": False, "B": True}})
    assert node.kernel.writes[1:] == [(path, "NO_A\n")]


@pytest.mark.parametrize(
    ("feature", "is_on", "text"),
    [("ID_ABSOLUTE_EXPEL", True, "ID_ABSOLUTE_EXPEL\n"), ("X", False, "NO_X\n")],
)
def test_a_feature_that_the_kernel_does_not_list_is_tried_once_and_reported(  # Y7
    feature: str, is_on: bool, text: str
) -> None:
    node = feature_node(NEW_FEATURES, OTHER=True)
    plan = node.plan({"schedFeatures": {feature: is_on}})
    assert [value.key.text(2, value.value) for value in plan.values] == [text]
    assert node.write({"schedFeatures": {feature: is_on}}) == ["ValueRefused"]
    assert node.write({"schedFeatures": {feature: is_on}}) == []
    node.restore()
    assert node.ledger.entries == {}


def test_everything_that_was_written_is_restored() -> None:
    kernel = FakeSettings(
        min_free_kbytes=67584,
        watermark_scale_factor=10,
        reap_background=0,
        sched_group_identity_enabled=0,
        sched_idle_saver_wmark=-5,
        enabled=1,
    )
    kernel.feature_file, kernel.features = NEW_FEATURES, {"GENTLE": True, "WAKE": False}
    files, node = dict(kernel.files), Node(kernel)
    spec = {
        "minFreeKbytesFactor": 100,
        "watermarkScaleFactor": 150,
        "memcgReapBackGround": 1,
        "schedGroupIdentityEnabled": 1,
        "schedIdleSaverWmark": 12,
        "pageCacheLimitEnabled": 0,
        "schedFeatures": {"GENTLE": False, "WAKE": True},
    }
    assert node.write(spec) == []
    assert len(kernel.writes) == 8
    assert kernel.files[MIN_FREE] == "671088\n"
    planned = [one.summary for one in node.restore(dry_run=True)]
    assert "/proc/sys/vm/vm.min_free_kbytes 671088 → 67584" in planned
    assert {one.state for one in node.restore()} == {"restored"}
    assert (kernel.files, kernel.features) == (files, {"GENTLE": True, "WAKE": False})
    assert node.ledger.entries == {}


def test_a_setting_that_another_program_changes_is_written_again() -> None:
    node = Node(FakeSettings(watermark_scale_factor=10))
    node.write({"watermarkScaleFactor": 100})
    node.kernel.files[WATERMARK] = "10\n"
    node.write({"watermarkScaleFactor": 100})
    assert node.kernel.files[WATERMARK] == "100\n"
    (entry,) = node.ledger.entries.values()
    assert entry.original == "10"


@pytest.mark.parametrize("number", [errno.EROFS, errno.EPERM, errno.EACCES])
def test_where_settings_may_not_be_written_the_strategy_stops_and_says_so(number: int) -> None:
    node = Node(FakeSettings(watermark_scale_factor=10, min_free_kbytes=67584))
    node.kernel.refuses = number
    spec = {"watermarkScaleFactor": 100, "minFreeKbytesFactor": 100}
    assert node.write(spec) == ["WriteNotPermitted"]
    assert node.write(spec) == []
    suspended = node.writer.refusals.suspended_writes(node.clock.monotonic())
    assert [name for name, _ in suspended] == ["kernel_settings"]


def test_settings_that_the_kernel_lacks_are_reported_and_the_others_written() -> None:
    node = Node(FakeSettings(watermark_scale_factor=10))
    spec = {"watermarkScaleFactor": 100, "memcgReapBackGround": 1, "schedFeatures": {"A": True}}
    plan = node.plan(spec)
    assert numbers(plan) == {WATERMARK: 100}
    assert plan.message == f"not on this kernel: {REAPER}, {NEW_FEATURES}"
    assert plan.state is StrategyState.ACTIVE
    assert node.plan({"memcgReapBackGround": 1}).state is StrategyState.UNSUPPORTED


def test_a_file_that_appears_later_is_written() -> None:
    node = Node(FakeSettings(watermark_scale_factor=10))
    inputs_of = {"memcgReapBackGround": 1, "watermarkScaleFactor": 100}
    slo = overlay_spec({"systemStrategy": inputs_of}).slo
    result = []
    for _ in range(70):
        node.clock.advance(1.0)
        inputs = QosInputs(
            now_s=node.clock.monotonic(),
            slo=slo,
            node=NodeCapacity(memory_bytes=GIB),
            layout=LAYOUT,
            current=node,
        )
        plan, node.state = node.strategy.plan(inputs, node.state)
        result.append(len(plan.values))
        node.kernel.files[REAPER] = "0\n"
    assert (result[0], result[-1]) == (1, 2)


@pytest.mark.parametrize(
    "policies",
    [
        {"policies": {"cpuPolicy": "coreSched"}},
        {"lsClass": {"cpuQOS": {"enable": True, "groupIdentity": 2}}},
    ],
)
def test_the_switch_of_group_identity_is_left_to_the_policy_of_the_classes(
    policies: object,
) -> None:
    node = Node(FakeSettings(sched_group_identity_enabled=0))
    plan = node.plan({"schedGroupIdentityEnabled": 1}, resourceQOSStrategy=policies)
    assert plan.values == ()
    assert "cpuPolicy" in plan.message


def test_group_identity_is_not_switched_on_beside_core_scheduling() -> None:
    node = Node(FakeSettings(sched_group_identity_enabled=0, sched_core=1))
    plan = node.plan({"schedGroupIdentityEnabled": 1})
    assert plan.values == ()
    assert "lock up" in plan.message
    assert node.plan({"schedGroupIdentityEnabled": 0}).values != ()


def test_without_the_nodes_memory_the_last_settings_stay() -> None:
    node = Node(FakeSettings(watermark_scale_factor=10))
    first = node.plan({"watermarkScaleFactor": 100})
    waiting = node.plan({"watermarkScaleFactor": 100}, memory_bytes=None)
    assert (waiting.values, waiting.state) == (first.values, StrategyState.WAITING)
    assert node.plan({}, memory_bytes=None).state is StrategyState.IDLE


def test_every_setting_names_its_field_and_an_unchanged_plan_is_the_same_object() -> None:
    node = Node(FakeSettings(watermark_scale_factor=10))
    plan = node.plan({"watermarkScaleFactor": 100})
    (one,) = plan.values
    assert one.source == "NodeSLO spec.systemStrategy.watermarkScaleFactor"
    assert one.message == f"update {WATERMARK} to 100"
    assert node.plan({"watermarkScaleFactor": 100}) is plan


@pytest.mark.parametrize(
    ("path", "key", "original"),
    [
        ("/proc/sys/kernel", "vm.min_free_kbytes", "10"),  # another directory
        ("/proc/sys/vm", "vm.min_free_kbytes", "-1"),
        ("/proc/sys/vm", "vm.min_free_kbytes", "|/bin/sh"),
        ("/proc/sys/vm", "vm.overcommit_memory", "1"),
        ("/proc/sys/vm", "vm.min_free_kbytes", str(1 << 31)),
        ("/sys/kernel/debug/sched", "sched/features A", "7"),
        ("/sys/kernel/debug/sched", "sched/features A\nB", "1"),
    ],
)
def test_a_damaged_ledger_writes_no_other_file_and_no_other_value(
    path: str, key: str, original: str
) -> None:
    kernel = FakeSettings(min_free_kbytes=5)
    kernel.feature_file, kernel.features = NEW_FEATURES, {"A": True}
    node = Node(kernel)
    node.ledger.set(
        LedgerEntry(
            hierarchy=SYSCTL_HIERARCHY,
            path=path,
            inode=0,
            key=key,
            owner="kernel_settings",
            original=original,
            own_values=("5", "1"),
        )
    )
    assert [one.state for one in node.restore()] == ["refused"]
    assert kernel.writes == []


def test_names_of_the_ledger_have_one_file_each() -> None:
    feature = find_key("sched/features WAKE")
    assert feature is not None
    assert feature.host_file == NEW_FEATURES
    for name in ("sched/features wake", "sched/features", "kernel.core_pattern", "vm.swappiness"):
        assert find_key(name) is None
    with pytest.raises(TypeError):
        feature.is_looser(Bandwidth(1), 1)
    with pytest.raises(ParseError):
        feature.check(2, 2)
