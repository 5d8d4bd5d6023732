"""Any sequence of plans, refusals, kills and other writers: files equal the plan or it is reported.

The kernel is that of `tests.cgroup_v2`, with all files that strategies write.
"""

from __future__ import annotations

import errno
import itertools
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent.cgroup import device_values as devices
from agent.cgroup import host_settings
from agent.cgroup.cpu import Bandwidth
from agent.cgroup.device_values import DeviceFile, device_line
from agent.cgroup.host_settings import FEATURE_FILES, directory_of, feature_key
from agent.cgroup.keys import (
    BURST,
    CPUS,
    HIGH,
    IDLE,
    KEYS_BY_NAME,
    LOW,
    MEMORY,
    MIN,
    QUOTA,
    SHARES,
    CgroupKey,
    CgroupValue,
    device_key,
)
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import ChangeLedger
from agent.cgroup.restore import restore_entries
from agent.cgroup.values import CgroupValues, ExpectedBytes
from agent.cgroup.write_plan import DesiredValue, WriteTarget
from agent.cgroup.writer import CgroupWriter
from agent.clock import ManualClock
from agent.errors import HostFileError
from tests.cgroup_v2.disks import WHOLE_DISKS
from tests.cgroup_v2.fake import MOUNT, FakeFiles, FakeKernel
from tests.cgroup_v2.settings import FakeSettings

LAYOUT = CgroupLayout(version=2, driver="cgroupfs", mounts=(), unified=MOUNT, root="/kubepods")
BEST_EFFORT, POD = "/kubepods/besteffort", "/kubepods/pod1"
ONE, TWO = f"{POD}/c1", f"{POD}/c2"
GROUPS = ("/kubepods", BEST_EFFORT, POD, ONE, TWO)
OWNER = "strategy"
OOM_GROUP = KEYS_BY_NAME["memory.oom.group"]
SPEC_KEYS = (SHARES, QUOTA, MEMORY)  # what another program writes to these is restored
ERRNOS = (errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EACCES)

quotas = st.builds(Bandwidth, st.sampled_from((-1, 1000, 20000, 100000)), st.just(100000))
sizes = st.sampled_from((0, 4096, 1 << 20, (1 << 20) + 1))
bps = st.sampled_from(("max", "1", "1048576"))


Values = st.SearchStrategy[CgroupValue]


def lines(file: DeviceFile, values: Mapping[str, st.SearchStrategy[str]]) -> Values:
    """Return a strategy of lines of a device."""
    return st.fixed_dictionaries(dict(values)).map(lambda one: device_line(file, one))


COST = {name: st.just("1000") for name in ("rbps", "rseqiops", "rrandiops")}
COST |= {name: st.just("2000") for name in ("wbps", "wseqiops", "wrandiops")}
VALUES: dict[tuple[str, CgroupKey], Values] = {
    **{(group, SHARES): st.integers(1, 10000) for group in (POD, ONE)},
    **{(group, QUOTA): quotas for group in (BEST_EFFORT, POD, ONE)},
    (ONE, BURST): st.sampled_from((0, 1000, 30000)),
    (BEST_EFFORT, IDLE): st.integers(0, 1),
    **{(group, CPUS): st.frozensets(st.integers(0, 3)) for group in (BEST_EFFORT, POD, ONE, TWO)},
    **{(group, MEMORY): st.sampled_from((-1, 1 << 30, (1 << 30) + 5)) for group in (POD, ONE)},
    **{(group, key): sizes for group in (POD, ONE) for key in (MIN, LOW, HIGH)},
    (POD, OOM_GROUP): st.integers(0, 1),
    **{
        (group, device_key(devices.LIMITS, disk)): lines(
            devices.LIMITS, dict.fromkeys(("rbps", "wbps", "riops", "wiops"), bps)
        )
        for group in (BEST_EFFORT, POD)
        for disk in WHOLE_DISKS
    },
    (BEST_EFFORT, device_key(devices.WEIGHT, WHOLE_DISKS[0])): lines(
        devices.WEIGHT, {"": st.sampled_from(("default", "40", "10000"))}
    ),
    ("/", device_key(devices.LATENCY, WHOLE_DISKS[0])): lines(
        devices.LATENCY,
        {
            "enable": st.just("1"),
            "ctrl": st.just("user"),
            "rpct": st.sampled_from(("95", "90.5")),
            "rlat": st.just("3000"),
            "wpct": st.just("95"),
            "wlat": st.just("3000"),
        },
    ),
    ("/", device_key(devices.MODEL, WHOLE_DISKS[0])): lines(
        devices.MODEL,
        {"ctrl": st.sampled_from(("auto", "user")), "model": st.just("linear"), **COST},
    ),
    **{
        (directory_of(key), key): values
        for key, values in (
            (host_settings.MIN_FREE_KBYTES, st.sampled_from((10240, 67584))),
            (host_settings.WATERMARK_SCALE, st.sampled_from((10, 150))),
            (feature_key(FEATURE_FILES[0], "WAKE"), st.integers(0, 1)),
            (feature_key(FEATURE_FILES[0], "GONE"), st.integers(0, 1)),
        )
    },
}
TARGETS = tuple(VALUES)


