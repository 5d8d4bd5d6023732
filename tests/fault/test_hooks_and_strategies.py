"""Hooks and a strategy that want the same files, through modes, restarts, refusals and kills.

In the end each file has the value of the strategy, else that of the hook, else its original.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import cast
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from msgspec.structs import replace

from agent.cgroup.cpu import Bandwidth, linear_weight, quadratic_weight
from agent.cgroup.keys import BURST, CPUS, MEMORY, QUOTA, SHARES, CgroupKey, CgroupValue
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.write_plan import DesiredValue
from agent.qos.strategy import QosInputs, StrategyPlan
from agent.reconcile import reconciler
from agent.snapshot.cluster import ClusterView
from agent.snapshot.container import Adjustment, LinuxResources
from agent.snapshot.part import SnapshotPart
from agent.snapshot.self_check import StrategyState
from agent.snapshot.slo import NodeSloView
from tests.cgroup_v2.fake import MOUNT, FakeKernel
from tests.cgroup_v2.settings import FakeSettings
from tests.realgroups import UID, PodGroups
from tests.unit.reconcile.scene import CannedHook, Scene
from tests.unit.reconcile.test_any_sequence import Files, Killed

LAYOUT = CgroupLayout(version=2, driver="cgroupfs", mounts=(), unified=MOUNT, root="/kubepods")
POD, APP, SANDBOX = None, "app", ""  # as hooks name them
STALE_S = 5000.0
TARGETS: tuple[tuple[str | None, CgroupKey], ...] = (
    *((POD, key) for key in (QUOTA, MEMORY, SHARES)),
    *((APP, key) for key in (QUOTA, CPUS, BURST)),
    (SANDBOX, CPUS),
)
VALUES: Mapping[CgroupKey, st.SearchStrategy[CgroupValue]] = {
    QUOTA: st.sampled_from([Bandwidth(-1), Bandwidth(5000), Bandwidth(50000)]),
    CPUS: st.sampled_from([frozenset({0}), frozenset({2}), frozenset({0, 3})]),
    MEMORY: st.sampled_from([-1, 1 << 28]),
    SHARES: st.sampled_from([1, 50, 100]),
    BURST: st.sampled_from([0, 1000]),
}
Plan = Mapping[int, CgroupValue]  # by the number of a target
plans: st.SearchStrategy[Plan] = st.sets(st.sampled_from(range(len(TARGETS)))).flatmap(
    lambda numbers: st.fixed_dictionaries({one: VALUES[TARGETS[one][1]] for one in numbers})
)


def adjustment(
    quota_us: int | None, cpus: str | None, shares: int | None, memory_bytes: int | None
) -> Adjustment:
    period_us = None if quota_us is None else 100_000
    return Adjustment(
        resources=LinuxResources(
            quota_us=quota_us,
            period_us=period_us,
            cpus=cpus,
            shares=shares,
            memory_bytes=memory_bytes,
        )
    )


quotas, cpu_lists = st.sampled_from([None, -1, 20000, 100000]), st.sampled_from([None, "0", "0-1"])
weights, sizes = st.sampled_from([None, 2, 512]), st.sampled_from([None, -1, 1 << 30])
answers = st.fixed_dictionaries(
    {
        POD: st.builds(adjustment, quotas, st.none(), weights, sizes),
        APP: st.builds(adjustment, quotas, cpu_lists, weights, sizes),
        SANDBOX: st.builds(adjustment, st.none(), cpu_lists, st.none(), st.none()),
    }
)
Answers = dict[str | None, Adjustment]


class OpenFiles(Files):
    """The files of the reconciler."""

    def close_all(self) -> None:
        """Keep nothing open."""

    def close_removed(self) -> None:
        """Keep nothing open."""

    def pids(self, directory: str) -> tuple[int, ...]:  # noqa: ARG002 - as `KernelFiles`
        """Return no process: nothing is set for one here."""
        return ()


@dataclass
class FakeFolder:
    """A group as a folder."""

    kernel: FakeKernel
    cgroup: str

    def exists(self) -> bool:
        return self.cgroup in self.kernel.groups


class FakeGroups:
    """Groups of a kernel in memory; `tests.realgroups.PodGroups`, as far as `Scene` uses it."""

    layout = LAYOUT

    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel

    def pod_path(self, uid: str) -> str:
        return f"/kubepods/pod{uid}"

    def container_path(self, pod: str, number: int) -> str:
        return f"{pod}/{number:064x}"

    def pod(self, uid: str = UID) -> str:
        self.kernel.make(self.pod_path(uid))
        return self.pod_path(uid)

    def container(self, pod: str, number: int) -> str:
        self.kernel.make(self.container_path(pod, number))
        return self.container_path(pod, number)

    def path(self, controller: str, cgroup: str) -> FakeFolder:  # noqa: ARG002 - as `PodGroups`
        return FakeFolder(self.kernel, cgroup)


class AnyStrategy:
    """Wants what the test says, or fails."""

    name = "cpu_burst"

    def __init__(self) -> None:
        self.values: tuple[DesiredValue, ...] = ()
        self.state = StrategyState.ACTIVE
        self.has_bug = False

    def start(self) -> int:
        return 0

    def plan(self, inputs: QosInputs, state: int) -> tuple[StrategyPlan, int]:  # noqa: ARG002
        if self.has_bug:
            raise ValueError("a bug")
        return StrategyPlan(values=self.values, state=self.state), state


class Node(RuleBasedStateMachine):
    """One pod on one kernel, an agent that may restart, and what is wanted of the pod's files."""

    @initialize()
    def start(self) -> None:
        """Start the pod as a runtime does, and the agent."""
        self.kernel = FakeKernel("/kubepods")
        self.files = OpenFiles(self.kernel, FakeSettings())
        self.patch = mock.patch.object(reconciler, "KernelFiles", return_value=self.files)
        self.patch.start()
        self.hook, self.strategy = CannedHook(), AnyStrategy()
        groups = FakeGroups(self.kernel)
        self.scene = Scene(cast("PodGroups", groups), self.hook, strategies=(self.strategy,))
        scene = self.scene
        self.places = {POD: scene.pod, APP: scene.container, SANDBOX: scene.sandbox}
        self.start_container(is_new=False)
        self.kernel.write(f"{scene.pod}/cpu.max", "100000 100000")
        self.values = scene.reconciler.current_values(LAYOUT)
        self.originals = [self.values.read_value(self.places[place], key) for place, key in TARGETS]
        self.plan: Plan = {}
        self.is_stale = False

    def start_container(self, *, is_new: bool = True) -> None:
        """Start the container as a runtime does, in a new group."""
        path = self.scene.container
        if is_new:
            self.kernel.group(path).processes = 0
            self.kernel.remove(path)
            self.kernel.make(path)
        self.kernel.group(path).processes = 1
        self.kernel.write(f"{path}/cpu.max", "100000 100000")
        self.kernel.write(f"{path}/cpuset.cpus", "0-1")

    def cycle(self, seconds: float = 1.0) -> None:
        """Run once with a NodeSLO that was confirmed now, or long ago."""
        taken_s = self.scene.clock.monotonic() + seconds - (STALE_S if self.is_stale else 0.0)
        cluster = ClusterView(slo=SnapshotPart(NodeSloView(), taken_s))
        self.scene.snapshot = replace(self.scene.snapshot, cluster=cluster)
        self.scene.cycle(seconds)

    def want(self, plan: Plan) -> None:
        self.plan = plan
        self.strategy.values = tuple(
            DesiredValue(
                cgroup=self.places[TARGETS[number][0]],
                key=TARGETS[number][1],
                value=value,
                owner=self.strategy.name,
            )
            for number, value in plan.items()
        )

    @rule(given=answers)
    def change_hook(self, given: Answers) -> None:
        """Let the hook want other values."""
        self.hook.answers = given
        self.scene.renew()
        self.cycle()

    @rule(plan=plans)
    def change_strategy(self, plan: Plan) -> None:
        """Let the strategy want other values."""
        self.want(plan)
        self.cycle()

    @rule(state=st.sampled_from([StrategyState.ACTIVE, StrategyState.WAITING]), bug=st.booleans())
    def disturb_strategy(self, state: StrategyState, bug: bool) -> None:
        """Let the strategy wait for an input, or raise an error."""
        self.strategy.state, self.strategy.has_bug = state, bug
        self.cycle()

    @rule(hook=st.sampled_from(["off", "plan", "on"]), mode=st.sampled_from(["off", "plan", "on"]))
    def restart(self, hook: str, mode: str) -> None:
        """Start the agent again with other modes."""
        self.scene.modes.update({self.hook.name: hook, self.strategy.name: mode})
        self.scene.again()
        self.cycle()

    @rule(seconds=st.sampled_from([1.0, 11.0, 61.0, 700.0]), is_stale=st.booleans())
    def let_time_pass(self, seconds: float, is_stale: bool) -> None:
        """Let time pass, while the NodeSLO is confirmed or not."""
        self.is_stale = is_stale
        self.cycle(seconds)

    @rule(number=st.sampled_from(range(len(TARGETS))))
    def refuse(self, number: int) -> None:
        """Let the kernel refuse all writes to a file."""
        place, key = TARGETS[number]
        for path in self.values.paths(self.places[place], key):
            self.files.refusals[path] = errno.EINVAL
        self.cycle()

    @rule()
    def replace_container(self) -> None:
        """Let the container end, and start again."""
        self.start_container()
        self.cycle()

    @rule(steps=st.integers(0, 8), plan=plans, given=answers)
    def be_killed(self, steps: int, plan: Plan, given: Answers) -> None:
        """Be killed at a write of a new plan, and start again."""
        self.files.steps_left = steps
        with suppress(Killed):
            self.want(plan)
            self.change_hook(given)
        self.files.steps_left = None
        self.scene.again()
        self.cycle()

    def desired(self, number: int, current: CgroupValue) -> CgroupValue | None:
        """Return the value that a file must have; `None`: its original."""
        place, key = TARGETS[number]
        if self.scene.modes[self.strategy.name] == "on" and number in self.plan:
            return self.plan[number]
        if self.scene.modes[self.hook.name] != "on" or place not in self.hook.answers:
            return None
        wanted = self.hook.answers[place].resources
        if key is SHARES and wanted.shares is not None:
            both = (linear_weight(wanted.shares), quadratic_weight(wanted.shares))
            return current if current in both else both[0]
        values: dict[CgroupKey, CgroupValue | None] = {
            QUOTA: None if wanted.quota_us is None else Bandwidth(wanted.quota_us),
            CPUS: CPUS.parse(2, (wanted.cpus.encode(),)) if wanted.cpus else None,
            MEMORY: wanted.memory_bytes,
        }
        return values.get(key)

    def teardown(self) -> None:
        """Let all disturbances end, and compare each file."""
        if not hasattr(self, "originals"):
            return
        self.files.refusals.clear()
        self.is_stale, self.strategy.has_bug = False, False
        self.strategy.state = StrategyState.ACTIVE
        self.scene.renew()
        for seconds in (*[4000.0] * 8, *[1.0] * 3):  # what was refused is tried once an hour
            self.cycle(seconds)
        for number, (place, key) in enumerate(TARGETS):
            current = self.values.read_value(self.places[place], key)
            assert current is not None
            desired = self.desired(number, current)
            if desired is None:
                desired = self.originals[number]
            assert desired is not None
            assert key.is_equivalent(desired, current), (place, key.name, desired, current)
        self.scene.reconciler.close()
        self.patch.stop()


TestNode = Node.TestCase
TestNode.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