class Killed(Exception):
    """The agent's process was ended."""


class Files:
    """The agent's files: those of the kernel in memory, with refusals and a moment of death."""

    def __init__(self, kernel: FakeKernel, kernel_settings: FakeSettings) -> None:
        self._groups = FakeFiles(kernel)
        self._settings = kernel_settings
        self.refusals: dict[str, int] = {}  # errno by path
        self.steps_left: int | None = None

    def step(self) -> None:
        """End the process if this is its moment."""
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                raise Killed

    def read(self, path: str, size: int) -> bytes:
        """Read a file."""
        return (
            self._groups.read(path, size)
            if path.startswith(MOUNT)
            else self._settings.read(path, size)
        )

    def write(self, path: str, text: str) -> None:
        """Write a file, unless it is refused."""
        self.step()
        if path in self.refusals:
            self.read(path, 1)
            raise HostFileError(path, self.refusals[path])
        files = self._groups if path.startswith(MOUNT) else self._settings
        files.write(path, text)

    def inode(self, path: str) -> int:
        """Return a directory's inode."""
        if path.startswith(MOUNT):
            return self._groups.inode(path.rstrip("/"))
        return self._settings.inode(path)

    def holds(self, expected: Iterable[ExpectedBytes]) -> bool:
        """Return whether each file starts with these bytes."""
        return all(self.read(path, size) == data for path, size, data in expected)

    def generation(self, path: str) -> None:
        """Return `None`: no descriptor stays open."""

    def close(self, path: str) -> None:
        """Keep nothing open."""


class Agent(RuleBasedStateMachine):
    """One agent on one kernel, from its start to its removal."""

    @initialize()
    def start_machine(self) -> None:
        """Make the groups and disks, and start the agent."""
        self.kernel = FakeKernel("/kubepods")
        for group in GROUPS[1:]:
            self.kernel.make(group)
        self.kernel.write("/io.cost.qos", f"{WHOLE_DISKS[0]} enable=0")
        self.settings = FakeSettings(min_free_kbytes=67584, watermark_scale_factor=10)
        self.settings.feature_file = FEATURE_FILES[0]
        self.settings.features = {"WAKE": True}
        self.files = Files(self.kernel, self.settings)
        self.values = CgroupValues(self.files, LAYOUT)
        self.clock = ManualClock()
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.originals = {target: self.values.read_value(*target) for target in TARGETS}
        self.desired: tuple[DesiredValue, ...] = ()
        self.start()

    def start(self) -> None:
        """Start the agent on the ledger that there is."""
        self.ledger = ChangeLedger(str(Path(self.folder.name) / "ledger.log"), "boot")
        self.ledger.load()
        self.writer = CgroupWriter(self.values, self.ledger, self.clock)
        self.reported: dict[WriteTarget, CgroupValue] = {}

    def cycle(self) -> None:
        """Write what is desired and restore what is not, once."""
        self.clock.advance(1.0)
        now_s = self.clock.monotonic()
        plan = self.writer.prepare(self.desired, now_s, OWNER)
        self.writer.record_in_ledger(plan)
        self.files.step()
        self.ledger.flush()
        result = self.writer.apply(plan, now_s)
        for problem in result.problems:
            self.reported[problem.desired.target] = problem.desired.value
        refused = {(audit.path, audit.key) for audit in result.audits if audit.errno}
        for one in self.desired:  # memory in use is a problem only if it stays so
            (path,) = self.values.paths(one.cgroup, one.key)
            if (path, one.key.name) in refused:
                self.reported[one.target] = one.value
        targets = {one.target for one in self.desired}
        undesired = [
            entry
            for entry in self.ledger.entries.values()
            if (entry.path, entry.key) not in targets
        ]
        self.restore(undesired, force=False)

    def restore(self, entries: object, *, force: bool) -> list[str]:
        """Restore entries; return the lines of those that remain."""
        results = restore_entries(
            self.ledger,
            self.values,
            entries,  # type: ignore[arg-type]
            monotonic=lambda: 0.0,
            force=force,
        )
        return [
            f"{result.state} {result.summary} {result.detail}"
            for result in results
            if not result.is_done
        ]

    @rule(data=st.data(), desired=st.sets(st.sampled_from(TARGETS), max_size=12))
    def follow_plan(self, data: st.DataObject, desired: set[tuple[str, CgroupKey]]) -> None:
        """Follow a new plan."""
        self.desired = tuple(
            DesiredValue(cgroup=group, key=key, value=data.draw(VALUES[group, key]), owner=OWNER)
            for group, key in TARGETS
            if (group, key) in desired
        )
        self.writer.retain(frozenset(one.target for one in self.desired))
        self.cycle()

    @rule()
    def go_on(self) -> None:
        """Follow the same plan once more."""
        self.cycle()

    @rule(seconds=st.sampled_from((61.0, 4000.0)))
    def let_time_pass(self, seconds: float) -> None:
        """Try again what was refused."""
        self.clock.advance(seconds)
        self.cycle()

    @rule(file=st.sampled_from(TARGETS), number=st.sampled_from(ERRNOS))
    def refuse(self, file: tuple[str, CgroupKey], number: int) -> None:
        """Let the kernel refuse every write to a file."""
        for path in self.values.paths(*file):
            self.files.refusals[path] = number

    @precondition(lambda self: self.files.refusals)
    @rule()
    def accept(self) -> None:
        """Let the kernel accept all writes again."""
        self.files.refusals.clear()

    @rule(data=st.data(), file=st.sampled_from([t for t in TARGETS if t[1] not in SPEC_KEYS]))
    def write_as_another_program(self, data: st.DataObject, file: tuple[str, CgroupKey]) -> None:
        """Write a file that the agent may have written; what the kernel refuses changes nothing."""
        group, key = file
        text = key.text(2, data.draw(VALUES[file]))
        (path,) = self.values.paths(group, key)
        refusals, self.files.refusals = self.files.refusals, {}
        try:
            self.files.write(path, text)
        except HostFileError:
            return
        finally:
            self.files.refusals = refusals
        entry = self.ledger.entries.get((self.values.hierarchy(key), group, key.name))
        is_recorded = entry is not None and entry.inode == self.values.inode(group, key)
        if not is_recorded:
            self.originals[file] = self.values.read_value(group, key)
        self.cycle()

    @rule()
    def replace_container(self) -> None:
        """Remove a container's group, and make another of the same name."""
        self.kernel.remove(ONE)
        self.kernel.make(ONE)
        for target in TARGETS:
            if target[0] == ONE:
                self.originals[target] = self.values.read_value(*target)
        self.cycle()

    @rule(
        data=st.data(),
        desired=st.sets(st.sampled_from(TARGETS), max_size=12),
        steps=st.integers(0, 20),
    )
    def be_killed(
        self, data: st.DataObject, desired: set[tuple[str, CgroupKey]], steps: int
    ) -> None:
        """Be killed at some step of a new plan, and start again."""
        self.files.steps_left = steps
        try:
            self.follow_plan(data, desired)
        except Killed:
            pass
        finally:
            self.files.steps_left = None
        self.start()
        self.cycle()

    @invariant()
    def files_equal_the_plan_or_the_difference_is_reported(self) -> None:
        """Compare every file with the plan."""
        now_s = self.clock.monotonic()
        suspended = {name for name, _ in self.writer.refusals.suspended_writes(now_s)}
        contested = self.writer.overwrites.contested_targets(now_s)
        for one in self.desired:
            current = self.values.read_value(one.cgroup, one.key)
            if current is None or one.is_met(current):
                continue
            is_reported = self.reported.get(one.target) == one.value or one.target in contested
            assert is_reported or suspended & {OWNER, one.key.name}, (one, current)

    def teardown(self) -> None:
        """Remove the agent: all files have their original values."""
        if not hasattr(self, "files"):
            return
        self.files.refusals.clear()
        remaining = self.restore(tuple(self.ledger.entries.values()), force=True)
        assert remaining == [], remaining
        for (group, key), original in self.originals.items():
            current = self.values.read_value(group, key)
            assert current is not None
            assert original is not None
            assert key.is_equivalent(original, current), (group, key.name, original, current)
        assert self.ledger.entries == {}
        self.folder.cleanup()


TestAgent = Agent.TestCase
TestAgent.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)

plans = st.sets(st.sampled_from(TARGETS), max_size=12).flatmap(
    lambda wanted: st.fixed_dictionaries({one: VALUES[one] for one in TARGETS if one in wanted})
)


def desired_values(plan: Mapping[tuple[str, CgroupKey], CgroupValue]) -> tuple[DesiredValue, ...]:
    """Return a plan as the writer takes it."""
    return tuple(
        DesiredValue(cgroup=group, key=key, value=value, owner=OWNER)
        for (group, key), value in plan.items()
    )


@settings(max_examples=100, deadline=None)
@given(first=plans, second=plans)
def test_killed_at_every_step_of_any_plan_a_restore_gives_the_originals(
    first: Mapping[tuple[str, CgroupKey], CgroupValue],
    second: Mapping[tuple[str, CgroupKey], CgroupValue],
) -> None:
    for step in itertools.count():
        agent = Agent()
        agent.start_machine()
        agent.desired = desired_values(first)
        agent.cycle()
        agent.desired, agent.files.steps_left = desired_values(second), step
        is_killed = False
        try:
            agent.cycle()
        except Killed:
            is_killed = True
        agent.files.steps_left = None
        agent.start()
        if step % 2:
            agent.cycle()
            agent.files_equal_the_plan_or_the_difference_is_reported()
        agent.teardown()
        if not is_killed:
            break
